//! The program `engine`; see the library `engine_process`.

use clap::Parser;
use engine_process::args::{Args, Command};
use engine_process::{launch, unmount};

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Serve(settings) => launch::serve(*settings),
        Command::Unmount(settings) => unmount::run(&settings),
    }
}

//! The pool process; see `mooncake_pool`.

use std::process::ExitCode;

use clap::Parser;
use mooncake_pool::args::{Args, Command};
use mooncake_pool::{guard, probe, serve};

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match Args::parse().command {
        Command::Serve(args) => {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::INFO)
                .with_ansi(false)
                .init();
            runtime.block_on(serve::serve(*args))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Guard => {
            runtime.block_on(guard::until_terminated())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Probe { what } => Ok(match runtime.block_on(probe::probe(what)) {
            Ok(words) => {
                println!("{words}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        }),
    }
}

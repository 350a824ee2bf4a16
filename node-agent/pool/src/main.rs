//! The pool process; see `mooncake_pool`.

use std::process::ExitCode;

use clap::Parser;
use mooncake_pool::args::Args;

fn main() -> anyhow::Result<ExitCode> {
    mooncake_pool::run(Args::parse().command)
}

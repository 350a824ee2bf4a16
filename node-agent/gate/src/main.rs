//! The gate of an injected pod; see `mooncake_gate`.

use std::process::ExitCode;

use clap::Parser;
use mooncake_gate::args::Args;

fn main() -> anyhow::Result<ExitCode> {
    mooncake_gate::run(Args::parse().command)
}

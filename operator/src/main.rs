//! The binary `operator`.

use clap::Parser;
use mooncake_operator::args::Args;
use mooncake_operator::run;
use tracing_subscriber::EnvFilter;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(EnvFilter::try_new(&args.log)?)
        .init();
    run::run(args)
}

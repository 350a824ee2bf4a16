//! The program `admitted`: keeps the file with the admitted addresses of one cluster's master up to date until SIGTERM, and elects
//! one of several masters.

use admitted::args::Args;
use clap::Parser;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    admitted::run(args)
}

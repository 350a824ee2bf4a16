//! The agent of a node; see `mooncake_node_agent::agent`.

use clap::Parser;
use mooncake_node_agent::agent::args::{Args, Command};
use mooncake_node_agent::agent::{supervisor, worker};

fn main() -> anyhow::Result<()> {
    let Args { command, settings } = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_new(&settings.log)?)
        .with_ansi(false)
        .init();
    match command {
        None => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(supervisor::supervise(std::env::args_os().skip(1).collect())),
        Some(Command::Worker) => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?
            .block_on(worker::work(settings)),
    }
}

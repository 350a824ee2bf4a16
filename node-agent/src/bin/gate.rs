//! The gate of an injected pod; see `mooncake_node_agent::gate`.

use std::process::ExitCode;

use clap::Parser;
use mooncake_node_agent::gate::args::{Args, Command};
use mooncake_node_agent::gate::{Verdict, hold, install, master_ready};

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match Args::parse().command {
        Command::Hold(settings) => {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::INFO)
                .with_ansi(false)
                .init();
            let end = runtime.block_on(hold(settings));
            // A name that is still being looked up must not keep the process alive.
            runtime.shutdown_background();
            Ok(end?)
        }
        Command::Probe { directory } => {
            let verdict = Verdict::load(&directory)?;
            // The kubelet quotes what a failed probe prints.
            println!("{}", verdict.words());
            Ok(if verdict.lets_start() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::MasterReady { admin } => {
            runtime.block_on(master_ready(admin))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Install { directory } => {
            println!("{}", install(&directory)?.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

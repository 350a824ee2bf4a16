//! The commands of the program.

use std::process::ExitCode;

use crate::args::Command;
use crate::gate_state::GateState;
use crate::hold::hold;
use crate::install::install;
use crate::master::master_ready;

/// Runs one command of the program. Blocks.
///
/// # Errors
/// The errors of the command.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match command {
        Command::Hold(settings) => {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::INFO)
                .with_ansi(false)
                .init();
            let end = runtime.block_on(hold(*settings));
            // A pending name resolution must not keep the process alive.
            runtime.shutdown_background();
            Ok(end?)
        }
        Command::Probe { directory } => {
            let state = GateState::load(&directory)?;
            // The kubelet quotes what a failed probe prints.
            println!("{}", state.message());
            Ok(if state.allows_start() {
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

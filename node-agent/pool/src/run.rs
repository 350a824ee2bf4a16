//! The commands of the program.

use std::process::ExitCode;

use crate::args::Command;
use crate::{guard, probe, serve};

/// Runs one command of the program. Blocks.
///
/// # Errors
/// The errors of the command.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match command {
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

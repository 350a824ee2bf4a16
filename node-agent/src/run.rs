//! The commands of the program.

use anyhow::Context;

use crate::args::{Args, Command};
use crate::process::supervisor;
use crate::{describe, worker};

/// Runs one command of the program. Blocks.
///
/// # Errors
/// Those of the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { command, settings } = args;
    let settings = || {
        let settings =
            settings.context("--node-name, --pod-uid and --pod-namespace are required")?;
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::try_new(&settings.log)?)
            .with_ansi(false)
            .init();
        anyhow::Ok(settings)
    };
    match command {
        None => {
            settings()?;
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(supervisor::supervise(std::env::args_os().skip(1).collect()))
        }
        Some(Command::Worker) => {
            let settings = settings()?;
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?
                .block_on(worker::work(settings))
        }
        Some(Command::Facts { node }) => describe::facts(&node.into()),
        Some(Command::Containers { root, pod }) => describe::containers(&root, pod),
        Some(Command::Fix { changes, node }) => describe::fix(&node.into(), &changes),
        Some(Command::Record { file, node }) => describe::record(&node.into(), &file),
        Some(Command::Checks {
            recording,
            json,
            node,
        }) => {
            if !describe::checks(&node.into(), recording.as_deref(), json)? {
                std::process::exit(1);
            }
            Ok(())
        }
        Some(Command::Inventory { recording, node }) => {
            describe::inventory(&node.into(), recording.as_deref())
        }
    }
}

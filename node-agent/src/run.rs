//! The commands of the program.

use anyhow::Context;

use crate::args::{Args, Command};
use crate::process::supervisor;
use crate::{describe, worker};

/// A panic ends the process, also one of a task that nothing awaits: the agent would look alive, and its status would no longer change.
/// The supervisor starts another worker. The panic of a check is a finding instead.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !checks::is_checking() {
            std::process::abort();
        }
    }));
}

/// Runs one command of the program. Blocks.
///
/// # Errors
/// The errors of the command.
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
            end_on_panic();
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::end_on_panic;

    const SIGABRT: i32 = 6;
    const PANICKING: &str = "run::tests::a_task_that_panics";

    #[tokio::test]
    #[ignore = "ends its process: the next test runs it in another"]
    async fn a_task_that_panics() {
        end_on_panic();
        tokio::spawn(async { panic!("in a task") }).await.ok();
    }

    #[test]
    fn a_panic_of_a_task_ends_the_process() {
        let this = std::env::current_exe().unwrap();
        let arguments = ["--include-ignored", "--exact", "--nocapture", PANICKING];
        let done = Command::new(this).args(arguments).output().unwrap();
        assert_eq!(done.status.signal(), Some(SIGABRT), "{done:?}");
        let printed = String::from_utf8_lossy(&done.stderr);
        assert!(printed.contains("in a task"), "{printed}");
    }
}

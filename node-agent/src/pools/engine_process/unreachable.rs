//! Engine processes whose control socket accepts no connection: one hangs, and the connections of agents that ended before
//! they were accepted have filled its queue. No connection then shows its process ID. Its user ID does: no other pod's
//! engine process has it.

use std::fs;
use std::path::Path;

use engine_process::pidfd::Pidfd;
use tokio::time::{Instant, sleep, timeout};

use super::first_message::Patience;
use super::folder::Folder;
use super::liveness::SilentProcess;
use super::{END_DEADLINE, EngineProcess, StartError, find, until_ended};

/// A process that accepts no connection.
struct Unreachable {
    pid: u32,
    process: Pidfd,
}

/// Waits until the process that listens in a folder accepts a connection, and returns it. One that hangs is killed; then
/// none is returned.
///
/// # Errors
/// `Starved`: it may still accept one. `NoAnswer`: none of the processes of this user listens there.
pub(super) async fn wait(
    folder: &Folder,
    uid: u32,
    patience: Patience,
) -> Result<Option<EngineProcess>, StartError> {
    let found = processes(uid);
    if found.is_empty() {
        let cause = "its control socket accepts no connection, and its process is not found";
        return Err(StartError::NoAnswer(cause.to_owned()));
    }
    let begun = Instant::now();
    let mut watched: Vec<_> = found
        .iter()
        .map(|found| SilentProcess::begin(found.pid))
        .collect();
    while begun.elapsed() < patience.most {
        sleep(patience.looks).await;
        // Not a process that has gone on meanwhile.
        match find(folder) {
            Err(StartError::Unreachable) => {}
            other => return other,
        }
        let looks = found.iter().zip(&mut watched);
        let mut hung = looks.filter_map(|(found, watched)| {
            let hung = watched.look(found.pid, begun.elapsed())?;
            Some((found.pid, hung))
        });
        if let Some((pid, hung)) = hung.next() {
            let cause = hung.describe(pid).await;
            tracing::warn!(
                pid,
                cause,
                "killing an engine process that accepts no connection"
            );
            return match kill(&found).await {
                true => Ok(None),
                false => Err(StartError::NotEnded),
            };
        }
    }
    Err(StartError::Starved)
}

/// Kills the processes of a user. Returns false if some have not ended at the deadline.
pub(super) async fn end(uid: u32) -> bool {
    kill(&processes(uid)).await
}

async fn kill(found: &[Unreachable]) -> bool {
    for Unreachable { pid, process } in found {
        if let Err(error) = process.kill() {
            tracing::debug!(pid, %error, "cannot kill the engine process");
        }
    }
    let ended = async {
        for found in found {
            until_ended(&found.process).await;
        }
    };
    timeout(END_DEADLINE, ended).await.is_ok()
}

/// The processes of a user.
fn processes(uid: u32) -> Vec<Unreachable> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_of(*pid, uid))
        .filter_map(|pid| {
            let process = Pidfd::open(pid).ok()?;
            // It is the one that is held, not another with its number.
            is_of(pid, uid).then_some(Unreachable { pid, process })
        })
        .collect()
}

/// Whether a process runs with this user ID.
pub(super) fn is_of(pid: u32, uid: u32) -> bool {
    // The owner of the folder does not show it: it is root where a process has given up rights.
    let path = Path::new("/proc").join(pid.to_string()).join("status");
    let status = fs::read_to_string(path).unwrap_or_default();
    user(&status) == Some(uid)
}

/// The effective user ID in the status of a process.
fn user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sys::net::seqpacket;

    use super::super::end::tests::{full_backlog, hanging};
    use super::super::folder::Folders;
    use super::*;

    #[test]
    fn processes_are_found_by_their_effective_user_id() {
        let status = "Name:\tengine\nUid:\t0\t1073741900\t3\t4\nGid:\t7\t7\t7\t7\n";
        assert_eq!(user(status), Some(1_073_741_900));
        assert_eq!(user("Name:\tUid:\n"), None);
        let own = rustix::process::geteuid().as_raw();
        let pids = processes(own).into_iter().map(|found| found.pid);
        assert!(pids.into_iter().any(|pid| pid == std::process::id()));
    }

    #[tokio::test]
    async fn one_that_hangs_is_killed_and_one_that_accepts_again_is_returned() {
        const UID: u32 = 0x7fff_fff2;
        let patience = Patience {
            silence: Duration::ZERO,
            looks: Duration::from_millis(1_200),
            most: Duration::from_secs(60),
        };
        let state = tempfile::tempdir().unwrap();
        let folders = Folders::open(state.path()).unwrap();
        let [first, second] = ["a", "b"].map(|uid| folders.of(uid));
        let (listener, _waiting) = full_backlog(&first);
        let none = wait(&first, UID, patience).await.unwrap_err();
        assert!(matches!(none, StartError::NoAnswer(_)), "{none}");
        let mut process = hanging(UID, listener);
        assert!(wait(&first, UID, patience).await.unwrap().is_none());
        assert!(!process.wait().unwrap().success(), "killed");

        let (listener, _waiting) = full_backlog(&second);
        let own = listener.try_clone().unwrap();
        let mut process = hanging(UID, listener);
        let accept = async {
            sleep(patience.looks / 2).await;
            while seqpacket::accept(&own).is_ok() {}
        };
        let (found, ()) = tokio::join!(wait(&second, UID, patience), accept);
        assert!(found.unwrap().is_some());
        assert!(process.try_wait().unwrap().is_none(), "it runs on");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

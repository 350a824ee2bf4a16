//! Waits for the end of the engine process of a pool pod that has ended.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::folder::Folder;
use super::{EngineProcess, UNMOUNT_DEADLINE, connect, unreachable};

/// Period of the attempts to connect to a process that accepts no connection.
const CONNECT_PERIOD: Duration = Duration::from_millis(200);

/// Waits until no process runs that listens in a folder, with this user ID. `held`: one that is already known to listen.
pub(super) async fn wait(folder: &Folder, uid: u32, mut held: Option<EngineProcess>) {
    let begun = Instant::now();
    let mut logged = false;
    let mut killed = false;
    loop {
        let running = match held.take() {
            Some(held) => held,
            None => match connect(folder, true) {
                Ok(Some(running)) => running,
                Ok(None) => return,
                // One runs. A killed process keeps its listener until the kernel lets it go.
                Err(error) => {
                    if !std::mem::replace(&mut logged, true) {
                        tracing::warn!(%error, "waiting for the end of the engine process of an ended pool pod");
                    }
                    if begun.elapsed() > UNMOUNT_DEADLINE && !std::mem::replace(&mut killed, true) {
                        unreachable::end(uid).await;
                    }
                    sleep(CONNECT_PERIOD).await;
                    continue;
                }
            },
        };
        if timeout(UNMOUNT_DEADLINE, running.ended()).await.is_err() {
            tracing::warn!(
                pid = running.pid,
                "killing the engine process of an ended pool pod"
            );
            running.kill();
            // The kernel may not let it go; until it does, its memory is not free.
            running.ended().await;
        }
        return;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use sys::net::seqpacket;

    use super::super::folder::Folders;
    use super::super::{StartError, find};
    use super::*;

    /// The UID of no process.
    const UID: u32 = 0x7fff_fff0;

    /// A process of a user that has the listener and does nothing.
    pub(crate) fn hanging(uid: u32, listener: OwnedFd) -> Child {
        let mut command = Command::new("sleep");
        let command = command.arg("60").stdin(listener).uid(uid);
        command.spawn().unwrap()
    }

    /// A folder in which a process listens that accepts nothing, and the connections that wait for it.
    pub(crate) fn full_backlog(folder: &Folder) -> (OwnedFd, Vec<OwnedFd>) {
        folder.clear().unwrap();
        let listener = seqpacket::bind_path(&folder.control()).unwrap();
        seqpacket::start_listening(&listener, 1).unwrap();
        let mut waiting = Vec::new();
        while let Ok(socket) = seqpacket::connect_path(&folder.control()) {
            waiting.push(socket);
            assert!(waiting.len() < 10, "no limit");
        }
        (listener, waiting)
    }

    #[tokio::test]
    async fn a_process_that_accepts_no_connection_has_not_ended() {
        let state = tempfile::tempdir().unwrap();
        let folders = Folders::open(state.path()).unwrap();
        let folder = folders.of("u");
        let (listener, _waiting) = full_backlog(&folder);
        assert!(matches!(find(&folder), Err(StartError::Unreachable)));
        folders.remove_ended(|_| false);
        assert!(folder.control().exists());
        let mut end = std::pin::pin!(wait(&folder, UID, None));
        let early = timeout(2 * CONNECT_PERIOD, &mut end).await;
        assert!(early.is_err(), "it still listens");
        drop(listener);
        timeout(10 * CONNECT_PERIOD, end).await.unwrap();
        folders.remove_ended(|_| false);
        assert!(!folder.control().exists());
    }

    #[tokio::test]
    async fn a_process_that_hangs_and_accepts_no_connection_is_killed() {
        const OTHER_UID: u32 = 0x7fff_fff1;
        let state = tempfile::tempdir().unwrap();
        let folder = Folders::open(state.path()).unwrap().of("u");
        let (listener, _waiting) = full_backlog(&folder);
        let mut process = hanging(OTHER_UID, listener);
        let end = timeout(2 * UNMOUNT_DEADLINE, wait(&folder, OTHER_UID, None));
        end.await.unwrap();
        assert!(!process.wait().unwrap().success(), "killed");
    }
}

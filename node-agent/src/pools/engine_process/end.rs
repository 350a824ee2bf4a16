//! Waits for the end of the engine process of a pool pod that has ended.

use std::time::Duration;

use tokio::time::timeout;

use super::folder::Folder;
use super::{EngineProcess, UNMOUNT_DEADLINE, connect};

/// Period of the attempts to connect to a process that accepts no connection.
const CONNECT_PERIOD: Duration = Duration::from_millis(200);

/// Waits until no process runs that listens in a folder. `held`: one that is already known to listen.
pub(super) async fn wait(folder: &Folder, mut held: Option<EngineProcess>) {
    let mut logged = false;
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
                    tokio::time::sleep(CONNECT_PERIOD).await;
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
mod tests {
    use std::os::fd::OwnedFd;

    use sys::net::seqpacket;

    use super::super::folder::Folders;
    use super::super::{StartError, find};
    use super::*;

    /// A folder in which a process listens that accepts nothing, and the connections that wait for it.
    fn full_backlog(folder: &Folder) -> (OwnedFd, Vec<OwnedFd>) {
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
        assert!(matches!(find(&folder), Err(StartError::NoAnswer(_))));
        folders.remove_ended(|_| false);
        assert!(folder.control().exists());
        let mut end = std::pin::pin!(wait(&folder, None));
        let early = timeout(2 * CONNECT_PERIOD, &mut end).await;
        assert!(early.is_err(), "it still listens");
        drop(listener);
        timeout(10 * CONNECT_PERIOD, end).await.unwrap();
        folders.remove_ended(|_| false);
        assert!(!folder.control().exists());
    }
}

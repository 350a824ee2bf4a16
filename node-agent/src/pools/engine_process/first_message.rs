//! Waits for the first message of an engine process. One that lacks processor time is not hung.

use std::time::Duration;

use crds::text::clip_chars;
use engine_process::control::message::{FromEngine, PROTOCOL};
use tokio::time::{Instant, timeout};

use super::liveness::SilentProcess;
use super::{EngineProcess, StartError};

/// How long the first message is waited for.
pub(super) const HELLO: Patience = Patience {
    silence: Duration::from_secs(5),
    looks: Duration::from_secs(2),
    most: Duration::from_secs(15),
};

/// Most characters of another message in an error.
const QUOTED: usize = 200;

/// How long a message is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// After this time the process is watched, in looks with this period.
    pub(super) silence: Duration,
    pub(super) looks: Duration,
    /// After this time the attempt ends. The process runs on if it only lacks processor time.
    pub(super) most: Duration,
}

impl EngineProcess {
    /// Receives the first message.
    ///
    /// # Errors
    /// `Starved`: it may still send one; the next call goes on to wait. `NoAnswer`: it never will.
    pub(super) async fn greet(&mut self, patience: Patience) -> Result<(), StartError> {
        let begun = Instant::now();
        let mut wait = patience.silence;
        while begun.elapsed() < patience.most {
            match timeout(wait, self.receive()).await {
                Ok(Ok(FromEngine::Hello {
                    protocol: PROTOCOL,
                    rdma,
                })) => {
                    self.rdma = rdma;
                    return Ok(());
                }
                Ok(Ok(other)) => {
                    return Err(StartError::NoAnswer(format!(
                        "it sent {} instead of version {PROTOCOL} of the protocol",
                        clip_chars(&format!("{other:?}"), QUOTED)
                    )));
                }
                Ok(Err(error)) => return Err(StartError::NoAnswer(error.to_string())),
                Err(_) => {}
            }
            wait = patience.looks;
            let hung = match &mut self.silent {
                Some(watched) => watched.look(self.pid, self.connected.elapsed()),
                None => {
                    self.silent = Some(SilentProcess::begin(self.pid));
                    None
                }
            };
            if let Some(hung) = hung {
                return Err(StartError::NoAnswer(hung.describe(self.pid).await));
            }
        }
        Err(StartError::Starved)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use engine_process::pidfd::Pidfd;
    use pool::handover::Connection;
    use sys::net::seqpacket;

    use super::super::folder::Folders;
    use super::*;

    /// Ends a child.
    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = (self.0.kill(), self.0.wait());
        }
    }

    fn child(script: &str) -> Ended {
        Ended(Command::new("sh").args(["-c", script]).spawn().unwrap())
    }

    /// Waits for the first message of a process that sends none.
    async fn greet(script: &str) -> StartError {
        let state = tempfile::tempdir().unwrap();
        let (socket, _silent) = seqpacket::pair().unwrap();
        let child = child(script);
        let mut process = EngineProcess {
            pid: child.0.id(),
            process: Pidfd::open(child.0.id()).unwrap(),
            connection: Connection::new(socket).unwrap(),
            connected: Instant::now(),
            silent: None,
            folder: Folders::open(state.path()).unwrap().of("u"),
            adopted: true,
            outdated: false,
            rdma: Vec::new(),
        };
        let patience = Patience {
            silence: Duration::from_millis(200),
            looks: Duration::from_millis(1_200),
            most: Duration::from_millis(2_500),
        };
        process.greet(patience).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_silent_process_is_hung_only_if_it_waits_for_something_else_than_a_processor() {
        let (blocked, starved) = tokio::join!(
            greet("exec sleep 60"),
            // It runs or waits for a processor, for less than a hung one does.
            greet("while :; do :; done")
        );
        assert!(blocked.to_string().contains("is blocked"), "{blocked}");
        assert!(matches!(starved, StartError::Starved), "{starved}");
    }
}

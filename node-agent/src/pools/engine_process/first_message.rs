//! Waits for the first message of an engine process. One that lacks processor time is not hung.

use std::time::Duration;

use crds::text::clip_chars;
use engine_process::control::message::{FromEngine, PROTOCOL};
use pool::handover;
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
    /// `Starved`: it may still send one; the next call goes on to wait. `OtherProtocol`: it has sent one of another version.
    /// `NoAnswer`: it never will.
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
                Ok(Ok(FromEngine::Hello { protocol, rdma })) => {
                    self.rdma = rdma;
                    return Err(StartError::OtherProtocol {
                        sent: format!("it has {protocol}"),
                    });
                }
                Ok(Ok(other)) => {
                    return Err(StartError::NoAnswer(format!(
                        "it sent {} instead of version {PROTOCOL} of the protocol",
                        clip_chars(&format!("{other:?}"), QUOTED)
                    )));
                }
                // The first message of another version may have other fields.
                Ok(Err(handover::Error::InvalidMessage { cause })) => {
                    return Err(StartError::OtherProtocol {
                        sent: clip_chars(&cause, QUOTED),
                    });
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
    use std::os::fd::OwnedFd;
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

    fn process(state: &tempfile::TempDir, socket: OwnedFd, pid: u32) -> EngineProcess {
        EngineProcess {
            pid,
            process: Pidfd::open(pid).unwrap(),
            connection: Connection::new(socket).unwrap(),
            connected: Instant::now(),
            silent: None,
            folder: Folders::open(state.path()).unwrap().of("u"),
            adopted: true,
            outdated: false,
            rdma: Vec::new(),
        }
    }

    /// Waits for the first message of a process that sends none.
    async fn greet(script: &str) -> StartError {
        let state = tempfile::tempdir().unwrap();
        let (socket, _silent) = seqpacket::pair().unwrap();
        let child = child(script);
        let mut process = process(&state, socket, child.0.id());
        let patience = Patience {
            silence: Duration::from_millis(200),
            looks: Duration::from_millis(1_200),
            most: Duration::from_millis(2_500),
        };
        process.greet(patience).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_process_with_another_version_of_the_protocol_is_not_one_that_does_not_answer() {
        let state = tempfile::tempdir().unwrap();
        for (sent, named) in [
            (r#"{"type":"hello","protocol":0,"rdma":[]}"#, "it has 0"),
            (r#"{"type":"hello","protocol":9,"speed":1}"#, "speed"),
        ] {
            let (socket, theirs) = seqpacket::pair().unwrap();
            rustix::io::write(&theirs, sent.as_bytes()).unwrap();
            let mut process = process(&state, socket, std::process::id());
            let error = process.greet(HELLO).await.unwrap_err();
            assert!(matches!(error, StartError::OtherProtocol { .. }), "{error}");
            assert!(error.to_string().contains(named), "{error}");
        }
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

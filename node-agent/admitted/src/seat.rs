//! The socket of the master beside this program: it connects and sends `epoch N`, the epoch that it serves, or 0. It gets
//! `lead EPOCH NANOSECONDS` and `stop`.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::election::Seat;

/// Deadline for the master to take a line.
const SEND: Duration = Duration::from_millis(500);

/// The socket, and the connection of the master.
#[derive(Debug)]
pub struct Local {
    listener: UnixListener,
    master: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Local {
    /// Replaces the socket of an earlier run.
    ///
    /// # Errors
    /// The errors of `unlink` and `bind`.
    pub fn listen(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        Ok(Self {
            listener,
            master: None,
        })
    }

    /// Waits until the master has connected, changed or left. One connection is served at a time: a restarted master waits until
    /// the one before it has ended. Cancel-safe.
    pub async fn changed(&mut self) -> Seat {
        loop {
            let Some(master) = &mut self.master else {
                match self.listener.accept().await {
                    Ok((stream, _)) => self.master = Some(Connection::new(stream)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept the connection of the master");
                        tokio::time::sleep(SEND).await;
                    }
                }
                continue;
            };
            match master.lines.next_line().await {
                Ok(Some(line)) => match line.strip_prefix("epoch ").map(str::parse) {
                    Some(Ok(0)) => return Seat::Waiting,
                    Some(Ok(epoch)) => return Seat::Serving(epoch),
                    Some(Err(_)) | None => {
                        tracing::warn!(line, "the master sent an unknown line");
                    }
                },
                Ok(None) | Err(_) => {
                    self.master = None;
                    return Seat::Absent;
                }
            }
        }
    }

    /// Sends a line. A master that is stopped or has left does not get it: it ends at the end of its term.
    pub async fn send(&mut self, line: &str) {
        let Some(master) = &mut self.master else {
            return;
        };
        let line = format!("{line}\n");
        match timeout(SEND, master.write.write_all(line.as_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot write to the master"),
            Err(_elapsed) => tracing::warn!("the master takes no line in {SEND:?}"),
        }
    }
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            lines: BufReader::new(read).lines(),
            write,
        }
    }
}

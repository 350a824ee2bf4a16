//! Whether this run may serve: until a moment of CLOCK_BOOTTIME, which goes on while a process or its machine is stopped.

use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

/// The end of a leadership that has none.
const NEVER: u64 = u64::MAX;
/// Wait before the next attempt to connect to the elector.
const RETRY: Duration = Duration::from_millis(200);

/// Returns the nanoseconds of CLOCK_BOOTTIME.
#[must_use]
pub fn boottime() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The right to serve. Clones share its end.
#[derive(Debug, Clone)]
pub struct Leadership(watch::Receiver<u64>);

impl Leadership {
    /// Returns a leadership until the nanosecond `until` of CLOCK_BOOTTIME, and what moves its end.
    #[must_use]
    pub fn until(until: u64) -> (watch::Sender<u64>, Self) {
        let (end, receiver) = watch::channel(until);
        (end, Self(receiver))
    }

    /// Returns the leadership of a master without others.
    #[must_use]
    pub fn alone() -> Self {
        Self::until(NEVER).1
    }

    /// True while this run may answer.
    #[must_use]
    pub fn holds(&self) -> bool {
        let until = *self.0.borrow();
        until == NEVER || boottime() < until
    }

    /// Returns when this run may answer no more.
    pub async fn ended(mut self) {
        loop {
            let until = *self.0.borrow_and_update();
            let now = boottime();
            if now >= until {
                return;
            }
            tokio::select! {
                () = sleep(Duration::from_nanos(until - now)) => {}
                changed = self.0.changed() => if changed.is_err() {
                    // Its end is final.
                    while self.holds() {
                        sleep(Duration::from_nanos(until.saturating_sub(boottime()))).await;
                    }
                    return;
                },
            }
        }
    }
}

/// A time in which this program leads.
#[derive(Debug)]
pub struct Term {
    /// The epoch of the ledgers, which exceeds those of earlier terms.
    pub epoch: u64,
    pub leadership: Leadership,
    /// Dropped when nothing of the term is served any more.
    _serving: oneshot::Sender<std::convert::Infallible>,
}

/// The term that the elector knows.
#[derive(Debug)]
struct Running {
    epoch: u64,
    end: watch::Sender<u64>,
    over: oneshot::Receiver<std::convert::Infallible>,
}

/// A line of the elector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// Serve in this epoch until this nanosecond of CLOCK_BOOTTIME.
    Lead { epoch: u64, until: u64 },
    /// Serve no more.
    Stop,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        match *words {
            ["lead", epoch, until] => Some(Self::Lead {
                epoch: epoch.parse().ok()?,
                until: until.parse().ok()?,
            }),
            ["stop"] => Some(Self::Stop),
            _ => None,
        }
    }
}

/// The side of the elector's socket that may be elected. The connection lasts as long as nothing or one term is served: its end
/// shows the elector that this program serves nothing (docs/decisions/master-election.md).
#[derive(Debug)]
pub struct Candidate {
    socket: PathBuf,
    terms: mpsc::Sender<Term>,
    running: Option<Running>,
    /// The failure that was logged last.
    failure: Option<String>,
}

impl Candidate {
    #[must_use]
    pub fn new(socket: PathBuf) -> (Self, mpsc::Receiver<Term>) {
        let (terms, receiver) = mpsc::channel(1);
        let candidate = Self {
            socket,
            terms,
            running: None,
            failure: None,
        };
        (candidate, receiver)
    }

    /// Keeps the connection until the future is dropped.
    pub async fn follow(mut self) {
        loop {
            let failure = self.converse().await.err();
            if failure != self.failure {
                if let Some(failure) = &failure {
                    tracing::warn!(socket = %self.socket.display(), failure,
                        "no connection to the elector; this master serves until the end of its term at most");
                }
                self.failure = failure;
            }
            sleep(RETRY).await;
        }
    }

    /// Returns when the connection has ended. Nothing is served then, unless it was the elector that ended it.
    async fn converse(&mut self) -> Result<(), String> {
        let words = |error: std::io::Error| error.to_string();
        let stream = UnixStream::connect(&self.socket).await.map_err(words)?;
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        if let Some(running) = &mut self.running
            && running.over.try_recv() != Err(oneshot::error::TryRecvError::Empty)
        {
            self.running = None;
        }
        let epoch = self.running.as_ref().map_or(0, |running| running.epoch);
        let hello = format!("epoch {epoch}\n");
        write.write_all(hello.as_bytes()).await.map_err(words)?;
        loop {
            let over = async {
                match &mut self.running {
                    Some(running) => (&mut running.over).await,
                    None => std::future::pending().await,
                }
            };
            let line = tokio::select! {
                _dropped = over => {
                    self.running = None;
                    return Ok(());
                }
                line = lines.next_line() => line.map_err(words)?,
            };
            let Some(line) = line else {
                return Err("the elector closed the connection".to_owned());
            };
            match (Line::parse(&line), &mut self.running) {
                (None, _) => return Err(format!("the elector sent {line:?}")),
                (Some(Line::Stop), None) => {}
                (Some(Line::Stop), Some(running)) => {
                    running.end.send_replace(0);
                }
                (Some(Line::Lead { epoch, until }), Some(running)) if running.epoch == epoch => {
                    running.end.send_replace(until);
                }
                (Some(Line::Lead { epoch, .. }), Some(running)) => {
                    return Err(format!(
                        "the elector starts epoch {epoch} while epoch {} is served",
                        running.epoch
                    ));
                }
                (Some(Line::Lead { epoch, until }), None) => {
                    let (end, leadership) = Leadership::until(until);
                    let (serving, over) = oneshot::channel();
                    let term = Term {
                        epoch,
                        leadership,
                        _serving: serving,
                    };
                    if self.terms.send(term).await.is_err() {
                        return Err("the program ends".to_owned());
                    }
                    self.running = Some(Running { epoch, end, over });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_leadership_ends_at_its_moment_and_not_before_a_later_one() {
        assert!(Leadership::alone().holds());
        let (end, leadership) = Leadership::until(boottime() + 3_600_000_000_000);
        assert!(leadership.holds());
        let ended = tokio::spawn(leadership.clone().ended());
        tokio::task::yield_now().await;
        assert!(!ended.is_finished());
        end.send_replace(boottime() + 1_000_000);
        tokio::time::timeout(Duration::from_secs(30), ended)
            .await
            .expect("it ends")
            .unwrap();
        assert!(!leadership.holds());
        end.send_replace(0);
        drop(end);
        leadership.ended().await;
    }

    #[test]
    fn lines_of_the_elector_are_read_whole() {
        let lead = Line::Lead { epoch: 7, until: 9 };
        assert_eq!(Line::parse("lead 7 9"), Some(lead));
        assert_eq!(Line::parse("stop"), Some(Line::Stop));
        for wrong in ["", "lead", "lead 7", "lead 7 9 1", "lead x 9", "stop 1"] {
            assert_eq!(Line::parse(wrong), None, "{wrong}");
        }
    }
}

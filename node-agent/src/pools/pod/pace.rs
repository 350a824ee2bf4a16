//! How much an engine process may send. One that is under the control of an intruder must keep neither the agent, the disk
//! nor the log of the node busy.

use std::time::Duration;

use engine_process::control::message::{Call, FromEngine};
use pool::handover;
use tokio::time::{Instant, sleep_until};

/// Time that a message takes of what is allowed, and how much may be taken at once: 50 messages per second, and 250 in a
/// row. A process sends its counters every 2 seconds, and little else.
const MESSAGE: Duration = Duration::from_millis(20);
const MESSAGES: Duration = Duration::from_secs(5);

/// Least time between messages for which a file is written on the node's disk: 2 per second.
const FILE: Duration = Duration::from_millis(500);

/// Limits of lines of the log: 5 per second, and 1,000 in a row.
const LINE: Duration = Duration::from_millis(200);
const LINES: Duration = Duration::from_secs(200);

/// The pace of the engine processes of one pod.
#[derive(Debug, Default)]
pub(super) struct Pace {
    messages: Spent,
    lines: Spent,
    /// Lines that were left out since the last one that was not.
    omitted: u64,
}

/// What was taken of an allowance that grows with time.
#[derive(Debug, Default)]
struct Spent {
    amount: Duration,
    at: Option<Instant>,
}

impl Spent {
    /// What is spent now.
    fn now(&self, now: Instant) -> Duration {
        let passed = self.at.map(|at| now.saturating_duration_since(at));
        self.amount.saturating_sub(passed.unwrap_or_default())
    }

    fn add(&mut self, amount: Duration, now: Instant) {
        self.amount = self.now(now) + amount;
        self.at = Some(now);
    }
}

impl Pace {
    /// Waits until the process may send again, and for its message. Until then messages stay in its socket. Cancel-safe if
    /// `receive` is.
    pub(super) async fn receive(
        &mut self,
        receive: impl Future<Output = Result<FromEngine, handover::Error>>,
    ) -> Result<FromEngine, handover::Error> {
        let now = Instant::now();
        let excess = self.messages.now(now).saturating_sub(MESSAGES);
        if !excess.is_zero() {
            sleep_until(now + excess).await;
        }
        let message = receive.await?;
        self.messages.add(cost(&message), Instant::now());
        Ok(message)
    }

    /// Whether one more line of the log is written; with the number of those that were not since the last one.
    pub(super) fn line(&mut self, now: Instant) -> Option<u64> {
        if self.lines.now(now) + LINE > LINES {
            self.omitted += 1;
            return None;
        }
        self.lines.add(LINE, now);
        Some(std::mem::take(&mut self.omitted))
    }
}

fn cost(message: &FromEngine) -> Duration {
    match message {
        FromEngine::Call {
            call: Call::SaveMount { .. } | Call::RemoveMount { .. },
            ..
        } => FILE,
        _ => MESSAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove_mount() -> FromEngine {
        let call = Call::RemoveMount {
            client: store::Uuid::from_random([7; 16]),
        };
        FromEngine::Call { id: 1, call }
    }

    fn line() -> FromEngine {
        FromEngine::Log {
            level: "INFO".to_owned(),
            line: "x".to_owned(),
        }
    }

    /// How long this many messages take that a process sends at once.
    async fn takes(count: u32, message: impl Fn() -> FromEngine) -> Duration {
        let mut pace = Pace::default();
        let begun = Instant::now();
        for _ in 0..count {
            pace.receive(async { Ok(message()) }).await.unwrap();
        }
        begun.elapsed()
    }

    #[tokio::test]
    async fn a_process_that_sends_without_pause_is_read_at_a_bounded_rate() {
        let few = u32::try_from(MESSAGES.as_millis() / MESSAGE.as_millis()).unwrap();
        let (fast, slow, files) = tokio::join!(
            takes(few, line),
            takes(few + 26, line),
            takes(12, remove_mount)
        );
        assert!(fast < MESSAGES, "{fast:?}");
        assert!(slow >= 24 * MESSAGE, "{slow:?}");
        assert!(files >= FILE / 2, "{files:?}");
    }

    #[test]
    fn lines_beyond_the_allowed_ones_are_counted_and_not_written() {
        let mut pace = Pace::default();
        let begun = Instant::now();
        let written = (0..5_000).filter(|_| pace.line(begun) == Some(0)).count();
        assert_eq!(written, 1_000);
        assert_eq!(pace.line(begun + LINE), Some(4_000));
        assert_eq!(pace.line(begun + LINE), None);
    }
}

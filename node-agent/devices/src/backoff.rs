//! Waits between requests to the API server: between writes of one object, and before a watch is
//! started again.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::Instant;

/// The longest wait before a failed watch is started again. kube's own 30 s spare the API server, but a
/// node's status stays outdated for as long after the server is back.
pub const WATCH_LONGEST: Duration = Duration::from_secs(10);

/// kube's waits between watches, with their jitter, at most [`WATCH_LONGEST`].
#[derive(Default)]
pub struct WatchBackoff(DefaultBackoff);

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|wait| wait.min(WATCH_LONGEST))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// Waits until then; forever without a time.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Limits the writes of one object: a least time after a successful write, and an exponential backoff
/// after failed ones.
#[derive(Debug)]
pub struct WriteBackoff {
    first: Duration,
    longest: Duration,
    wait: Duration,
    /// Time of the last write that succeeded.
    written: Option<Instant>,
    not_before: Option<Instant>,
}

impl WriteBackoff {
    /// Waits `first` after the first failed write, twice as long after each further one, at most `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            wait: first,
            written: None,
            not_before: None,
        }
    }

    /// The time of the next write, at least `least` after the last one; none if it may be written now.
    pub fn wait(&self, least: Duration, now: Instant) -> Option<Instant> {
        let after = self.written.map(|written| written + least);
        after.max(self.not_before).filter(|next| now < *next)
    }

    /// False until the first write has succeeded.
    pub fn has_written(&self) -> bool {
        self.written.is_some()
    }

    /// Records a successful write.
    pub fn succeeded(&mut self, now: Instant) {
        *self = Self::new(self.first, self.longest);
        self.written = Some(now);
    }

    /// Records a failed write and returns the time of the next attempt.
    pub fn failed(&mut self, now: Instant) -> Instant {
        let next = now + self.wait;
        self.wait = (self.wait * 2).min(self.longest);
        self.not_before = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn watch_waits_grow_to_the_longest_and_restart_after_a_reset() {
        let mut backoff = WatchBackoff::default();
        let waits: Vec<_> = backoff.by_ref().take(12).collect();
        assert!(waits[0] < WATCH_LONGEST, "{waits:?}");
        let mut last = waits[6..].iter();
        assert!(last.all(|wait| *wait == WATCH_LONGEST), "{waits:?}");
        backoff.reset();
        assert!(backoff.next().is_some_and(|wait| wait < WATCH_LONGEST));
    }

    #[test]
    fn the_first_write_is_immediate_and_the_next_after_the_least_time() {
        let now = Instant::now();
        let mut backoff = WriteBackoff::new(SECOND, MINUTE);
        assert_eq!(backoff.wait(MINUTE, now), None);
        assert!(!backoff.has_written());
        backoff.succeeded(now);
        assert!(backoff.has_written());
        assert_eq!(backoff.wait(MINUTE, now), Some(now + MINUTE));
        assert_eq!(
            backoff.wait(MINUTE, now + MINUTE - SECOND),
            Some(now + MINUTE)
        );
        assert_eq!(backoff.wait(MINUTE, now + MINUTE), None);
        assert_eq!(backoff.wait(SECOND, now + SECOND), None);
    }

    #[test]
    fn waits_after_failures_grow_to_the_longest_and_restart_after_a_success() {
        let mut now = Instant::now();
        let mut backoff = WriteBackoff::new(SECOND, 5 * SECOND);
        for seconds in [1, 2, 4, 5, 5] {
            let next = backoff.failed(now);
            assert_eq!(next, now + seconds * SECOND);
            assert_eq!(backoff.wait(Duration::ZERO, now), Some(next));
            assert_eq!(backoff.wait(Duration::ZERO, next), None);
            now = next;
        }
        backoff.succeeded(now);
        assert_eq!(backoff.wait(Duration::ZERO, now), None);
        assert_eq!(backoff.failed(now), now + SECOND);
    }

    #[test]
    fn a_failure_does_not_shorten_a_longer_wait() {
        let now = Instant::now();
        let mut backoff = WriteBackoff::new(SECOND, MINUTE);
        backoff.succeeded(now);
        backoff.failed(now + MINUTE);
        assert_eq!(
            backoff.wait(2 * MINUTE, now + MINUTE),
            Some(now + 2 * MINUTE)
        );
        let next = backoff.wait(MINUTE, now + MINUTE);
        assert_eq!(next, Some(now + MINUTE + SECOND));
    }
}

//! When an object may be written again: some time after it was last, and ever longer after writes that
//! failed. Pure: the time is handed in.

use std::time::Duration;

use tokio::time::Instant;

/// How one object is written.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Wait after the first failed write, doubled after each further one up to the longest.
    first: Duration,
    longest: Duration,
    wait: Duration,
    /// Of the last write that succeeded.
    written: Option<Instant>,
    not_before: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            wait: first,
            written: None,
            not_before: None,
        }
    }

    /// When a write may be that comes no sooner than `least` after the one before; none where that is
    /// already so.
    pub(crate) fn wait(&self, least: Duration, now: Instant) -> Option<Instant> {
        let after = self.written.map(|written| written + least);
        after.max(self.not_before).filter(|next| now < *next)
    }

    /// False until the first write has succeeded.
    pub(crate) fn has_written(&self) -> bool {
        self.written.is_some()
    }

    pub(crate) fn succeeded(&mut self, now: Instant) {
        *self = Self::new(self.first, self.longest);
        self.written = Some(now);
    }

    /// When to try again.
    pub(crate) fn failed(&mut self, now: Instant) -> Instant {
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
    fn the_first_write_is_at_once_and_the_next_after_the_least_time() {
        let now = Instant::now();
        let mut pace = Pace::new(SECOND, MINUTE);
        assert_eq!(pace.wait(MINUTE, now), None);
        assert!(!pace.has_written());
        pace.succeeded(now);
        assert!(pace.has_written());
        assert_eq!(pace.wait(MINUTE, now), Some(now + MINUTE));
        assert_eq!(pace.wait(MINUTE, now + MINUTE - SECOND), Some(now + MINUTE));
        assert_eq!(pace.wait(MINUTE, now + MINUTE), None);
        // What must not wait as long does not.
        assert_eq!(pace.wait(SECOND, now + SECOND), None);
    }

    #[test]
    fn waits_after_failures_grow_to_the_longest_and_begin_anew_after_a_success() {
        let mut now = Instant::now();
        let mut pace = Pace::new(SECOND, 5 * SECOND);
        for seconds in [1, 2, 4, 5, 5] {
            let next = pace.failed(now);
            assert_eq!(next, now + seconds * SECOND);
            assert_eq!(pace.wait(Duration::ZERO, now), Some(next));
            assert_eq!(pace.wait(Duration::ZERO, next), None);
            now = next;
        }
        pace.succeeded(now);
        assert_eq!(pace.wait(Duration::ZERO, now), None);
        assert_eq!(pace.failed(now), now + SECOND);
    }

    #[test]
    fn a_failure_shortens_no_wait_that_is_longer() {
        let now = Instant::now();
        let mut pace = Pace::new(SECOND, MINUTE);
        pace.succeeded(now);
        pace.failed(now + MINUTE);
        assert_eq!(pace.wait(2 * MINUTE, now + MINUTE), Some(now + 2 * MINUTE));
        let next = pace.wait(MINUTE, now + MINUTE);
        assert_eq!(next, Some(now + MINUTE + SECOND));
    }
}

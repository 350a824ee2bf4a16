//! How long a pool pod stays without an engine process after one has ended or did not start, and how long one whose pool
//! processes end at once is not served again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// An engine process that ran this long is replaced at once: its peers wait.
const STABLE: Duration = Duration::from_secs(1);

/// Ends in a row after which the pauses grow. Fewer are not a program that ends again and again for the same cause.
const FEW: u32 = 20;

/// The pauses of one pool pod: between its engine processes, or between its pool processes.
#[derive(Debug)]
pub(super) struct Pauses {
    /// Ends in a row of processes that did not run long.
    ends: u32,
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            ends: 0,
            next: FIRST,
        }
    }
}

impl Pauses {
    /// The pause after a process that ran for so long.
    pub(super) fn after(&mut self, ran: Duration) -> Duration {
        if ran >= STABLE {
            *self = Self::default();
            return Duration::ZERO;
        }
        self.ends += 1;
        if self.ends <= FEW {
            return FIRST;
        }
        self.grow()
    }

    /// The pause after a start that failed.
    pub(super) fn after_failed_start(&mut self) -> Duration {
        self.grow()
    }

    fn grow(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause
    }
}

/// How long the ends of a pod's pool processes are remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// When pods may be served again, by UID. A pod whose processes end at once must not keep the agent searching for its next
/// one.
#[derive(Debug, Default)]
pub(super) struct Restarts(BTreeMap<String, Restart>);

#[derive(Debug)]
struct Restart {
    pauses: Pauses,
    at: Instant,
}

impl Restarts {
    /// The task of a pod that began at this time has ended.
    pub(super) fn ended(&mut self, pod_uid: &str, began: Instant, now: Instant) {
        self.0.retain(|_, restart| now < restart.at + REMEMBERED);
        let restart = self.0.entry(pod_uid.to_owned()).or_insert_with(|| Restart {
            pauses: Pauses::default(),
            at: now,
        });
        restart.at = now + restart.pauses.after(now.saturating_duration_since(began));
    }

    /// Until when a pod is not served.
    pub(super) fn until(&self, pod_uid: &str, now: Instant) -> Option<Instant> {
        let restart = self.0.get(pod_uid)?;
        Some(restart.at).filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_whose_processes_end_at_once_is_served_again_after_longer_and_longer_pauses() {
        let mut restarts = Restarts::default();
        let mut now = Instant::now();
        let mut served = 0;
        let end = now + Duration::from_secs(120);
        while now < end {
            served += 1;
            restarts.ended("u", now, now);
            assert_eq!(restarts.until("other", now), None);
            now = restarts.until("u", now).unwrap();
            assert_eq!(restarts.until("u", now), None);
        }
        assert!(served < 50, "{served} times in 2 minutes");
        // One that ran is replaced at once.
        restarts.ended("u", now, now + STABLE);
        assert_eq!(restarts.until("u", now + STABLE), None);
        // Nothing is left of a pod that was deleted.
        restarts.ended("v", now, now + 2 * REMEMBERED);
        assert_eq!(restarts.0.keys().collect::<Vec<_>>(), ["v"]);
    }

    const SHORT: Duration = Duration::from_millis(500);

    #[test]
    fn a_process_that_ran_is_replaced_at_once_and_a_few_ends_in_a_row_soon() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.after(STABLE), Duration::ZERO);
        for _ in 0..FEW {
            assert_eq!(pauses.after(SHORT), FIRST);
        }
        assert_eq!(pauses.after(SHORT), FIRST);
        assert_eq!(pauses.after(SHORT), 2 * FIRST);
        assert_eq!(pauses.after(STABLE), Duration::ZERO);
        assert_eq!(pauses.after(SHORT), FIRST);
    }

    #[test]
    fn pauses_after_many_ends_and_after_failed_starts_grow_up_to_the_longest() {
        let mut pauses = Pauses::default();
        let failed: Vec<_> = (0..9).map(|_| pauses.after_failed_start()).collect();
        assert_eq!(failed[..3], [FIRST, 2 * FIRST, 4 * FIRST]);
        assert_eq!(failed[8], LONGEST);
        let mut pauses = Pauses::default();
        let ends: Vec<_> = (0..FEW + 9).map(|_| pauses.after(SHORT)).collect();
        assert_eq!(ends.last(), Some(&LONGEST));
    }
}

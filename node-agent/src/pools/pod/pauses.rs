//! How long a pool pod stays without an engine process after one has ended or did not start.

use std::time::Duration;

/// The first pause, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// An engine process that ran this long is replaced at once: its peers wait.
const STABLE: Duration = Duration::from_secs(1);

/// Ends in a row after which the pauses grow. Fewer are not a program that ends again and again for the same cause.
const FEW: u32 = 20;

/// The pauses of one pool pod.
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

#[cfg(test)]
mod tests {
    use super::*;

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

//! How one way stands: a steady verdict from single proofs. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use crds::node::Probe;

/// So many proofs in a row turn a verdict: one alone may be a restart of the other agent.
const IN_A_ROW: u32 = 2;

/// A way is as fast as the best of so many proofs: what was slow in between is load, not the way.
const LOOKED_AT: usize = 10;
/// A way whose best proof takes longer is slow. A proof moves 16 KiB to and fro, which takes a thousandth
/// of a second; a TCP that waits for what was lost on the way takes a fifth.
pub(crate) const SLOW: Duration = Duration::from_millis(100);
/// A slow way whose best proof takes less is fast again.
const FAST: Duration = Duration::from_millis(50);

/// What is believed of a way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Unproven,
    /// Bytes went there and came back the same.
    Proven,
    /// They did not; why, in the words of the failure that turned the verdict.
    Broken(String),
}

/// The way to one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) probe: Probe,
    pub(crate) verdict: Verdict,
    /// Proofs in a row that contradict the verdict.
    against: u32,
    /// Time of the last proof that succeeded: write, read back and compare.
    pub(crate) took: Option<Duration>,
    /// The times of the last proofs that succeeded, [`LOOKED_AT`] at most.
    recent: VecDeque<Duration>,
    /// Whether it is slow, for as long as it works.
    pub(crate) slow: bool,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

impl Way {
    pub(crate) fn new(probe: Probe) -> Self {
        Self {
            probe,
            verdict: Verdict::Unproven,
            against: 0,
            took: None,
            recent: VecDeque::with_capacity(LOOKED_AT),
            slow: false,
            succeeded: 0,
            failed: 0,
        }
    }

    /// Takes one more proof into account; true where the verdict turns, or the way becomes slow or fast.
    pub(crate) fn note(&mut self, proof: Result<Duration, String>) -> bool {
        let was_slow = self.slow;
        let (verdict, at_once) = match proof {
            Ok(took) => {
                self.succeeded += 1;
                self.took = Some(took);
                self.pace(took);
                // What was never believed to be broken needs no second look.
                (Verdict::Proven, self.verdict == Verdict::Unproven)
            }
            Err(why) => {
                self.failed += 1;
                (Verdict::Broken(why), false)
            }
        };
        let same = std::mem::discriminant(&verdict) == std::mem::discriminant(&self.verdict);
        self.against = if same { 0 } else { self.against + 1 };
        let turns = !same && (at_once || self.against >= IN_A_ROW);
        if turns {
            self.verdict = verdict;
            self.against = 0;
            if matches!(self.verdict, Verdict::Broken(_)) {
                self.recent.clear();
                self.slow = false;
            }
        }
        turns || self.slow != was_slow
    }

    /// Judged by the best of the last proofs, once there are enough of them.
    fn pace(&mut self, took: Duration) {
        if self.recent.len() == LOOKED_AT {
            self.recent.pop_front();
        }
        self.recent.push_back(took);
        let best = self.recent.iter().min().copied().unwrap_or_default();
        self.slow = if self.slow {
            best >= FAST
        } else {
            self.recent.len() == LOOKED_AT && best > SLOW
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way() -> Way {
        Way::new(Probe {
            node: "n2".to_owned(),
            address: "192.0.2.2:9465".to_owned(),
            slot: 0,
        })
    }

    fn works() -> Result<Duration, String> {
        Ok(Duration::from_millis(1))
    }

    fn fails(why: &str) -> Result<Duration, String> {
        Err(why.to_owned())
    }

    #[test]
    fn one_proof_makes_a_way_and_one_failure_does_not_break_it() {
        let mut way = way();
        assert!(way.note(works()));
        assert!(!way.note(fails("refused")));
        assert!(!way.note(works()));
        assert!(!way.note(fails("refused")), "they were not in a row");
        assert_eq!(way.verdict, Verdict::Proven);
    }

    #[test]
    fn two_failures_break_a_way_and_two_proofs_mend_it() {
        let mut way = way();
        way.note(works());
        way.note(fails("silence"));
        assert!(way.note(fails("refused")));
        assert_eq!(way.verdict, Verdict::Broken("refused".to_owned()));
        assert!(!way.note(fails("other words")), "it is broken already");
        assert_eq!(way.verdict, Verdict::Broken("refused".to_owned()));
        assert!(!way.note(works()));
        assert!(way.note(works()));
        assert_eq!((way.succeeded, way.failed), (3, 3));
    }

    #[test]
    fn a_way_that_never_worked_is_broken_after_two_failures() {
        let mut way = way();
        assert!(!way.note(fails("refused")));
        assert_eq!(way.verdict, Verdict::Unproven);
        assert!(way.note(fails("refused")));
    }
    #[test]
    fn a_way_is_slow_where_the_best_of_ten_proofs_is_and_fast_after_one_that_is_much_better() {
        let mut way = way();
        let took = |milliseconds| Ok(Duration::from_millis(milliseconds));
        assert!(way.note(took(300)), "proved");
        for _ in 1..LOOKED_AT - 1 {
            assert!(!way.note(took(300)), "too few to tell");
        }
        assert!(way.note(took(300)) && way.slow);
        assert!(!way.note(took(70)) && way.slow, "better, not good");
        assert!(way.note(took(2)) && !way.slow);
        for _ in 0..LOOKED_AT - 1 {
            assert!(!way.note(took(300)), "one of the last ten was fast");
        }
        assert!(way.note(took(300)) && way.slow);
    }

    #[test]
    fn a_way_that_breaks_is_not_slow_and_proves_its_pace_anew() {
        let mut way = way();
        for _ in 0..LOOKED_AT {
            way.note(Ok(Duration::from_secs(1)));
        }
        assert!(way.slow);
        way.note(fails("silence"));
        assert!(way.note(fails("silence")) && !way.slow);
        way.note(Ok(Duration::from_secs(1)));
        way.note(Ok(Duration::from_secs(1)));
        assert_eq!((way.verdict, way.slow), (Verdict::Proven, false));
    }
}

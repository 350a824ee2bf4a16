//! How one way stands: a steady verdict from single proofs. Pure.

use std::time::Duration;

use crds::node::Probe;

/// So many proofs in a row turn a verdict: one alone may be a restart of the other agent.
const IN_A_ROW: u32 = 2;

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
            succeeded: 0,
            failed: 0,
        }
    }

    /// Takes one more proof into account; true where the verdict turns.
    pub(crate) fn note(&mut self, proof: Result<Duration, String>) -> bool {
        let (verdict, at_once) = match proof {
            Ok(took) => {
                self.succeeded += 1;
                self.took = Some(took);
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
        }
        turns
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
}

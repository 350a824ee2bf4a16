//! What was tried of late, so that nobody fights over a setting many times a second, and what is said of
//! each fix. Pure: the clock is a value.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::{FixId, FixReport, Reason};

use super::plan::{self, Change, Step};

/// Between two attempts at one fix.
const PERIOD: Duration = Duration::from_secs(60);

/// The kernel moves much memory in search of hugepages.
const PERIOD_OF_HUGEPAGES: Duration = Duration::from_secs(600);

/// As the schema has it.
const MESSAGE: usize = 256;
const VALUE: usize = 128;

#[derive(Debug)]
struct Attempt {
    at: Duration,
    after: String,
    refused: Option<String>,
}

/// The last attempt at each fix.
#[derive(Debug, Default)]
pub struct Attempts(BTreeMap<FixId, Attempt>);

impl Attempts {
    /// True where it is to be carried out now.
    pub fn is_due(&self, step: &Step, up: Duration) -> bool {
        let last = |id| self.0.get(&id);
        let rested = |last: &Attempt, period| up.saturating_sub(last.at) >= period;
        match step {
            Step::Do(change) => {
                let period = match change.id {
                    FixId::Hugepages => PERIOD_OF_HUGEPAGES,
                    _ => PERIOD,
                };
                last(change.id)
                    .is_none_or(|last| plan::is_other(&last.after, change) || rested(last, period))
            }
            Step::Undo(change) => {
                last(change.id).is_none_or(|last| last.refused.is_none() || rested(last, PERIOD))
            }
            Step::Propose(_) | Step::Stands(_) | Step::Forget(_) | Step::Say { .. } => false,
        }
    }

    /// It was tried.
    pub fn note(&mut self, change: &Change, up: Duration, outcome: Result<(), String>) {
        let attempt = Attempt {
            at: up,
            after: change.after.clone(),
            refused: outcome.err(),
        };
        self.0.insert(change.id, attempt);
    }

    /// Nobody asks for it any more: who asks anew is not told of what was.
    pub fn forget(&mut self, id: FixId) {
        self.0.remove(&id);
    }

    /// What is said of a fix after this look; none where there is nothing to say.
    pub fn report(&self, step: &Step) -> Option<FixReport> {
        match step {
            Step::Propose(change) => {
                let words = "would be changed, were its mode Apply";
                Some(said(change, Reason::FixProposed, words))
            }
            Step::Stands(change) => {
                let words = "changed by the agent, and read back";
                Some(said(change, Reason::FixApplied, words))
            }
            Step::Do(change) => Some(match self.refused(change.id) {
                Some(why) => said(change, Reason::FixRefused, why),
                None => {
                    let words = "changed by the agent, and set back by somebody else";
                    said(change, Reason::FixSetBack, words)
                }
            }),
            Step::Undo(change) => {
                let why = self.refused(change.id)?;
                let words = format!("setting back what stood there before: {why}");
                Some(said(change, Reason::FixRefused, &words))
            }
            Step::Say {
                change,
                reason,
                words,
            } => Some(said(change, *reason, words)),
            Step::Forget(_) => None,
        }
    }

    fn refused(&self, id: FixId) -> Option<&str> {
        self.0.get(&id)?.refused.as_deref()
    }
}

fn said(change: &Change, reason: Reason, words: &str) -> FixReport {
    let Change { id, before, after } = change;
    let cut = |text: &str, most| text.chars().take(most).collect::<String>();
    let message = format!("{}: {words}", id.target());
    FixReport {
        id: *id,
        reason,
        before: cut(before, VALUE),
        after: cut(after, VALUE),
        message: cut(&message, MESSAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::change;
    use super::*;

    const ID: FixId = FixId::MaxMapCount;

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn what_was_refused_or_set_back_is_tried_again_once_a_minute_and_says_so() {
        let mut attempts = Attempts::default();
        let raise = change(ID, "1000", "65530");
        let todo = Step::Do(raise.clone());
        let reason = |attempts: &Attempts| attempts.report(&todo).map(|report| report.reason);
        assert!(attempts.is_due(&todo, at(0)));
        attempts.note(&raise, at(0), Err("EROFS".to_owned()));
        assert!(!attempts.is_due(&todo, at(59)) && attempts.is_due(&todo, at(60)));
        let report = attempts.report(&todo).unwrap();
        assert_eq!(report.reason, Reason::FixRefused);
        assert_eq!(report.message, "vm.max_map_count: EROFS");
        attempts.note(&raise, at(60), Ok(()));
        assert_eq!(reason(&attempts), Some(Reason::FixSetBack));
        attempts.forget(ID);
        assert!(attempts.is_due(&todo, at(61)));
    }

    #[test]
    fn what_could_not_be_undone_is_told_and_what_was_undone_is_not() {
        let mut attempts = Attempts::default();
        let back = change(ID, "65530", "1000");
        let undo = Step::Undo(back.clone());
        assert_eq!(attempts.report(&undo), None);
        attempts.note(&back, at(0), Ok(()));
        assert!(
            attempts.is_due(&undo, at(1)),
            "what was just done need not rest"
        );
        attempts.note(&back, at(0), Err("e".repeat(999)));
        let report = attempts.report(&undo).unwrap();
        assert_eq!(report.reason, Reason::FixRefused);
        assert_eq!(report.message.len(), MESSAGE);
        assert!(!attempts.is_due(&undo, at(59)) && attempts.is_due(&undo, at(60)));
    }

    #[test]
    fn the_kernel_is_seldom_asked_for_the_same_hugepages_and_at_once_for_others() {
        let mut attempts = Attempts::default();
        let asked = |pages: u32| {
            change(
                FixId::Hugepages,
                "2Mi: node0 0",
                &format!("2Mi: node0 {pages}"),
            )
        };
        attempts.note(&asked(512), at(0), Err("no such memory".to_owned()));
        assert!(!attempts.is_due(&Step::Do(asked(512)), at(599)));
        assert!(attempts.is_due(&Step::Do(asked(512)), at(600)));
        assert!(attempts.is_due(&Step::Do(asked(256)), at(1)));
        let waits = Step::Say {
            change: asked(512),
            reason: Reason::PodRequestsUnknown,
            words: "waits".to_owned(),
        };
        assert!(!attempts.is_due(&waits, at(9999)));
        let report = attempts.report(&waits).unwrap();
        assert_eq!(
            (report.reason, report.message.as_str()),
            (Reason::PodRequestsUnknown, "hugepages: waits")
        );
    }
}

//! The last attempt at each fix: when to retry, and what to report. Pure: the clock is a value.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::text::clip_chars;
use crds::{FixId, FixReport, Reason};

use super::plan;
use super::step::{Change, Step};

/// Least time between two attempts at one fix.
const PERIOD: Duration = Duration::from_secs(60);

/// Least time between two attempts at hugepages: the kernel moves much memory to find them.
const HUGEPAGES_PERIOD: Duration = Duration::from_secs(600);

/// Most characters; the schema has the same limits.
const MESSAGE: usize = 256;
const VALUE: usize = 128;

#[derive(Debug)]
struct Attempt {
    at: Duration,
    after: String,
    error: Option<String>,
}

/// The last attempt at each fix.
#[derive(Debug, Default)]
pub struct Attempts(BTreeMap<FixId, Attempt>);

impl Attempts {
    /// True where the step is to be applied now.
    pub fn is_due(&self, step: &Step, up: Duration) -> bool {
        let last = |id| self.0.get(&id);
        let waited = |last: &Attempt, period| up.saturating_sub(last.at) >= period;
        match step {
            Step::Apply(change) => {
                let period = match change.id {
                    FixId::Hugepages => HUGEPAGES_PERIOD,
                    _ => PERIOD,
                };
                last(change.id).is_none_or(|last| {
                    plan::differs_from_attempt(&last.after, change) || waited(last, period)
                })
            }
            Step::Revert(change) => {
                last(change.id).is_none_or(|last| last.error.is_none() || waited(last, PERIOD))
            }
            Step::Propose(_) | Step::Applied(_) | Step::Forget(_) | Step::Report { .. } => false,
        }
    }

    /// Records an attempt.
    pub fn note(&mut self, change: &Change, up: Duration, result: Result<(), String>) {
        let attempt = Attempt {
            at: up,
            after: change.after.clone(),
            error: result.err(),
        };
        self.0.insert(change.id, attempt);
    }

    /// Forgets the attempts at a fix that is no longer planned.
    pub fn forget(&mut self, id: FixId) {
        self.0.remove(&id);
    }

    /// The report of a step; none where there is nothing to report.
    pub fn report(&self, step: &Step) -> Option<FixReport> {
        match step {
            Step::Propose(change) => {
                let message = "would be changed in mode Apply";
                Some(fix_report(change, Reason::FixProposed, message))
            }
            Step::Applied(change) => {
                let message = "changed by the agent and verified";
                Some(fix_report(change, Reason::FixApplied, message))
            }
            Step::Apply(change) => Some(match self.error(change.id) {
                Some(error) => fix_report(change, Reason::FixRefused, error),
                None => {
                    let message = "changed by the agent, then reverted by somebody else";
                    fix_report(change, Reason::FixReverted, message)
                }
            }),
            Step::Revert(change) => {
                let error = self.error(change.id)?;
                let message = format!("cannot revert to the previous value: {error}");
                Some(fix_report(change, Reason::FixRefused, &message))
            }
            Step::Report {
                change,
                reason,
                message,
            } => Some(fix_report(change, *reason, message)),
            Step::Forget(_) => None,
        }
    }

    fn error(&self, id: FixId) -> Option<&str> {
        self.0.get(&id)?.error.as_deref()
    }
}

fn fix_report(change: &Change, reason: Reason, message: &str) -> FixReport {
    let Change { id, before, after } = change;
    let message = format!("{}: {message}", id.target());
    FixReport {
        id: (*id).into(),
        reason: reason.into(),
        before: clip_chars(before, VALUE),
        after: clip_chars(after, VALUE),
        message: clip_chars(&message, MESSAGE),
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
    fn a_refused_or_reverted_fix_is_retried_once_a_minute_and_reported() {
        let mut attempts = Attempts::default();
        let raise = change(ID, "1000", "65530");
        let todo = Step::Apply(raise.clone());
        let reason = |attempts: &Attempts| attempts.report(&todo)?.reason.known();
        assert!(attempts.is_due(&todo, at(0)));
        attempts.note(&raise, at(0), Err("EROFS".to_owned()));
        assert!(!attempts.is_due(&todo, at(59)) && attempts.is_due(&todo, at(60)));
        let report = attempts.report(&todo).unwrap();
        assert_eq!(report.reason, Reason::FixRefused);
        assert_eq!(report.message, "vm.max_map_count: EROFS");
        attempts.note(&raise, at(60), Ok(()));
        assert_eq!(reason(&attempts), Some(Reason::FixReverted));
        attempts.forget(ID);
        assert!(attempts.is_due(&todo, at(61)));
    }

    #[test]
    fn a_failed_revert_is_reported_and_a_successful_one_is_not() {
        let mut attempts = Attempts::default();
        let back = change(ID, "65530", "1000");
        let revert = Step::Revert(back.clone());
        assert_eq!(attempts.report(&revert), None);
        attempts.note(&back, at(0), Ok(()));
        assert!(
            attempts.is_due(&revert, at(1)),
            "a revert need not wait after a successful change"
        );
        attempts.note(&back, at(0), Err("e".repeat(999)));
        let report = attempts.report(&revert).unwrap();
        assert_eq!(report.reason, Reason::FixRefused);
        assert_eq!(report.message.len(), MESSAGE);
        assert!(!attempts.is_due(&revert, at(59)) && attempts.is_due(&revert, at(60)));
    }

    #[test]
    fn the_same_hugepages_are_retried_after_ten_minutes_and_others_at_once() {
        let mut attempts = Attempts::default();
        let request = |pages: u32| {
            change(
                FixId::Hugepages,
                "2Mi: node0 0",
                &format!("2Mi: node0 {pages}"),
            )
        };
        attempts.note(&request(512), at(0), Err("no such memory".to_owned()));
        assert!(!attempts.is_due(&Step::Apply(request(512)), at(599)));
        assert!(attempts.is_due(&Step::Apply(request(512)), at(600)));
        assert!(attempts.is_due(&Step::Apply(request(256)), at(1)));
        let waits = Step::Report {
            change: request(512),
            reason: Reason::PodRequestsUnknown,
            message: "waits".to_owned(),
        };
        assert!(!attempts.is_due(&waits, at(9999)));
        let report = attempts.report(&waits).unwrap();
        assert_eq!(
            (report.reason.known(), report.message.as_str()),
            (Some(Reason::PodRequestsUnknown), "hugepages: waits")
        );
    }
}

//! Applies and reverts the fixes that the policy requests, whenever the snapshot changes, and reports their state. Changes
//! nothing before the operator has written the node's spec.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use crds::{FixId, FixReport};
use tokio::process::Child;
use tokio::time::Instant;

use crate::facts::inbox::{Inbox, Inputs};
use crate::process::child::{self, ChildError};
use crate::publish::report::Reporter;
use crate::watched;
use checks::fixes::apply::ApplyResult;
use checks::fixes::attempts::Attempts;
use checks::fixes::journal::Journal;
use checks::fixes::plan::{self, plan};
use checks::fixes::step::{Change, FixRequest, Step};
use host::Snapshot;
use host::live::Node;

/// Deadline of one change; loading a module may wait for its device.
const DEADLINE: Duration = Duration::from_secs(20);

/// Deadline of a change of hugepages. The child gives up earlier and frees the pages that it allocated.
const HUGEPAGES_DEADLINE: Duration = Duration::from_secs(180);

/// Readings of the hardware to skip after a change: they may have started before it.
const STALE_READINGS: u64 = 2;

struct Fixing {
    node: Node,
    journal: Journal,
    attempts: Attempts,
    /// Attempts that have not ended: the kernel may hold a modprobe. None follows them meanwhile.
    late: BTreeMap<FixId, Child>,
    began: Instant,
}

/// Applies fixes until the snapshots or the assignments end.
pub(crate) async fn run(
    node: Node,
    journal: Journal,
    (mut snapshots, mut assigned): Inputs,
    reporter: Reporter,
    inbox: Inbox,
) {
    let mut fixing = Fixing {
        node,
        journal,
        attempts: Attempts::default(),
        late: BTreeMap::new(),
        began: Instant::now(),
    };
    let mut fresh_from = 0;
    loop {
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = assigned.changed() => if changed.is_err() { return },
        }
        let snapshot = snapshots.borrow_and_update().clone();
        let object = assigned.borrow_and_update().node.clone();
        let (Some(snapshot), Some(object)) = (snapshot, object) else {
            continue;
        };
        if snapshot.reading < fresh_from {
            continue;
        }
        let request = FixRequest {
            node: object.metadata.name.as_deref().unwrap_or_default(),
            policy: object.spec.policy.as_ref(),
            room: object.spec.headroom.as_ref(),
        };
        let (reports, changed) = fixing.fix(&snapshot, request).await;
        if changed {
            fresh_from = snapshot.reading + STALE_READINGS;
        }
        reporter.set(|report| &mut report.fixes, Some(reports.clone()));
        watched::set(&inbox, |observed| &mut observed.fixes, reports);
    }
}

impl Fixing {
    /// Carries out the steps that are due. Returns the state of each fix, and whether a change was attempted.
    async fn fix(
        &mut self,
        snapshot: &Snapshot,
        request: FixRequest<'_>,
    ) -> (Vec<FixReport>, bool) {
        let steps = plan(snapshot, &request, self.journal.changes());
        for id in FixId::ALL {
            if !steps.iter().any(|step| fix_of(step) == Some(*id)) {
                self.attempts.forget(*id);
            }
        }
        let up = self.began.elapsed();
        self.late
            .retain(|_, child| matches!(child.try_wait(), Ok(None)));
        let due = due(&steps, &self.attempts, up, |id| self.late.contains_key(&id));
        for step in &steps {
            if let Step::Forget(id) = step {
                self.restore_journal(*id, None);
            }
        }
        let attempted = !due.is_empty();
        let mut reports = Vec::new();
        for step in steps {
            let step = match due.contains(&step) {
                true => self.carry_out(step, &request, up).await,
                false => Some(step),
            };
            reports.extend(step.and_then(|step| self.attempts.report(&step)));
        }
        (reports, attempted)
    }

    /// Carries out a step and returns the step to report.
    async fn carry_out(
        &mut self,
        step: Step,
        request: &FixRequest<'_>,
        up: Duration,
    ) -> Option<Step> {
        let (Step::Apply(change) | Step::Revert(change)) = &step else {
            return Some(step);
        };
        let (id, applying) = (change.id, matches!(step, Step::Apply(_)));
        let before = self.journal.changes().get(&id).cloned();
        // The previous value is saved first, otherwise the change could not be reverted.
        let entry = plan::journal_entry(before.as_ref(), change);
        let saved = if applying {
            self.journal.add([entry.clone()])
        } else {
            Ok(())
        };
        let outcome = match saved {
            Ok(()) => self.apply(change).await,
            Err(error) => ApplyResult::Refused(format!("cannot save the present value: {error}")),
        };
        tracing::info!(fix = %id, target = id.target(), from = change.before, to = change.after, ?outcome,
            "{}", if applying { "applied a fix" } else { "reverted a fix" });
        match outcome {
            ApplyResult::Done if applying => {
                self.attempts.note(change, up, Ok(()));
                Some(plan::after_apply(entry, request))
            }
            ApplyResult::Done => {
                let rest = before.and_then(|done| plan::remaining(&done, change));
                let (rest, step) = rest.unzip();
                self.restore_journal(id, rest);
                self.attempts.forget(id);
                step
            }
            // The next facts contain the present value.
            ApplyResult::Conflict => {
                self.restore_journal(id, before);
                None
            }
            ApplyResult::Refused(why) => {
                // A killed child may have left some hugepages: the next attempt needs the entry.
                if !(applying && id == FixId::Hugepages) {
                    self.restore_journal(id, before);
                }
                self.attempts.note(change, up, Err(why));
                Some(step)
            }
        }
    }

    async fn apply(&mut self, change: &Change) -> ApplyResult {
        match apply_in_child(&self.node, change).await {
            Ok(result) => result,
            Err((error, child)) => {
                let late = matches!(error, ChildError::Timeout(_));
                let rest = if late {
                    "; it is not tried again until the process ends"
                } else {
                    ""
                };
                // One that ends leaves at the next step.
                self.late.extend(child.map(|child| (change.id, child)));
                ApplyResult::Refused(format!("{error}{rest}"))
            }
        }
    }

    fn restore_journal(&mut self, id: FixId, before: Option<Change>) {
        if let Err(error) = self.journal.restore(id, before) {
            tracing::warn!(fix = %id, %error, "cannot update the journal of fixes");
        }
    }
}

/// The steps to carry out now: none of a fix whose last attempt has not ended.
fn due(
    steps: &[Step],
    attempts: &Attempts,
    up: Duration,
    is_late: impl Fn(FixId) -> bool,
) -> Vec<Step> {
    let due = steps.iter().filter(|step| attempts.is_due(step, up));
    due.filter(|step| fix_of(step).is_none_or(|id| !is_late(id)))
        .cloned()
        .collect()
}

fn fix_of(step: &Step) -> Option<FixId> {
    match step {
        Step::Apply(change)
        | Step::Revert(change)
        | Step::Applied(change)
        | Step::Report { change, .. } => Some(change.id),
        Step::Propose(_) | Step::Forget(_) => None,
    }
}

/// The result of a change, or why there is none, with the child if it has not ended.
async fn apply_in_child(
    node: &Node,
    change: &Change,
) -> Result<ApplyResult, (ChildError, Option<Child>)> {
    let changes = match serde_json::to_string(&[change]) {
        Ok(changes) => changes,
        Err(error) => {
            let message = format!("cannot encode the change: {error}");
            return Ok(ApplyResult::Refused(message));
        }
    };
    let mut arguments: Vec<OsString> = vec!["fix".into()];
    arguments.extend(child::node_arguments(node));
    arguments.extend(["--".into(), changes.into()]);
    let deadline = match change.id {
        FixId::Hugepages => HUGEPAGES_DEADLINE,
        _ => DEADLINE,
    };
    let results = child::run_self_to_end::<Vec<(FixId, ApplyResult)>>(arguments, deadline).await?;
    let refused = || ApplyResult::Refused("the child process: no result".to_owned());
    let first = results.into_iter().next();
    Ok(first.map_or_else(refused, |(_, result)| result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_is_not_attempted_again_while_its_last_attempt_runs() {
        let step = |id| {
            Step::Apply(Change {
                id,
                before: "1".to_owned(),
                after: "2".to_owned(),
            })
        };
        let steps = [step(FixId::MaxMapCount), step(FixId::Hugepages)];
        let due = |late: Option<FixId>| {
            due(&steps, &Attempts::default(), Duration::ZERO, |id| {
                Some(id) == late
            })
        };
        assert_eq!(due(None), steps);
        assert_eq!(due(Some(FixId::MaxMapCount)), steps[1..]);
    }
}

//! Carries out what policy and plan ask, whenever the node was looked at, and says on the board what came
//! of it. While nobody knows what the operator wants, nothing is done and nothing undone.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crds::{FixId, FixReport};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::Instant;

use super::assignments::Assignments;
use super::hardware;
use super::report::Board;
use crate::fixes::attempts::Attempts;
use crate::fixes::hand::Outcome;
use crate::fixes::kept::Kept;
use crate::fixes::plan::{self, Asked, Change, Step, plan};
use crate::host::Facts;
use crate::host::round::Node;

/// How long all changes of one look may take; a module may wait for its device.
const DEADLINE: Duration = Duration::from_secs(20);

/// The same for hugepages: the hand gives up before, and gives back what it got.
const DEADLINE_OF_HUGEPAGES: Duration = Duration::from_secs(180);

/// A look that had begun before a change tells what stood there before.
const STALE_LOOKS: u8 = 2;

/// What is said of each fix.
pub(crate) type Said = watch::Receiver<Vec<FixReport>>;

struct Fixing {
    node: Node,
    kept: Kept,
    attempts: Attempts,
    began: Instant,
}

/// Works for as long as anybody looks.
pub(crate) fn start(
    node: Node,
    (state, boot_id): (&Path, &str),
    known: hardware::Known,
    assigned: watch::Receiver<Assignments>,
    board: Board,
) -> Said {
    let (tell, said) = watch::channel(Vec::new());
    let fixing = Fixing {
        node,
        kept: Kept::open(state, boot_id),
        attempts: Attempts::default(),
        began: Instant::now(),
    };
    tokio::spawn(fixing.keep(known, assigned, board, tell));
    said
}

impl Fixing {
    async fn keep(
        mut self,
        mut known: hardware::Known,
        mut assigned: watch::Receiver<Assignments>,
        board: Board,
        tell: watch::Sender<Vec<FixReport>>,
    ) {
        let mut stale = 0;
        loop {
            tokio::select! {
                changed = known.changed() => match changed {
                    Ok(()) => stale = u8::saturating_sub(stale, 1),
                    Err(_) => return,
                },
                changed = assigned.changed() => if changed.is_err() { return },
            }
            let facts: Option<Arc<Facts>> = known.borrow_and_update().clone();
            let object = assigned.borrow_and_update().node.clone();
            let (Some(facts), Some(object)) = (facts, object) else {
                continue;
            };
            if stale > 0 {
                continue;
            }
            let asked = Asked {
                node: object.metadata.name.as_deref().unwrap_or_default(),
                policy: object.spec.policy.as_ref(),
                room: object.spec.room.as_ref(),
            };
            let (reports, changed) = self.look(&facts, asked).await;
            if changed {
                stale = STALE_LOOKS;
            }
            board.set_fixes(reports.clone());
            tell.send_if_modified(|said| {
                let news = *said != reports;
                *said = reports;
                news
            });
        }
    }

    /// What is to be said, and whether anything was touched.
    async fn look(&mut self, facts: &Facts, asked: Asked<'_>) -> (Vec<FixReport>, bool) {
        let steps = plan(facts, &asked, self.kept.changes());
        for id in FixId::ALL {
            if !steps.iter().any(|step| touches(step) == Some(*id)) {
                self.attempts.forget(*id);
            }
        }
        let up = self.began.elapsed();
        let due: Vec<Step> = steps
            .iter()
            .filter(|step| self.attempts.is_due(step, up))
            .cloned()
            .collect();
        for step in &steps {
            if let Step::Forget(id) = step {
                self.settle(*id, None);
            }
        }
        let touched = !due.is_empty();
        let mut reports = Vec::new();
        for step in steps {
            let step = match due.contains(&step) {
                true => self.carry_out(step, &asked, up).await,
                false => Some(step),
            };
            reports.extend(step.and_then(|step| self.attempts.report(&step)));
        }
        (reports, touched)
    }

    /// What there is to say of it afterwards.
    async fn carry_out(&mut self, step: Step, asked: &Asked<'_>, up: Duration) -> Option<Step> {
        let (Step::Do(change) | Step::Undo(change)) = &step else {
            return Some(step);
        };
        let (id, doing) = (change.id, matches!(step, Step::Do(_)));
        let before = self.kept.changes().get(&id).cloned();
        // First what stood there, or nobody could undo it.
        let kept = plan::kept(before.as_ref(), change);
        let noted = if doing {
            self.kept.add([kept.clone()])
        } else {
            Ok(())
        };
        let outcome = match noted {
            Ok(()) => in_a_child(&self.node, change).await,
            Err(error) => {
                Outcome::Refused(format!("what stands there now could not be kept: {error}"))
            }
        };
        tracing::info!(fix = %id, target = id.target(), from = change.before, to = change.after, ?outcome,
            "{}", if doing { "setting right" } else { "setting back" });
        match outcome {
            Outcome::Done if doing => {
                self.attempts.note(change, up, Ok(()));
                Some(plan::standing(kept, asked))
            }
            Outcome::Done => {
                let rest = before.and_then(|done| plan::rest(&done, change));
                let (rest, step) = rest.unzip();
                self.settle(id, rest);
                self.attempts.forget(id);
                step
            }
            // The next look tells what stands there now.
            Outcome::Moved => {
                self.settle(id, before);
                None
            }
            Outcome::Refused(why) => {
                // A child that was cut off may have left a part of them, which the next attempt is to know.
                if !(doing && id == FixId::Hugepages) {
                    self.settle(id, before);
                }
                self.attempts.note(change, up, Err(why));
                Some(step)
            }
        }
    }

    fn settle(&mut self, id: FixId, before: Option<Change>) {
        if let Err(error) = self.kept.restore(id, before) {
            tracing::warn!(fix = %id, %error, "what is kept of a fix is older than the fix");
        }
    }
}

fn touches(step: &Step) -> Option<FixId> {
    match step {
        Step::Do(change) | Step::Undo(change) | Step::Stands(change) | Step::Say { change, .. } => {
            Some(change.id)
        }
        Step::Propose(_) | Step::Forget(_) => None,
    }
}

async fn in_a_child(node: &Node, change: &Change) -> Outcome {
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        Outcome::Refused(format!("{what} of the agent's: {error}"))
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return refused("finding the program", &error),
    };
    let order = match serde_json::to_string(&[change]) {
        Ok(order) => order,
        Err(error) => return refused("writing the order", &error),
    };
    let mut command = Command::new(program);
    command.arg("fix").arg("--root").arg(&node.root);
    if let Some(network) = &node.network {
        command.arg("--network").arg(network);
    }
    command
        .arg("--")
        .arg(order)
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let deadline = match change.id {
        FixId::Hugepages => DEADLINE_OF_HUGEPAGES,
        _ => DEADLINE,
    };
    let said = match tokio::time::timeout(deadline, command.output()).await {
        Ok(Ok(said)) => said,
        Ok(Err(error)) => return refused("starting a child", &error),
        Err(_) => return refused("a child", &format!("no answer in {deadline:?}")),
    };
    let outcomes: Vec<(FixId, Outcome)> = match serde_json::from_slice(&said.stdout) {
        Ok(outcomes) => outcomes,
        Err(error) => return refused("understanding a child", &error),
    };
    match outcomes.into_iter().next() {
        Some((_, outcome)) => outcome,
        None => refused("a child", &"it said nothing"),
    }
}

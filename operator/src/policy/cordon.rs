//! Which nodes are cordoned for their sick RDMA devices, which no longer, and which have to wait. Pure.
//!
//! ```text
//! well --(as the policy says, for so long; there is room; fewer than half are sick)--> cordoned, repair asked for
//! cordoned --(no longer so, or no policy asks)--> well
//! cordoned --(uncordoned by a person)--> left alone until it is well
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crds::node::DeviceHealth;
use crds::policy::{CordonWhen, Repair, SickDevices};
use crds::{ConditionType, Finding, Reason};
use jiff::Timestamp;

use super::verdict::some;

/// What is known of one node.
#[derive(Clone, Debug, Default)]
pub struct Patient {
    pub node: String,
    /// Name of the policy that holds there, and what it asks; none where it asks nothing.
    pub rule: Option<(String, SickDevices)>,
    /// What its agent says; none where that cannot be believed now.
    pub devices: Option<DeviceHealth>,
    /// For how long they have been as the policy says.
    pub ailing: Duration,
    /// It takes no new pods, whoever wants that.
    pub unschedulable: bool,
    /// It has our mark.
    pub cordoned: bool,
    /// What repair it is marked with.
    pub requested: Option<String>,
}

/// What is to be done to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cordoned and marked.
    Cordon { why: String, repair: Option<String> },
    /// Another repair is asked for, or none.
    Request(Option<String>),
    /// Uncordoned, and no longer marked.
    Release,
}

/// What follows for all nodes.
#[derive(Debug, Default)]
pub struct Plan {
    /// By node.
    pub steps: Vec<(String, Step)>,
    /// What each policy, by name, says of it.
    pub said: BTreeMap<String, Finding>,
    /// After this a node that is not cordoned yet may be.
    pub again: Option<Duration>,
}

/// Whether a node's devices are as the policy says; none where nobody knows, which is also while its driver
/// is loaded anew.
pub fn meets(asked: &SickDevices, devices: Option<&DeviceHealth>) -> Option<bool> {
    let devices = devices.filter(|devices| devices.known > 0)?;
    Some(match asked.cordon_when {
        CordonWhen::AllAreSick => devices.sick >= devices.known,
        CordonWhen::AnyIsSick => devices.sick > 0,
    })
}

/// Decides for all nodes at once.
pub fn plan(patients: &[Patient], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut tallies: BTreeMap<&str, Tally<'_>> = BTreeMap::new();
    for patient in patients {
        let step = match &patient.rule {
            Some((policy, asked)) => {
                let tally = tallies.entry(policy).or_insert_with(|| Tally::of(asked));
                tally.note(patient)
            }
            None => patient.cordoned.then_some(Step::Release),
        };
        plan.steps
            .extend(step.map(|step| (patient.node.clone(), step)));
    }
    for (policy, tally) in tallies {
        tally.decide(policy, now, &mut plan);
    }
    plan
}

/// One policy's nodes.
struct Tally<'a> {
    asked: &'a SickDevices,
    /// Those whose devices are known, and those with our mark.
    nodes: usize,
    sick: usize,
    cordoned: usize,
    candidates: Vec<&'a Patient>,
}

impl<'a> Tally<'a> {
    fn of(asked: &'a SickDevices) -> Self {
        Self {
            asked,
            nodes: 0,
            sick: 0,
            cordoned: 0,
            candidates: Vec::new(),
        }
    }

    /// Counts a node in; what is to be done to it whatever becomes of the others.
    fn note(&mut self, patient: &'a Patient) -> Option<Step> {
        let meets = meets(self.asked, patient.devices.as_ref());
        self.nodes += usize::from(meets.is_some() || patient.cordoned);
        match meets {
            Some(false) => return patient.cordoned.then_some(Step::Release),
            None if !patient.cordoned => return None,
            // What was known last holds.
            Some(true) | None => self.sick += 1,
        }
        match (patient.cordoned, patient.unschedulable) {
            (true, true) => {
                self.cordoned += 1;
                requested_otherwise(patient, self.asked.repair)
            }
            // A person has taken it back: it is theirs until it is well.
            (true, false) => requested_otherwise(patient, None),
            // A person's.
            (false, true) => None,
            (false, false) => {
                self.candidates.push(patient);
                None
            }
        }
    }

    fn decide(self, policy: &str, now: Timestamp, plan: &mut Plan) {
        let Self {
            asked, nodes, sick, ..
        } = self;
        let after = Duration::from_secs(asked.after_seconds.into());
        let (mut due, early): (Vec<&Patient>, Vec<&Patient>) = self
            .candidates
            .into_iter()
            .partition(|patient| patient.ailing >= after);
        let next = early.iter().map(|patient| after - patient.ailing).min();
        plan.again = plan.again.into_iter().chain(next).min();
        // Who was chosen a moment ago, which may not be seen yet, is chosen again.
        due.sort_by(|one, other| {
            let longer = other.ailing.cmp(&one.ailing);
            longer.then_with(|| one.node.cmp(&other.node))
        });
        let most = sick * 2 > nodes;
        let max = usize::try_from(asked.max_nodes).unwrap_or(usize::MAX);
        let room = match most {
            true => 0,
            false => max.saturating_sub(self.cordoned),
        };
        let waiting = due.split_off(room.min(due.len()));
        let cordoned = self.cordoned + due.len();
        for patient in due {
            let step = Step::Cordon {
                why: why(patient, now),
                repair: asked.repair.map(|repair| request(repair, patient)),
            };
            plan.steps.push((patient.node.clone(), step));
        }
        let waiting: BTreeSet<String> = waiting.iter().map(|one| one.node.clone()).collect();
        let stand = format!("{cordoned} of at most {max} nodes are cordoned");
        let kind = ConditionType::SickNodesCordoned;
        let finding = if waiting.is_empty() {
            Finding::new(kind, true, Reason::AsExpected, stand)
        } else if most {
            let words = format!(
                "not cordoned: {}; {sick} of {nodes} nodes have sick RDMA devices, and {stand}",
                some(&waiting)
            );
            Finding::new(kind, false, Reason::MostNodesSick, words)
        } else {
            let words = format!("not cordoned: {}; {stand}", some(&waiting));
            Finding::new(kind, false, Reason::CordonBudgetSpent, words)
        };
        plan.said.insert(policy.to_owned(), finding);
    }
}

/// A request that somebody has taken away was heard, and is not made twice for one cordon.
fn requested_otherwise(patient: &Patient, repair: Option<Repair>) -> Option<Step> {
    let standing = patient.requested.as_ref()?;
    let Some(repair) = repair else {
        return Some(Step::Request(None));
    };
    let same = standing.split(':').next() == Some(repair.as_str());
    (!same && patient.devices.is_some()).then(|| Step::Request(Some(request(repair, patient))))
}

/// `Reboot: mlx5_0 MkeyExhausted, mlx5_1 DeviceHung`
fn request(repair: Repair, patient: &Patient) -> String {
    let named = patient.devices.iter().flat_map(|devices| &devices.named);
    let named: Vec<String> = named
        .map(|device| format!("{} {}", device.name, device.reason))
        .collect();
    format!("{}: {}", repair.as_str(), named.join(", "))
}

/// `MkeyExhausted since 2026-01-01T00:00:00Z: mlx5_0, mlx5_1`
fn why(patient: &Patient, now: Timestamp) -> String {
    let named = patient.devices.iter().flat_map(|devices| &devices.named);
    let names: Vec<&str> = named.clone().map(|device| device.name.as_str()).collect();
    let reason = named
        .map(|device| device.reason)
        .next()
        .unwrap_or(Reason::DeviceSick);
    let ailing = i64::try_from(patient.ailing.as_secs()).unwrap_or(i64::MAX);
    let since = now.as_second().saturating_sub(ailing);
    let since = Timestamp::from_second(since).unwrap_or(now);
    format!("{reason} since {since}: {}", names.join(", "))
}

#[cfg(test)]
mod tests;

//! Decides which nodes to cordon for unhealthy RDMA devices, which to uncordon, and which must wait. Pure.
//!
//! ```text
//! healthy --(unhealthy for afterSeconds; below maxNodes; at most half are unhealthy)--> cordoned, repair requested
//! cordoned --(healthy again, or no policy requires it)--> healthy
//! cordoned --(manually uncordoned)--> not touched until it is healthy
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crds::node::DeviceHealth;
use crds::policy::{CordonWhen, Repair, UnhealthyDevicesRule};
use crds::text::first_names;
use crds::{ConditionType, NewCondition, Reason, Word};
use jiff::Timestamp;

use super::status::MAX_NAMES;

/// One node with a rule or with our cordon.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    pub node: String,
    /// Name and rule of the policy that applies; none if it has no rule.
    pub rule: Option<(String, UnhealthyDevicesRule)>,
    /// Reported by its agent; none if the report is stale.
    pub devices: Option<DeviceHealth>,
    /// How long the devices have matched the rule.
    pub unhealthy_for: Duration,
    /// Cordoned, by the operator or manually.
    pub unschedulable: bool,
    /// It has our annotation.
    pub cordoned: bool,
    /// Value of the repair annotation.
    pub requested: Option<String>,
}

/// An action on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Cordon and annotate it.
    Cordon { why: String, repair: Option<String> },
    /// Change the requested repair, or remove it.
    SetRepair(Option<String>),
    /// Uncordon it and remove the annotations.
    Uncordon,
}

/// The actions for all nodes.
#[derive(Debug, Default)]
pub struct CordonPlan {
    /// By node.
    pub steps: Vec<(String, Step)>,
    /// The condition for each policy, by name.
    pub conditions: BTreeMap<String, NewCondition>,
    /// Time until another node may be due.
    pub recheck: Option<Duration>,
}

/// Whether a node's devices match the rule; none if unknown, also while its driver reloads.
pub fn meets(rule: &UnhealthyDevicesRule, devices: Option<&DeviceHealth>) -> Option<bool> {
    let devices = devices.filter(|devices| devices.known > 0)?;
    Some(match rule.cordon_when {
        CordonWhen::AllUnhealthy => devices.unhealthy >= devices.known,
        CordonWhen::AnyUnhealthy => devices.unhealthy > 0,
    })
}

/// Why no node may be changed at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub reason: Reason,
    pub message: String,
}

/// Decides for all nodes together. With `hold` no node is changed, and the conditions name the nodes that wait for it.
pub fn plan(candidates: &[Candidate], hold: Option<&Hold>, now: Timestamp) -> CordonPlan {
    let mut plan = CordonPlan::default();
    let mut tallies: BTreeMap<&str, Tally<'_>> = BTreeMap::new();
    for candidate in candidates {
        let step = match &candidate.rule {
            Some((policy, rule)) => {
                let tally = tallies.entry(policy).or_insert_with(|| Tally::of(rule));
                tally.note(candidate)
            }
            None => candidate.cordoned.then_some(Step::Uncordon),
        };
        plan.steps
            .extend(step.map(|step| (candidate.node.clone(), step)));
    }
    for (policy, tally) in tallies {
        tally.decide(policy, hold, now, &mut plan);
    }
    if hold.is_some() {
        plan.steps.clear();
    }
    plan
}

/// One policy's nodes.
struct Tally<'a> {
    rule: &'a UnhealthyDevicesRule,
    /// Nodes with known devices, and nodes that we cordoned.
    nodes: usize,
    unhealthy: usize,
    cordoned: usize,
    candidates: Vec<&'a Candidate>,
}

impl<'a> Tally<'a> {
    fn of(rule: &'a UnhealthyDevicesRule) -> Self {
        Self {
            rule,
            nodes: 0,
            unhealthy: 0,
            cordoned: 0,
            candidates: Vec::new(),
        }
    }

    /// Counts a node; returns the action that does not depend on other nodes.
    fn note(&mut self, candidate: &'a Candidate) -> Option<Step> {
        let meets = meets(self.rule, candidate.devices.as_ref());
        self.nodes += usize::from(meets.is_some() || candidate.cordoned);
        match meets {
            Some(false) => return candidate.cordoned.then_some(Step::Uncordon),
            None if !candidate.cordoned => return None,
            // The last known state applies.
            Some(true) | None => self.unhealthy += 1,
        }
        match (candidate.cordoned, candidate.unschedulable) {
            (true, true) => {
                self.cordoned += 1;
                updated_request(candidate, self.rule.repair)
            }
            // Manually uncordoned: not cordoned again until it is healthy.
            (true, false) => updated_request(candidate, None),
            // Manually cordoned.
            (false, true) => None,
            (false, false) => {
                self.candidates.push(candidate);
                None
            }
        }
    }

    fn decide(self, policy: &str, hold: Option<&Hold>, now: Timestamp, plan: &mut CordonPlan) {
        let Self {
            rule,
            nodes,
            unhealthy,
            ..
        } = self;
        let after = Duration::from_secs(rule.after_seconds.into());
        let (mut due, early): (Vec<&Candidate>, Vec<&Candidate>) = self
            .candidates
            .into_iter()
            .partition(|candidate| candidate.unhealthy_for >= after);
        let next = early
            .iter()
            .map(|candidate| after - candidate.unhealthy_for)
            .min();
        plan.recheck = plan.recheck.into_iter().chain(next).min();
        // A stable order: a node chosen just now may not show it yet and is chosen again.
        due.sort_by(|one, other| {
            let longer = other.unhealthy_for.cmp(&one.unhealthy_for);
            longer.then_with(|| one.node.cmp(&other.node))
        });
        let most = unhealthy * 2 > nodes;
        let max = usize::try_from(rule.max_nodes).unwrap_or(usize::MAX);
        let allowed = match most || hold.is_some() {
            true => 0,
            false => max.saturating_sub(self.cordoned),
        };
        let waiting = due.split_off(allowed.min(due.len()));
        let cordoned = self.cordoned + due.len();
        for candidate in due {
            let step = Step::Cordon {
                why: why(candidate, now),
                repair: rule.repair.map(|repair| repair_request(repair, candidate)),
            };
            plan.steps.push((candidate.node.clone(), step));
        }
        let waiting: BTreeSet<String> = waiting.iter().map(|one| one.node.clone()).collect();
        let count = format!("{cordoned} of at most {max} nodes are cordoned");
        let kind = ConditionType::UnhealthyNodesCordoned;
        let finding = if waiting.is_empty() {
            NewCondition::new(kind, true, Reason::AsExpected, count)
        } else if let Some(hold) = hold {
            let message = format!(
                "not cordoned: {}; {}",
                first_names(&waiting, MAX_NAMES),
                hold.message
            );
            NewCondition::new(kind, false, hold.reason, message)
        } else if most {
            let message = format!(
                "not cordoned: {}; {unhealthy} of {nodes} nodes have unhealthy RDMA devices, and {count}",
                first_names(&waiting, MAX_NAMES)
            );
            NewCondition::new(kind, false, Reason::MostNodesUnhealthy, message)
        } else {
            let message = format!(
                "not cordoned: {}; {count}",
                first_names(&waiting, MAX_NAMES)
            );
            NewCondition::new(kind, false, Reason::CordonLimitReached, message)
        };
        plan.conditions.insert(policy.to_owned(), finding);
    }
}

/// Updates an existing repair request. One that was removed is not repeated for the same cordon.
fn updated_request(candidate: &Candidate, repair: Option<Repair>) -> Option<Step> {
    let current = candidate.requested.as_ref()?;
    let Some(repair) = repair else {
        return Some(Step::SetRepair(None));
    };
    let same = current.split(':').next() == Some(repair.as_str());
    (!same && candidate.devices.is_some())
        .then(|| Step::SetRepair(Some(repair_request(repair, candidate))))
}

/// `Reboot: mlx5_0 MkeyExhausted, mlx5_1 DeviceHung`
fn repair_request(repair: Repair, candidate: &Candidate) -> String {
    let named = candidate
        .devices
        .iter()
        .flat_map(|devices| &devices.unhealthy_devices);
    let named: Vec<String> = named
        .map(|device| format!("{} {}", device.name, device.reason))
        .collect();
    format!("{}: {}", repair.as_str(), named.join(", "))
}

/// `MkeyExhausted since 2026-01-01T00:00:00Z: mlx5_0, mlx5_1`
fn why(candidate: &Candidate, now: Timestamp) -> String {
    let named = candidate
        .devices
        .iter()
        .flat_map(|devices| &devices.unhealthy_devices);
    let names: Vec<&str> = named.clone().map(|device| device.name.as_str()).collect();
    let reason = named
        .map(|device| device.reason)
        .next()
        .unwrap_or(Word::Known(Reason::DeviceUnhealthy));
    let unhealthy_for = i64::try_from(candidate.unhealthy_for.as_secs()).unwrap_or(i64::MAX);
    let since = now.as_second().saturating_sub(unhealthy_for);
    let since = Timestamp::from_second(since).unwrap_or(now);
    format!("{reason} since {since}: {}", names.join(", "))
}

#[cfg(test)]
mod tests;

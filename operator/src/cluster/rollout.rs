//! Decides which pool pods are replaced next, and records it in `status.rollout`. A deleted pod drains; its
//! DaemonSet creates the successor. Pure.
//!
//! ```text
//! outdated --(room in maxUnavailable)--> recorded, deleted --drain--> gone --> successor --> serves: forgotten
//! recorded --(no successor serves within drain + deadline)--> stopped: nothing more is deleted
//! did not serve when the rollout began --> tolerated: not unavailable until it serves once
//! ```
//!
//! The caller stores the record before it deletes a pod: a restarted operator thus knows its own victims.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crds::update::{PoolPlace, ROLLOUT_LIMIT, ReplacedPod, RolloutStatus, Update};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Time after which the counts of a DaemonSet certainly include a deletion.
const SETTLED: Duration = Duration::from_secs(60);

/// What the rollout needs to know of one pool pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub place: PoolPlace,
    /// Created for another spec.
    pub outdated: bool,
    pub leaving: bool,
    /// `None`: unknown.
    pub serving: Option<bool>,
}

/// What a decision is made of.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Fingerprint of the pools' spec.
    pub revision: &'a str,
    pub pods: &'a [Pod],
    /// Number of pods that the DaemonSets want.
    pub desired: usize,
    /// Number of pods that the DaemonSets have not created yet; `None` while one has not observed its current
    /// template, as it would recreate a deleted pod from the old one.
    pub missing: Option<usize>,
    pub update: &'a Update,
    /// `drainSeconds` of each pool.
    pub drain_seconds: &'a BTreeMap<String, u32>,
    /// Places of the record on nodes that the DaemonSets no longer select, or that are gone.
    pub given_up: &'a BTreeSet<PoolPlace>,
    pub now: Timestamp,
}

/// What the rollout does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Every pod matches the spec.
    Done,
    /// Only pods that cannot be replaced are outdated: what they hold is not known.
    Left { outdated: usize, on: String },
    /// Pods are outdated, but others must serve first.
    Wait { outdated: usize, on: String },
    /// These pods are deleted.
    Replace { outdated: usize, pods: Vec<Pod> },
    /// The successor of a replaced pod does not serve in time.
    Stopped { outdated: usize, place: PoolPlace },
}

/// The decision: what to record first, and then to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub step: Step,
    /// `None`: no rollout is in progress.
    pub record: Option<RolloutStatus>,
    /// Time until the next deadline.
    pub recheck: Option<Duration>,
}

impl Decision {
    fn done() -> Self {
        Self {
            step: Step::Done,
            record: None,
            recheck: None,
        }
    }

    /// Nothing is deleted before something else has happened; `record` stays.
    pub fn wait(outdated: usize, on: &str, record: Option<RolloutStatus>) -> Self {
        Self {
            step: match outdated {
                0 => Step::Done,
                _ => Step::Wait {
                    outdated,
                    on: on.to_owned(),
                },
            },
            record,
            recheck: None,
        }
    }
}

impl Step {
    /// True while pods are being replaced or waited for.
    pub fn is_rolling(&self) -> bool {
        matches!(self, Self::Wait { .. } | Self::Replace { .. })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("no pool pod is outdated"),
            Self::Left { outdated, on } => write!(
                f,
                "{outdated} pool pods keep the old spec until their nodes respond: {on}"
            ),
            Self::Wait { outdated, on } => {
                write!(f, "replacing {outdated} pool pods; waiting for {on}")
            }
            Self::Replace { outdated, pods } => {
                let first = pods.first().map_or("", |pod| &pod.place.node);
                write!(
                    f,
                    "replacing {outdated} pool pods; now {} from {first} on",
                    pods.len()
                )
            }
            Self::Stopped { outdated, place } => write!(
                f,
                "the pod of pool {} on {} was replaced and does not serve within \
                 spec.update.progressDeadlineSeconds; {outdated} pool pods are outdated and stay",
                place.pool, place.node
            ),
        }
    }
}

/// The next step, from what was recorded before.
pub fn next(facts: &Facts<'_>, before: Option<&RolloutStatus>) -> Decision {
    let outdated: Vec<&Pod> = {
        let stay = facts.pods.iter().filter(|pod| pod.outdated && !pod.leaving);
        let mut stay: Vec<&Pod> = stay.collect();
        stay.sort_by(|a, b| (&a.place.node, &a.place.pool).cmp(&(&b.place.node, &b.place.pool)));
        stay
    };
    let count = outdated.len();
    if count == 0 && before.is_none_or(|before| before.replaced.is_empty()) {
        return Decision::done();
    }
    let mut record = match before {
        Some(before) if before.revision == facts.revision => before.clone(),
        before => begin(facts, before),
    };
    follow(facts, &mut record);
    if count == 0 && record.replaced.is_empty() {
        return Decision::done();
    }
    let recheck = record
        .replaced
        .iter()
        .filter_map(|replaced| facts.limit(replaced).checked_sub(facts.age(replaced)))
        .min();
    let step = step(facts, &mut record, &outdated);
    Decision {
        step,
        record: Some(record),
        // Whole seconds, so that the deadline has passed by then.
        recheck: recheck.map(|left| left + Duration::from_secs(1)),
    }
}

/// The record of a new rollout. Pods that the previous one replaced a moment ago are not tolerated: otherwise
/// each change of the spec would allow one more of them.
fn begin(facts: &Facts<'_>, before: Option<&RolloutStatus>) -> RolloutStatus {
    let replaced = before.map_or(&[][..], |before| &before.replaced);
    let replaced: Vec<ReplacedPod> = replaced
        .iter()
        .filter(|replaced| !facts.is_late(replaced))
        .cloned()
        .collect();
    let ours: BTreeSet<PoolPlace> = replaced.iter().map(place_of).collect();
    let broken = facts
        .pods
        .iter()
        .filter(|pod| !pod.leaving && pod.serving != Some(true) && !ours.contains(&pod.place));
    let tolerated: BTreeSet<PoolPlace> = broken.map(|pod| pod.place.clone()).collect();
    let absent = ours.iter().filter(|place| facts.is_awaited(place));
    let missing = facts.missing.unwrap_or(0).saturating_sub(absent.count());
    RolloutStatus {
        revision: facts.revision.to_owned(),
        tolerated: tolerated.into_iter().take(ROLLOUT_LIMIT).collect(),
        missing: u32::try_from(missing).ok().filter(|missing| *missing > 0),
        replaced,
    }
}

/// Removes what serves from the record.
fn follow(facts: &Facts<'_>, record: &mut RolloutStatus) {
    record.tolerated.retain(|place| {
        let pod = facts.pod_at(place);
        pod.is_none_or(|pod| pod.leaving || pod.serving != Some(true))
    });
    record.replaced.retain(|replaced| {
        let place = place_of(replaced);
        match facts.pod_at(&place) {
            Some(pod) => pod.uid == replaced.uid || pod.leaving || pod.serving != Some(true),
            None if facts.given_up.contains(&place) => false,
            // The DaemonSet wants no pod there for another cause, such as a taint.
            None => {
                let drain = facts.drain(&replaced.pool);
                facts.missing != Some(0) || facts.age(replaced) < drain + SETTLED
            }
        }
    });
    let missing = u32::try_from(facts.others_missing(record)).unwrap_or(u32::MAX);
    record.missing = record.missing.map(|before| before.min(missing));
    record.missing = record.missing.filter(|missing| *missing > 0);
}

/// Chooses what is deleted now, and records it.
fn step(facts: &Facts<'_>, record: &mut RolloutStatus, outdated: &[&Pod]) -> Step {
    let count = outdated.len();
    let wait = |on: String| Step::Wait {
        outdated: count,
        on,
    };
    if let Some(late) = record.replaced.iter().find(|pod| facts.is_late(pod)) {
        return Step::Stopped {
            outdated: count,
            place: place_of(late),
        };
    }
    if facts.missing.is_none() {
        return wait("the DaemonSet to take up its new template".to_owned());
    }
    let mut room = Room::of(facts, record);
    let mut chosen = again(record, outdated);
    chosen.extend(room.fill(outdated));
    if !chosen.is_empty() {
        room.record(facts.now, &chosen, record);
        return Step::Replace {
            outdated: count,
            pods: chosen,
        };
    }
    if let Some(on) = room.awaited(record) {
        return wait(on);
    }
    let first = outdated.first().map(|pod| pod.place.node.clone());
    Step::Left {
        outdated: count,
        on: first.unwrap_or_default(),
    }
}

/// Pods at recorded places that are deleted although they are recorded.
fn again(record: &RolloutStatus, outdated: &[&Pod]) -> Vec<Pod> {
    let again = outdated.iter().filter(|pod| {
        let mut replaced = record.replaced.iter();
        let one = replaced.find(|one| place_of(one) == pod.place);
        // Recorded by an operator that ended before the deletion, or a successor that an even newer spec may mend.
        one.is_some_and(|one| one.uid == pod.uid || pod.serving == Some(false))
    });
    again.map(|pod| (*pod).clone()).collect()
}

/// The room in `maxUnavailable`, and what takes it up.
struct Room {
    limit: usize,
    tolerated: BTreeSet<PoolPlace>,
    /// Places of the record, and those that are added to it now.
    replaced: BTreeSet<PoolPlace>,
    /// Places whose pod does not serve, without tolerated ones.
    away: BTreeSet<PoolPlace>,
    /// Pods that are not created yet, without those that were not when the rollout began.
    missing: usize,
    unavailable: usize,
    /// Places whose successor does not serve or, where they are tolerated, does not exist.
    in_progress: usize,
}

impl Room {
    fn of(facts: &Facts<'_>, record: &RolloutStatus) -> Self {
        let tolerated: BTreeSet<PoolPlace> = record.tolerated.iter().cloned().collect();
        let replaced: BTreeSet<PoolPlace> = record.replaced.iter().map(place_of).collect();
        let away: BTreeSet<PoolPlace> = facts
            .pods
            .iter()
            .filter(|pod| pod.leaving || pod.serving != Some(true))
            .filter(|pod| !tolerated.contains(&pod.place))
            .map(|pod| pod.place.clone())
            .collect();
        let missing = facts
            .others_missing(record)
            .saturating_sub(usize::try_from(record.missing.unwrap_or(0)).unwrap_or(usize::MAX));
        // A tolerated place is in progress until its successor exists, if the DaemonSet wants one.
        let begun = record.tolerated.iter().filter(|place| {
            let absent = facts.pod_at(place).is_none_or(|pod| pod.leaving);
            absent && !facts.given_up.contains(*place)
        });
        let limit = facts.update.max_unavailable.of(facts.desired);
        Self {
            limit: limit.min(ROLLOUT_LIMIT),
            unavailable: away.union(&replaced).count() + missing,
            in_progress: replaced.len() + begun.count().min(facts.unfilled()),
            tolerated,
            replaced,
            away,
            missing,
        }
    }

    /// Takes outdated pods while there is room. Idle ones hold no readable data, so they go first.
    fn fill(&mut self, outdated: &[&Pod]) -> Vec<Pod> {
        let idle = outdated.iter().filter(|pod| pod.serving == Some(false));
        let serving = outdated.iter().filter(|pod| pod.serving == Some(true));
        let mut taken = Vec::new();
        for pod in idle.chain(serving) {
            if self.replaced.contains(&pod.place) {
                continue;
            }
            let tolerated = self.tolerated.contains(&pod.place);
            let counted = tolerated || self.away.contains(&pod.place);
            if self.in_progress >= self.limit || (!counted && self.unavailable >= self.limit) {
                break;
            }
            self.in_progress += 1;
            self.unavailable += usize::from(!counted);
            taken.push((*pod).clone());
            if !tolerated {
                self.replaced.insert(pod.place.clone());
            }
        }
        taken
    }

    /// Records the chosen pods; one whose predecessor is recorded takes its place.
    fn record(&self, now: Timestamp, chosen: &[Pod], record: &mut RolloutStatus) {
        record.replaced.retain(|one| {
            let place = place_of(one);
            let mut chosen = chosen.iter();
            !chosen.any(|pod| pod.place == place && pod.uid != one.uid)
        });
        let new = chosen
            .iter()
            .filter(|pod| self.replaced.contains(&pod.place))
            .filter(|pod| !record.replaced.iter().any(|one| one.uid == pod.uid))
            .map(|pod| ReplacedPod {
                pool: pod.place.pool.clone(),
                node: pod.place.node.clone(),
                uid: pod.uid.clone(),
                since: Time(now),
            });
        let new: Vec<ReplacedPod> = new.collect();
        record.replaced.extend(new);
    }

    /// What must happen before there is room for the next pod.
    fn awaited(&self, record: &RolloutStatus) -> Option<String> {
        let place = record.replaced.first().map(place_of);
        if let Some(place) = place.or_else(|| self.away.first().cloned()) {
            let PoolPlace { pool, node } = place;
            return Some(format!("the pod of pool {pool} on {node} to serve"));
        }
        if self.missing > 0 {
            return Some(format!("{} pods to be created", self.missing));
        }
        (self.in_progress > 0).then(|| "pods that did not serve to be created again".to_owned())
    }
}

impl Facts<'_> {
    /// The pod of a place; where an old one still drains beside its successor, the successor.
    fn pod_at(&self, place: &PoolPlace) -> Option<&Pod> {
        let pods = self.pods.iter().filter(|pod| pod.place == *place);
        pods.min_by_key(|pod| pod.leaving)
    }

    /// Missing pods, without those of recorded places.
    fn others_missing(&self, record: &RolloutStatus) -> usize {
        let absent = recorded(record).into_iter();
        let absent = absent.filter(|place| self.is_awaited(place));
        self.missing.unwrap_or(0).saturating_sub(absent.count())
    }

    /// True if the place has no pod and gets one.
    fn is_awaited(&self, place: &PoolPlace) -> bool {
        self.pod_at(place).is_none() && !self.given_up.contains(place)
    }

    /// Places without a pod that stays, by the number that the DaemonSets want.
    fn unfilled(&self) -> usize {
        let stay = self.pods.iter().filter(|pod| !pod.leaving);
        let filled: BTreeSet<&PoolPlace> = stay.map(|pod| &pod.place).collect();
        self.desired.saturating_sub(filled.len())
    }

    fn drain(&self, pool: &str) -> Duration {
        let seconds = self.drain_seconds.get(pool).copied().unwrap_or(0);
        Duration::from_secs(seconds.into())
    }

    fn limit(&self, replaced: &ReplacedPod) -> Duration {
        let deadline = Duration::from_secs(self.update.progress_deadline_seconds.into());
        self.drain(&replaced.pool) + deadline
    }

    /// Time since the deletion; zero if the clock of an earlier leader was ahead.
    fn age(&self, replaced: &ReplacedPod) -> Duration {
        let age = self.now.duration_since(replaced.since.0);
        Duration::try_from(age).unwrap_or_default()
    }

    fn is_late(&self, replaced: &ReplacedPod) -> bool {
        self.age(replaced) > self.limit(replaced)
    }
}

/// All places of the record.
pub fn recorded(record: &RolloutStatus) -> BTreeSet<PoolPlace> {
    let replaced = record.replaced.iter().map(place_of);
    replaced.chain(record.tolerated.iter().cloned()).collect()
}

fn place_of(replaced: &ReplacedPod) -> PoolPlace {
    PoolPlace {
        pool: replaced.pool.clone(),
        node: replaced.node.clone(),
    }
}

#[cfg(test)]
mod tests;

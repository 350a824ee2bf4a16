//! The condition `Drained`: the keys of pool pods that end move to others, as the built-in master counts them. Pure.

use std::sync::Arc;

use crds::cluster::MasterType;
use crds::text::first_names;
use crds::{ByteSize, ConditionStatus, ConditionType, NewCondition, Reason, condition};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::cluster::cordoned::{Decision, HELD};
use crate::cluster::pool_pod::is_stuck;
use crate::pod::{is_over, node_of};

/// Most pool pods that a message names.
const MAX_PODS: usize = 4;

/// What the pool pods that end still have, by the metrics of the built-in master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    /// Pool pods whose objects move.
    pub running: u64,
    pub left_objects: u64,
    pub left_bytes: u64,
    /// The part of the bytes for which other pool pods have no free space.
    pub excess_bytes: u64,
    /// Objects that no other pool pod takes.
    pub unmovable_objects: u64,
}

impl Drains {
    /// Reads the gauges; `None` for a master without them.
    pub fn read(text: &str) -> Option<Self> {
        let gauge = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
            values.next()?.trim().parse::<u64>().ok()
        };
        Some(Self {
            running: gauge("mooncake_drain_running ")?,
            left_objects: gauge("mooncake_drain_left_objects ")?,
            left_bytes: gauge("mooncake_drain_left_bytes ")?,
            excess_bytes: gauge("mooncake_drain_excess_bytes ")?,
            unmovable_objects: gauge("mooncake_drain_unmovable_objects ")?,
        })
    }

    /// Keys are lost, as far as the master knows.
    fn loses(&self) -> bool {
        self.excess_bytes > 0 || self.unmovable_objects > 0
    }
}

/// The pool pods that end, and those that the kubelet has not ended in time. PoolsReady has the cause of these, but for those of
/// removed pools.
pub fn ending(pods: &[Arc<Pod>], now: Timestamp) -> (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) {
    pods.iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some() && !is_over(pod))
        .partition(|pod| !is_stuck(pod, now))
}

fn named(pods: &[&Arc<Pod>]) -> String {
    let named = pods.iter().map(|pod| {
        let node = node_of(pod).unwrap_or_default();
        format!("{} ({node})", pod.name_any())
    });
    let mut named: Vec<String> = named.collect();
    named.sort();
    first_names(&named, MAX_PODS)
}

/// The condition; `None` before the first drain, and with a stock master, which moves nothing. `cordons` is what happens to
/// cordoned nodes, and `unguarded` is why a guard could not be written or does not
/// run.
pub fn drained(
    kind: MasterType,
    pods: &[Arc<Pod>],
    drains: Option<Drains>,
    cordons: &Decision,
    unguarded: Option<&(Reason, String)>,
    old: &[Condition],
    now: Timestamp,
) -> Option<NewCondition> {
    if kind != MasterType::BuiltIn {
        return None;
    }
    let is = |holds, reason, message: String| {
        Some(NewCondition::new(
            ConditionType::Drained,
            holds,
            reason,
            message,
        ))
    };
    let before = condition::find(old, ConditionType::Drained);
    let (mut ending, mut stuck) = ending(pods, now);
    // The engine of a pool pod may go on without the kubelet.
    if ending.is_empty() && drains.is_some_and(|drains| drains.running > 0) {
        ending = std::mem::take(&mut stuck);
    }
    let (held, waiting) = (cordons.held_message(), cordons.waiting_message());
    let others: Vec<String> = held.iter().chain(&waiting).cloned().collect();
    if ending.is_empty() {
        if !others.is_empty() {
            let reason = match held {
                Some(_) => Reason::DrainExceedsSpace,
                None => Reason::Draining,
            };
            return is(false, reason, others.join("; "));
        }
        if let Some((reason, message)) = unguarded {
            let message = match reason {
                Reason::GuardNotRunning => message.clone(),
                _ => format!("guards of nodes are missing: {message}"),
            };
            return is(false, *reason, message);
        }
        before?;
        let message = match stuck.is_empty() {
            true => "no pool pod ends".to_owned(),
            false => format!(
                "no pool pod moves keys; not ended in their grace period: {}. If a node does not come back, delete it: kubectl \
                 delete node",
                named(&stuck)
            ),
        };
        return is(true, Reason::AsExpected, message);
    }
    let named = named(&ending);
    let mut message = format!("the keys of {named} move to other pool pods");
    let with_others = |message: String| {
        let mut parts = vec![message];
        parts.extend(others);
        parts.join("; ")
    };
    let Some(drains) = drains.filter(|drains| drains.running > 0) else {
        return is(false, reason(before, false), with_others(message));
    };
    let Drains {
        left_objects,
        left_bytes,
        excess_bytes,
        unmovable_objects,
        ..
    } = drains;
    message += &format!(": {left_objects} keys, {}, are left", about(left_bytes));
    if excess_bytes > 0 {
        message += &format!(
            "; {} do not fit, so the keys that were used longest ago are evicted",
            about(excess_bytes)
        );
    }
    if unmovable_objects > 0 {
        message +=
            &format!("; {unmovable_objects} keys are lost, because no other pool pod takes them");
    }
    is(false, reason(before, drains.loses()), with_others(message))
}

/// A loss is reported until the drain ends: evictions make room for the rest.
fn reason(before: Option<&Condition>, loses: bool) -> Reason {
    let lost = before.is_some_and(|before| {
        before.status == ConditionStatus::False.as_str()
            && before.reason == Reason::DrainExceedsSpace.as_str()
            // That drain has not begun.
            && !before.message.starts_with(HELD)
    });
    if lost || loses {
        Reason::DrainExceedsSpace
    } else {
        Reason::Draining
    }
}

/// Rounded up to whole units of which there are at least ten, so that the text is short.
pub fn about(bytes: u64) -> ByteSize {
    let mut unit = 1_u64;
    while bytes / 10 >= unit << 10 {
        unit <<= 10;
    }
    ByteSize(bytes.div_ceil(unit).saturating_mul(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(text: &str) -> Vec<Arc<Pod>> {
        let pods: Vec<Pod> = serde_yaml_ng::from_str(text).unwrap();
        pods.into_iter().map(Arc::new).collect()
    }

    const ENDS: &str = "[
        {metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z'}, spec: {nodeName: n1, containers: []}},
        {metadata: {name: b}, spec: {nodeName: n2, containers: []}},
        {metadata: {name: c, deletionTimestamp: '2026-01-01T00:00:00Z'}, status: {phase: Failed}}]";
    const NONE: &str = "[{metadata: {name: b}, spec: {nodeName: n2, containers: []}}]";

    fn drains(left_bytes: u64, excess_bytes: u64) -> Option<Drains> {
        Some(Drains {
            running: 1,
            left_objects: 7,
            left_bytes,
            excess_bytes,
            unmovable_objects: 0,
        })
    }

    fn stored(new: &NewCondition) -> Vec<Condition> {
        condition::merge(
            &[],
            std::slice::from_ref(new),
            Some(1),
            Timestamp::UNIX_EPOCH,
        )
    }

    fn ours(pods: &[Arc<Pod>], drains: Option<Drains>, old: &[Condition]) -> Option<NewCondition> {
        drained(
            MasterType::BuiltIn,
            pods,
            drains,
            &Decision::default(),
            None,
            old,
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn a_drain_is_reported_from_its_beginning_to_its_end() {
        let (some, none) = (pods(ENDS), pods(NONE));
        assert_eq!(ours(&none, drains(0, 0), &[]), None);
        let none_cordoned = Decision::default();
        let stock = drained(
            MasterType::Stock,
            &some,
            None,
            &none_cordoned,
            None,
            &[],
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(stock, None);

        let begun = ours(&some, None, &[]).unwrap();
        assert_eq!(
            (begun.state, begun.reason, begun.message.as_str()),
            (
                ConditionStatus::False,
                Reason::Draining,
                "the keys of a (n1) move to other pool pods"
            )
        );
        let counted = ours(&some, drains(5 << 30, 0), &stored(&begun)).unwrap();
        assert_eq!(counted.reason, Reason::Draining);
        assert!(
            counted.message.ends_with(": 7 keys, 5Gi, are left"),
            "{}",
            counted.message
        );
        // The last count of an earlier drain.
        let stale = ours(&some, Some(Drains::default()), &[]).unwrap();
        assert_eq!(stale.message, begun.message);

        let ended = ours(&none, Some(Drains::default()), &stored(&counted)).unwrap();
        assert_eq!(
            (ended.state, ended.reason),
            (ConditionStatus::True, Reason::AsExpected)
        );
        let later = ours(&none, None, &stored(&ended)).unwrap();
        assert_eq!(later.message, ended.message);
    }

    #[test]
    fn a_pool_pod_that_its_kubelet_does_not_end_moves_no_keys() {
        let (kind, calm) = (MasterType::BuiltIn, Decision::default());
        let begun = ours(&pods(ENDS), None, &[]).unwrap();
        let later = |time: &str| {
            let now = time.parse().unwrap();
            drained(kind, &pods(ENDS), None, &calm, None, &stored(&begun), now).unwrap()
        };
        let (counts, now) = (drains(1, 0), "2026-01-01T00:01:01Z".parse().unwrap());
        let moves = drained(kind, &pods(ENDS), counts, &calm, None, &stored(&begun), now).unwrap();
        assert_eq!(
            (moves.state, moves.message.as_str()),
            (
                ConditionStatus::False,
                "the keys of a (n1) move to other pool pods: 7 keys, 1, are left"
            )
        );
        assert_eq!(later("2026-01-01T00:01:00Z").message, begun.message);
        let stuck = later("2026-01-01T00:01:01Z");
        assert_eq!(
            (stuck.state, stuck.message.as_str()),
            (
                ConditionStatus::True,
                "no pool pod moves keys; not ended in their grace period: a (n1). If a node does not come back, delete it: \
                 kubectl delete node"
            )
        );
    }

    #[test]
    fn what_does_not_fit_is_reported_until_the_drain_ends() {
        let some = pods(ENDS);
        let short = ours(&some, drains(20 << 30, 3 << 30), &[]).unwrap();
        assert_eq!(short.reason, Reason::DrainExceedsSpace);
        assert!(
            short.message.contains("20Gi, are left; 3Gi do not fit"),
            "{}",
            short.message
        );
        let evicted = ours(&some, drains(10 << 30, 0), &stored(&short)).unwrap();
        assert_eq!(evicted.reason, Reason::DrainExceedsSpace);
        let ended = ours(&pods(NONE), None, &stored(&evicted)).unwrap();
        let again = ours(&some, drains(1, 0), &stored(&ended)).unwrap();
        assert_eq!(again.reason, Reason::Draining);
        let lost = Drains {
            unmovable_objects: 2,
            ..Drains::default()
        };
        let lost = Some(Drains { running: 1, ..lost });
        let lost = ours(&some, lost, &[]).unwrap();
        assert!(lost.message.contains("2 keys are lost"), "{}", lost.message);
    }

    #[test]
    fn cordoned_nodes_that_keep_their_pool_pods_are_reported_and_then_forgotten() {
        let held = Decision {
            held: vec!["n1".to_owned()],
            excess: Some(3 << 30),
            ..Decision::default()
        };
        let calm = Decision::default();
        let with = |pods: &[Arc<Pod>], cordons: &Decision, unguarded, old: &[Condition]| {
            let now = Timestamp::UNIX_EPOCH;
            drained(
                MasterType::BuiltIn,
                pods,
                None,
                cordons,
                unguarded,
                old,
                now,
            )
        };
        let (some, none) = (pods(ENDS), pods(NONE));
        let kept = with(&none, &held, None, &[]).unwrap();
        assert_eq!(
            (kept.state, kept.reason),
            (ConditionStatus::False, Reason::DrainExceedsSpace)
        );
        assert!(
            kept.message.contains("n1: 3Gi of keys do not fit"),
            "{}",
            kept.message
        );
        // The drain that follows loses nothing.
        let begun = with(&some, &calm, None, &stored(&kept)).unwrap();
        assert_eq!(begun.reason, Reason::Draining);
        let both = with(&some, &held, None, &[]).unwrap();
        assert!(
            both.reason == Reason::Draining && both.message.ends_with("n1 --lose-keys"),
            "{}",
            both.message
        );
        let ended = with(&none, &calm, None, &stored(&kept)).unwrap();
        assert_eq!(ended.state, ConditionStatus::True);

        let waiting = Decision {
            waiting: vec!["n2".to_owned()],
            ..Decision::default()
        };
        let waits = with(&none, &waiting, None, &[]).unwrap();
        assert_eq!(
            (waits.state, waits.reason),
            (ConditionStatus::False, Reason::Draining)
        );
        let forbidden = (
            Reason::ApiForbidden,
            "create Pod team/kv-guard-n1: quota".to_owned(),
        );
        let without = with(&none, &calm, Some(&forbidden), &[]).unwrap();
        assert_eq!(
            (without.state, without.reason),
            (ConditionStatus::False, Reason::ApiForbidden)
        );
    }

    #[test]
    fn sizes_are_rounded_up() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            ((10 << 20) + 1, "11Mi"),
            ((12 << 30) + 1, "13Gi"),
            (128 << 30, "128Gi"),
        ] {
            assert_eq!(about(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_master_without_these_gauges_has_no_count() {
        let text = "# TYPE mooncake_drain_running gauge\nmooncake_drain_running 1\nmooncake_drain_left_objects 7\n\
                    mooncake_drain_left_bytes 5\nmooncake_drain_excess_bytes 4\n";
        assert_eq!(Drains::read(text), None);
        let text = format!("{text}mooncake_drain_unmovable_objects 3\n");
        let all = Drains::read(&text).unwrap();
        assert_eq!((all.running, all.left_objects, all.left_bytes), (1, 7, 5));
        assert_eq!((all.excess_bytes, all.unmovable_objects), (4, 3));
    }
}

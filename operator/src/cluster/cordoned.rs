//! Decides which cordoned nodes are drained of their pool pods now, which wait, and which keep them, because their keys have no
//! room elsewhere. Pure.
//!
//! ```text
//! cordoned --(keys fit elsewhere; below maxUnavailable)--> excluded by the DaemonSets: pool pods end, keys move
//! excluded --(uncordoned, or the Node is gone)--> pool pods start again
//! ```
//!
//! The DaemonSets record the decision: a restarted operator knows its own drains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::text::first_names;
use crds::update::RolloutStatus;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::cluster::drained::about;
use crate::cluster::pool_pod::{PoolPodStatus, PoolService, is_stuck};
use crate::cluster::usage::Bytes;
use crate::cluster::validate::Pool;
use crate::pod::is_over;

/// Most nodes that DaemonSets exclude: each is an expression in each of their templates.
pub const MOST_EXCLUDED: usize = 500;
/// Most percent of the other pool pods that a drain may fill. The space in use is known late, and is not in one piece.
const MOST_FILLED: u32 = 90;
/// How long the cache may lag behind the DaemonSets.
const CACHE_LAG: Duration = Duration::from_secs(10);
/// Most nodes that a message names.
pub(super) const MAX_NODES: usize = 4;

/// True if one of the pools may start a pod on the node, as far as its `nodeSelector` decides.
pub fn is_selected(node: &Node, pools: &[Pool]) -> bool {
    pools.iter().any(|pool| {
        let mut selector = pool.node_selector.iter();
        selector.all(|(key, value)| node.labels().get(key) == Some(value))
    })
}

/// A pool pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub node: String,
    /// Memory that it may hold.
    pub bytes: u64,
    /// It takes keys of others.
    pub serves: bool,
    pub ends: bool,
}

/// The pool pod, if it is bound to a node and may hold keys. `made_bytes` is the memory with which it was created.
pub fn stored(
    pod: &Pod,
    status: &PoolPodStatus,
    made_bytes: u64,
    now: Timestamp,
) -> Option<Stored> {
    let node = place(pod, now)?;
    let ends = pod.metadata.deletion_timestamp.is_some();
    let serving = match status.service {
        PoolService::Serving { bytes, .. } => Some(bytes),
        PoolService::NotServing { .. } | PoolService::Unknown { .. } => None,
    };
    Some(Stored {
        node,
        bytes: serving.unwrap_or(made_bytes),
        serves: serving.is_some() && !ends,
        ends,
    })
}

/// The same for a pool pod that ends because its pool was removed.
pub fn former(pod: &Pod, made_bytes: u64, now: Timestamp) -> Option<Stored> {
    Some(Stored {
        node: place(pod, now)?,
        bytes: made_bytes,
        serves: false,
        ends: true,
    })
}

/// The node of a pool pod that may hold keys.
fn place(pod: &Pod, now: Timestamp) -> Option<String> {
    let node = pod.spec.as_ref()?.node_name.clone()?;
    // A kubelet that does not respond must not hold other drains.
    (!is_stuck(pod, now) && !is_over(pod)).then_some(node)
}

/// Nodes of pods that the rollout replaced. One that the kubelet does not end holds no other drain.
pub fn replaced(
    rollout: Option<&RolloutStatus>,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> BTreeSet<String> {
    let stuck = pods.iter().filter(|pod| is_stuck(pod, now));
    let stuck: BTreeSet<&str> = stuck
        .filter_map(|pod| pod.metadata.uid.as_deref())
        .collect();
    let replaced = rollout.iter().flat_map(|rollout| &rollout.replaced);
    replaced
        .filter(|replaced| !stuck.contains(replaced.uid.as_str()))
        .map(|replaced| replaced.node.clone())
        .collect()
}

/// The bytes that hold keys, if the master has mounted the pool pods that serve. A master that has just started has not yet.
pub fn used(bytes: Bytes, pods: &[Stored]) -> Option<u64> {
    let serve = pods.iter().filter(|pod| pod.serves);
    let mounted: u64 = serve.map(|pod| pod.bytes).sum();
    (bytes.capacity / 9 * 10 >= mounted).then_some(bytes.allocated)
}

/// What the decision is made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Cordoned nodes that a pool may use or that have a pool pod.
    pub cordoned: &'a BTreeSet<String>,
    /// Nodes that the DaemonSets exclude already.
    pub before: &'a BTreeSet<String>,
    pub pods: &'a [Stored],
    /// Pool pods that may be out of service at a time.
    pub limit: usize,
    /// Nodes of pods that the rollout replaced and whose successor does not serve yet.
    pub replaced: &'a BTreeSet<String>,
    /// Bytes that hold keys; `None`: not known yet.
    pub used: Option<u64>,
    /// Percentage of the space in use, above which the master evicts keys.
    pub watermark: u32,
}

/// What happens to the cordoned nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Nodes that the DaemonSets exclude.
    pub excluded: BTreeSet<String>,
    /// Nodes that wait for others, by `maxUnavailable`.
    pub waiting: Vec<String>,
    /// Nodes whose keys have no room elsewhere.
    pub held: Vec<String>,
    /// How many bytes of the first of them do not fit; `None`: the use of the pools is not known yet.
    pub excess: Option<u64>,
    /// Nodes that have pool pods, and those that get one again after a rollout.
    pub guarded: BTreeSet<String>,
}

impl Decision {
    /// True while something changes without an event.
    pub fn is_open(&self) -> bool {
        let drains = self.excluded.iter();
        let mut drains = drains.filter(|node| self.guarded.contains(*node));
        drains.next().is_some() || !self.waiting.is_empty() || !self.held.is_empty()
    }

    /// Whether the node is cordoned and has pool pods: `kubectl drain` may wait for its guard.
    pub fn holds_drain_of(&self, node: &String) -> bool {
        self.excluded.contains(node) || self.waiting.contains(node) || self.held.contains(node)
    }

    /// Why nodes keep their pool pods; `None` if none does.
    pub fn held_message(&self) -> Option<String> {
        let first = self.held.first()?;
        let cause = match self.excess {
            None => "the use of the pools is not known yet".to_owned(),
            Some(excess) => format!(
                "{} of keys do not fit into the pool pods of other nodes. Add pool pods, or confirm the loss with \
                 kubectl mooncake drain {first} --lose-keys",
                about(excess)
            ),
        };
        Some(format!(
            "{HELD} {}: {cause}",
            first_names(&self.held, MAX_NODES)
        ))
    }

    /// Which nodes wait; `None` if none does.
    pub fn waiting_message(&self) -> Option<String> {
        (!self.waiting.is_empty()).then(|| {
            format!(
                "cordoned nodes that wait for other pool pods (spec.update.maxUnavailable): {}",
                first_names(&self.waiting, MAX_NODES)
            )
        })
    }
}

/// The beginning of the message about nodes that are not drained.
pub const HELD: &str = "pool pods stay on cordoned nodes";

/// Decides anew from what the DaemonSets exclude already. A drain that has begun goes on until its node is uncordoned.
pub fn decide(facts: &Facts<'_>) -> Decision {
    let Facts {
        cordoned,
        before,
        pods,
        limit,
        replaced,
        used,
        watermark,
    } = *facts;
    let filled = u64::from(watermark.min(MOST_FILLED));
    let mut on: BTreeMap<&str, Vec<&Stored>> = BTreeMap::new();
    for pod in pods {
        on.entry(&pod.node).or_default().push(pod);
    }
    let has_pods = |node: &String| on.contains_key(node.as_str());
    let mut excluded: BTreeSet<String> = cordoned.intersection(before).cloned().collect();
    let fresh = |node: &&String| !has_pods(node) && !excluded.contains(*node);
    let fresh: Vec<String> = cordoned.iter().filter(fresh).cloned().collect();
    let room = MOST_EXCLUDED.saturating_sub(excluded.len());
    // Nothing is lost there, and no pool pod may start.
    excluded.extend(fresh.into_iter().take(room));
    let mut decision = Decision::default();
    // Pool pods that are out of service, without those that stay on `own`.
    let busy = |excluded: &BTreeSet<String>, own: &String| {
        let waits = |node: &String| replaced.contains(node) && node != own;
        let out = |pod: &&Stored| pod.ends || excluded.contains(&pod.node) || waits(&pod.node);
        let pods = pods.iter().filter(out).count();
        let absent = replaced.iter().filter(|node| !has_pods(node)).count();
        pods + absent
    };
    for (node, here) in &on {
        let node = (*node).to_owned();
        if !cordoned.contains(&node) || excluded.contains(&node) {
            continue;
        }
        let others = pods
            .iter()
            .filter(|pod| pod.serves && pod.node != node && !excluded.contains(&pod.node));
        let room: u64 = others.map(|pod| pod.bytes).sum();
        let excess = used.map(|used| used.saturating_sub(room / 100 * filled));
        let staying = here.iter().filter(|pod| !pod.ends).count();
        let out = busy(&excluded, &node);
        // Pods that end already, by a rollout or a user, are not held.
        if staying > 0 && excess != Some(0) {
            if decision.held.is_empty() {
                decision.excess = excess;
            }
            decision.held.push(node);
        } else if staying > 0 && out > 0 && out + staying > limit || excluded.len() >= MOST_EXCLUDED
        {
            decision.waiting.push(node);
        } else {
            excluded.insert(node);
        }
    }
    let again = replaced.iter().filter(|node| !excluded.contains(*node));
    decision.guarded = on.keys().map(|node| (*node).to_owned()).collect();
    decision.guarded.extend(again.cloned());
    decision.excluded = excluded;
    decision
}

/// The last decision of each cluster, by UID, until the cache certainly shows the DaemonSets that record it.
#[derive(Debug, Default)]
pub struct Recent(Mutex<BTreeMap<String, (Instant, BTreeSet<String>)>>);

impl Recent {
    /// The nodes of the last decision, if the cache may lag behind it.
    pub fn of(&self, cluster: &str, now: Instant) -> BTreeSet<String> {
        let mut kept = self.0.lock();
        kept.retain(|_, (at, _)| now.duration_since(*at) < CACHE_LAG);
        kept.get(cluster)
            .map(|(_, excluded)| excluded.clone())
            .unwrap_or_default()
    }

    pub fn note(&self, cluster: &str, excluded: &BTreeSet<String>, now: Instant) {
        let mut kept = self.0.lock();
        if !excluded.is_empty() {
            kept.insert(cluster.to_owned(), (now, excluded.clone()));
        }
    }
}

#[cfg(test)]
mod tests;

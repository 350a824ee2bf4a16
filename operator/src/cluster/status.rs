//! The status of a cluster: computed, compared, written once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crds::condition::{self, merge};
use crds::text::first_clauses;
use crds::{
    ByteSize, ConditionStatus, ConditionType, MooncakeClusterStatus, NewCondition, Reason, names,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::cluster::cordoned::Decision;
use crate::cluster::drained::{self, Drains};
use crate::cluster::injection;
use crate::cluster::observe::Observed;
use crate::cluster::pool_pod::{PoolPodStatus, PoolService};
use crate::cluster::validate::{Pool, Valid};
use crate::cluster::{pool_pod, rollout, transport};
use crate::compute_domain::status::DomainStatus;
use crate::compute_domain::view::RECHECK_PERIOD;
use crate::pod::{not_running, unscheduled};

mod transports;

/// Reconcile period of a cluster that is not as specified: something may have been missed. At rest nothing is
/// reconciled.
const PERIOD: Duration = Duration::from_secs(60);
/// Most problems in a message.
const MAX_LISTED: usize = 4;

/// The facts from which a status is computed.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub cluster: &'a Valid,
    pub observed: &'a Observed,
    /// The DaemonSets after apply, in the order of the spec; `None`: written, not yet seen.
    pub pools: &'a [Option<DaemonSet>],
    /// Every pool pod of the cluster.
    pub pod_statuses: &'a [PoolPodStatus],
    pub transport: &'a transport::Facts,
    pub rollout: &'a rollout::Decision,
    /// The number of changes that a pause withholds; `None`: not paused.
    pub withheld: Option<usize>,
    /// Percent of the capacity that holds objects.
    pub used: Option<u8>,
    /// What pool pods that end still have; `None`: unknown.
    pub drains: Option<Drains>,
    /// What happens to cordoned nodes.
    pub cordons: &'a Decision,
    /// Why a guard could not be written.
    pub unguarded: Option<&'a (Reason, String)>,
    /// Why a write is refused.
    pub refused: Option<&'a (Reason, String)>,
    /// `None`: the cluster wants no ComputeDomain.
    pub mnnvl: Option<&'a DomainStatus>,
}

/// The new status.
pub fn compute(
    facts: &Facts<'_>,
    old: &MooncakeClusterStatus,
    now: Timestamp,
) -> MooncakeClusterStatus {
    let Facts {
        cluster,
        observed,
        pools,
        pod_statuses,
        transport,
        rollout,
        withheld: _,
        used,
        drains,
        cordons,
        unguarded,
        refused: _,
        mnnvl,
    } = *facts;
    let serving = serving(pod_statuses).len();
    let wanted = wanted(pools, pod_statuses);
    let rdma_usable = transports::rdma_usable(transport);
    let (transport, transports) =
        transports::evaluate(transport, pod_statuses, &observed.claimable);
    let parts = [
        master(facts.cluster, observed),
        pools_ready(facts),
        transports,
    ];
    let mut findings = summary(facts, &parts, (serving, wanted));
    findings.extend(parts);
    findings.extend(rdma_usable);
    findings.extend(metadata_ready(facts));
    findings.push(injection::finding(cluster, &observed.labelled));
    findings.extend(mnnvl.map(|outlook| outlook.finding.clone()));
    let kind = cluster.master.kind;
    let pods: Vec<_> = observed.all_pool_pods().cloned().collect();
    findings.extend(drained::drained(
        kind,
        &pods,
        drains,
        cordons,
        unguarded,
        &old.conditions,
        now,
    ));
    let bytes: u64 = pod_statuses
        .iter()
        .map(|pod_status| match pod_status.service {
            PoolService::Serving { bytes, .. } => bytes,
            PoolService::NotServing { .. } | PoolService::Unknown { .. } => 0,
        })
        .sum();
    MooncakeClusterStatus {
        observed_generation: Some(cluster.generation),
        conditions: merge(&old.conditions, &findings, Some(cluster.generation), now),
        nodes: Some(format!("{serving}/{wanted}")),
        capacity: Some(ByteSize(bytes)),
        used: used.map(|percent| format!("{percent}%")),
        transport: transport.map(Into::into),
        master_endpoint: Some(names::master_endpoint(&cluster.name, &cluster.namespace)),
        master_type: observed.master_type().or(old.master_type),
        mnnvl: mnnvl.map(|outlook| outlook.status.clone()),
        rollout: rollout.record.clone(),
    }
}

/// Time until the next reconcile without an event; `None`: at rest. `conditions` are those that were written; `open`: something
/// could not be written.
pub fn next_reconcile(facts: &Facts<'_>, conditions: &[Condition], open: bool) -> Option<Duration> {
    let is = |kind| condition::is_true(conditions, kind);
    let at_rest = is(ConditionType::Ready)
        && !is(ConditionType::Reconciling)
        && !is(ConditionType::Stalled)
        && !open
        && !facts.cordons.is_open()
        && facts.observed.evictions.is_empty();
    // No event follows when a daemon's time is up or when a new object is deleted again.
    let waits = facts.mnnvl.is_some_and(|domain| {
        matches!(
            domain.finding.reason,
            Reason::ComputeDomainNotReady | Reason::Progressing | Reason::ApiFailed
        )
    });
    let transport = facts.transport;
    let settles = transport.settles_at().and_then(|at| {
        let left = at.duration_since(transport.now);
        Duration::try_from(left).ok()
    });
    // What a pool pod that does not end is reported as changes with time. After a whole second, so that it is stuck by then.
    let ends = facts.observed.all_pool_pods().filter_map(|pod| {
        let left = pool_pod::stuck_from(pod)?.duration_since(transport.now);
        Some(Duration::try_from(left).ok()? + Duration::from_secs(1))
    });
    let periods = [
        ends.min(),
        (!at_rest).then_some(PERIOD),
        facts.rollout.recheck,
        waits.then_some(RECHECK_PERIOD),
        settles,
    ];
    periods.into_iter().flatten().min()
}

/// The status of a cluster whose reconcile failed: `Ready` is not True, all else is kept.
pub fn failed(
    old: &MooncakeClusterStatus,
    generation: i64,
    reason: Reason,
    message: &str,
    stalled: bool,
    now: Timestamp,
) -> MooncakeClusterStatus {
    let progress = if stalled {
        ConditionType::Stalled
    } else {
        ConditionType::Reconciling
    };
    let mut findings = vec![
        NewCondition::new(ConditionType::Ready, false, reason, message),
        NewCondition::new(progress, true, reason, message),
    ];
    let others = [
        ConditionType::MasterReady,
        ConditionType::PoolsReady,
        ConditionType::TransportsReady,
        ConditionType::PodsInjected,
    ];
    let mut conditions = Vec::new();
    for kind in others {
        match condition::find(&old.conditions, kind) {
            Some(before) => conditions.push(before.clone()),
            None => findings.push(NewCondition::new(
                kind,
                ConditionStatus::Unknown,
                reason,
                "not evaluated yet",
            )),
        }
    }
    for kind in [
        ConditionType::RdmaUsable,
        ConditionType::MetadataReady,
        ConditionType::MnnvlReady,
        ConditionType::Drained,
    ] {
        conditions.extend(condition::find(&old.conditions, kind).cloned());
    }
    conditions.extend(merge(&old.conditions, &findings, Some(generation), now));
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    MooncakeClusterStatus {
        observed_generation: Some(generation),
        conditions,
        ..old.clone()
    }
}

/// Ready, and the conditions that are present only while they are true (the conventions of kstatus).
fn summary(
    facts: &Facts<'_>,
    parts: &[NewCondition; 3],
    (serving, wanted): (usize, usize),
) -> Vec<NewCondition> {
    if let Some((reason, message)) = facts.refused {
        return vec![
            NewCondition::new(ConditionType::Ready, false, *reason, message),
            NewCondition::new(ConditionType::Stalled, true, *reason, message),
        ];
    }
    let enough = enough_serve(facts, serving, wanted);
    let added = unprocessed(facts);
    // Nodes that are tolerated hide no pool that is missing everywhere.
    let counted = parts.iter().filter_map(|part| {
        let tolerated = part.kind == ConditionType::PoolsReady && enough;
        if tolerated {
            added.as_ref()
        } else {
            Some(part)
        }
    });
    let bad = counted.filter(|part| part.state != ConditionStatus::True);
    // A cause comes before what only takes time, such as a pool that was added during a pause.
    let worst = bad.min_by_key(|part| {
        let is_false = part.state == ConditionStatus::False;
        (!is_false, part.reason == Reason::Progressing)
    });
    let is = |kind, reason, message: String| NewCondition::new(kind, true, reason, message);
    let mut findings = vec![match worst {
        Some(part) => NewCondition::new(
            ConditionType::Ready,
            part.state,
            part.reason,
            part.message.clone(),
        ),
        None => is(
            ConditionType::Ready,
            Reason::AsExpected,
            format!("{serving} of {wanted} nodes serve; the master is ready"),
        ),
    }];
    let rollout = &facts.rollout.step;
    let stuck = worst.filter(|part| needs_user_action(part.reason));
    let stalled = match (stuck, rollout) {
        (Some(part), _) => Some((part.reason, part.message.clone())),
        (None, rollout::Step::Stopped { .. }) => {
            Some((Reason::RolloutStopped, rollout.to_string()))
        }
        (None, _) => None,
    };
    let withheld = facts.withheld.filter(|withheld| *withheld > 0);
    if let Some((reason, message)) = stalled {
        let message = format!("{message} Remedy: {}", reason.remedy());
        findings.push(is(ConditionType::Stalled, reason, message));
    } else if let Some(part) = worst {
        let message = part.message.clone();
        findings.push(is(ConditionType::Reconciling, Reason::Progressing, message));
    } else if let Some(withheld) = withheld {
        let message = format!("{withheld} changes wait for the end of the pause");
        findings.push(is(ConditionType::Reconciling, Reason::Paused, message));
    } else if rollout.is_rolling() {
        let message = rollout.to_string();
        findings.push(is(ConditionType::Reconciling, Reason::Progressing, message));
    }
    // The strict part: it names the nodes that do not serve.
    let pools = parts
        .iter()
        .find(|part| part.kind == ConditionType::PoolsReady);
    let pools = pools.filter(|pools| pools.state != ConditionStatus::True);
    if enough && let Some(pools) = pools.filter(|pools| added.as_ref() != Some(*pools)) {
        let message = pools.message.clone();
        findings.push(is(ConditionType::Degraded, pools.reason, message));
    }
    if let Some(withheld) = facts.withheld {
        let by = if facts.cluster.paused {
            "spec.paused is true"
        } else {
            "the operator is paused (chart value operator.paused)"
        };
        let message = format!("{by}: no object is changed; {withheld} changes wait");
        findings.push(is(ConditionType::Paused, Reason::Paused, message));
    }
    findings
}

/// True if `spec.minReadyPercent` of the nodes serve, rounded up, and each DaemonSet that was processed has some.
fn enough_serve(facts: &Facts<'_>, serving: usize, wanted: usize) -> bool {
    let sets = facts.pools.iter().flatten();
    let some = sets.filter_map(scheduled).all(|set| set.desired > 0);
    some && wanted > 0 && serving * 100 >= wanted * usize::from(facts.cluster.min_ready_percent)
}

/// Causes that stay until the user changes something.
fn needs_user_action(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::InvalidSpec
            | Reason::NoNodeMatches
            | Reason::NoUsableTransport
            | Reason::EngineVersionSkew
            | Reason::RecordForged
            | Reason::ForeignProcess
            | Reason::DescriptorNotSealed
            | Reason::DescriptorWrongSize
    )
}

fn master(cluster: &Valid, observed: &Observed) -> NewCondition {
    let kind = ConditionType::MasterReady;
    if cluster.elects() {
        return elected_master(cluster, observed);
    }
    if let Some(pod) = observed.serving_master(&cluster.name) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let place = node.unwrap_or("an unnamed node");
        return NewCondition::new(
            kind,
            true,
            Reason::AsExpected,
            format!("master pod {} on {place} is ready", pod.name_any()),
        );
    }
    let message = match observed.master_pods.last() {
        None => "there is no master pod yet; if none comes, see the events of the master's \
                 ReplicaSet"
            .to_owned(),
        Some(pod) => format!("master pod {}: {}", pod.name_any(), trouble(pod)),
    };
    NewCondition::new(kind, false, Reason::MasterNotReady, message)
}

/// The condition MasterReady of several masters: the elected one must be ready.
fn elected_master(cluster: &Valid, observed: &Observed) -> NewCondition {
    let kind = ConditionType::MasterReady;
    let not = |message: String| NewCondition::new(kind, false, Reason::MasterNotReady, message);
    let Some(leader) = observed.leader(&cluster.name) else {
        return match observed.master_pods.last() {
            Some(pod) if !crate::pod::is_ready(pod) => {
                not(format!("master pod {}: {}", pod.name_any(), trouble(pod)))
            }
            _ => not(format!(
                "no master is elected yet; if none comes, see the log of the container `admitted` of the pods of Deployment {}",
                names::master(&cluster.name)
            )),
        };
    };
    let mut pods = observed.master_pods.iter();
    let Some(pod) = pods.find(|pod| pod.name_any() == leader) else {
        return not(format!(
            "the elected master pod {leader} is gone, and no other has taken over yet"
        ));
    };
    let place = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let place = place.unwrap_or("an unnamed node");
    if !crate::pod::is_ready(pod) {
        return not(format!(
            "the elected master pod {leader} on {place}: {}",
            trouble(pod)
        ));
    }
    let ready = observed.master_pods.iter();
    let ready = ready.filter(|pod| crate::pod::is_ready(pod)).count();
    let message = format!(
        "master pod {leader} on {place} is elected; {ready} of {} masters are ready",
        cluster.master.replicas
    );
    NewCondition::new(kind, true, Reason::AsExpected, message)
}

/// Why a master pod does not serve, by scheduler, kubelet or master.
fn trouble(pod: &Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "it is being deleted".to_owned();
    }
    if let Some(text) = unscheduled(pod) {
        return format!("it is not scheduled: {text}");
    }
    let containers = pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.filter(|init| !init.ready)
            .chain(status.container_statuses.iter().flatten())
    });
    containers
        .into_iter()
        .find_map(not_running)
        .unwrap_or_else(|| "it runs but is not ready".to_owned())
}

fn pools_ready(facts: &Facts<'_>) -> NewCondition {
    let kind = ConditionType::PoolsReady;
    for (pool, set) in facts.cluster.pools.iter().zip(facts.pools) {
        let processed = set.as_ref().and_then(scheduled);
        if processed.is_some_and(|wanted| wanted.desired == 0) {
            return NewCondition::new(kind, false, Reason::NoNodeMatches, no_node(pool));
        }
    }
    let troubles = pool_troubles(facts);
    let Some((state, reason, _)) = troubles.first().cloned() else {
        if let Some(added) = unprocessed(facts) {
            return added;
        }
        let mut message = format!("{} pool pods serve", facts.pod_statuses.len());
        if facts.rollout.step != rollout::Step::Done {
            message.push_str(&format!("; {}", facts.rollout.step));
        }
        let foreign = &facts.observed.foreign_pods;
        if !foreign.is_empty() {
            message.push_str(&format!(
                "; not served, because no DaemonSet of this cluster made it: {}",
                first_clauses(foreign, MAX_LISTED)
            ));
        }
        return NewCondition::new(kind, true, Reason::AsExpected, message);
    };
    let problems = first_clauses(troubles.iter().map(|(_, _, text)| text), MAX_LISTED);
    let message = format!(
        "{}. Remedy: {}",
        // A foreign message may end with a full stop.
        problems.trim_end_matches('.'),
        reason.remedy()
    );
    NewCondition::new(kind, state, reason, message)
}

/// The condition PoolsReady of a pool whose DaemonSet was not processed yet, or does not exist.
fn unprocessed(facts: &Facts<'_>) -> Option<NewCondition> {
    let mut pools = facts.cluster.pools.iter().zip(facts.pools);
    let (pool, _) = pools.find(|(_, set)| set.as_ref().and_then(scheduled).is_none())?;
    let created = !facts.observed.existing.daemon_sets.is_empty();
    let (reason, why) = match facts.withheld {
        Some(_) if !created => (Reason::Paused, "is created after the pause"),
        _ => (Reason::Progressing, "is not processed yet"),
    };
    let message = format!("pool {}: its DaemonSet {why}", pool.name);
    let kind = ConditionType::PoolsReady;
    Some(NewCondition::new(kind, false, reason, message))
}

/// What keeps pool pods from serving. Causes that the user can resolve come first.
fn pool_troubles(facts: &Facts<'_>) -> Vec<(ConditionStatus, Reason, String)> {
    let cluster = facts.cluster;
    let mut troubles: Vec<_> = facts
        .pod_statuses
        .iter()
        .filter_map(|pod_status| match &pod_status.service {
            PoolService::Serving { .. } => None,
            PoolService::NotServing { reason, message } => Some((
                ConditionStatus::False,
                *reason,
                describe(pod_status, *reason, message),
            )),
            PoolService::Unknown { reason, message } => Some((
                ConditionStatus::Unknown,
                *reason,
                describe(pod_status, *reason, message),
            )),
        })
        .collect();
    for (pool, set) in cluster.pools.iter().zip(facts.pools) {
        if let Some(wanted) = set.as_ref().and_then(scheduled)
            && wanted.desired > wanted.current
        {
            troubles.push((
                ConditionStatus::False,
                Reason::PoolPodPending,
                format!(
                    "pool {}: {} of {} pods exist; if it stays so, see the events of DaemonSet {} \
                     (quota, priority class, Pod Security)",
                    pool.name,
                    wanted.current,
                    wanted.desired,
                    names::pool_set(&cluster.name, &pool.name)
                ),
            ));
        }
    }
    troubles.sort_by_key(|(state, reason, _)| {
        (
            *state != ConditionStatus::False,
            !needs_user_action(*reason),
            *reason != Reason::PoolPodEvicted,
            *reason == Reason::Draining,
        )
    });
    troubles
}

/// Whether the pool pods can use the metadata service; `None` with P2P.
fn metadata_ready(facts: &Facts<'_>) -> Option<NewCondition> {
    let kind = ConditionType::MetadataReady;
    let endpoint = facts.cluster.metadata_endpoint()?;
    let pods = facts.pod_statuses;
    let reason = Reason::MetadataUnreachable;
    let failed = pods.iter().filter_map(|pod| {
        let message = pod.metadata_failure.as_ref()?;
        Some(describe(pod, reason, message))
    });
    let mut failed: Vec<_> = failed.collect();
    failed.sort_unstable();
    if !failed.is_empty() {
        let message = format!(
            "{} of {} pool pods cannot use it: {}",
            failed.len(),
            pods.len(),
            first_clauses(&failed, MAX_LISTED)
        );
        return Some(NewCondition::new(kind, false, reason, message));
    }
    let serving = pods
        .iter()
        .filter(|pod| matches!(pod.service, PoolService::Serving { .. }));
    // A pod serves only after it has published.
    Some(match serving.count() {
        0 => NewCondition::new(
            kind,
            ConditionStatus::Unknown,
            Reason::Progressing,
            format!("no pool pod has used the metadata service {endpoint} yet"),
        ),
        count => NewCondition::new(
            kind,
            true,
            Reason::AsExpected,
            format!("{count} pool pods use the metadata service {endpoint}"),
        ),
    })
}

fn describe(pod_status: &PoolPodStatus, reason: Reason, message: &str) -> String {
    let node = if pod_status.node.is_empty() {
        "no node yet"
    } else {
        &pod_status.node
    };
    format!("{node}: pool pod {}: {reason}: {message}", pod_status.pod)
}

fn no_node(pool: &Pool) -> String {
    let selector = pool
        .node_selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",");
    let affinity = match pool.template.affinity {
        Some(_) => ", podTemplate.affinity",
        None => "",
    };
    if selector.is_empty() && affinity.is_empty() {
        return format!(
            "pool {}: every node is drained (label mooncake.io/drain) or has taints that the pool does \
             not tolerate; its nodeSelector is empty",
            pool.name
        );
    }
    let selector = if selector.is_empty() { "{}" } else { &selector };
    format!(
        "pool {}: no node that is not drained matches nodeSelector {selector}{affinity} and the pool's tolerations",
        pool.name
    )
}

pub(crate) struct Scheduled {
    pub(crate) desired: usize,
    pub(crate) current: usize,
}

/// The counts of the DaemonSet controller; `None` until it has observed the current spec.
pub(crate) fn scheduled(set: &DaemonSet) -> Option<Scheduled> {
    let status = set.status.as_ref()?;
    if status.observed_generation < set.metadata.generation {
        return None;
    }
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    Some(Scheduled {
        desired: count(status.desired_number_scheduled),
        current: count(status.current_number_scheduled),
    })
}

/// The DaemonSet with the last counts of its controller, as if they were those of the current spec.
pub(crate) fn as_counted(set: &DaemonSet) -> DaemonSet {
    let mut set = set.clone();
    if let Some(status) = &mut set.status
        && status.observed_generation.is_some()
    {
        status.observed_generation = set.metadata.generation;
    }
    set
}

/// Nodes all of whose pool pods serve.
fn serving(pod_statuses: &[PoolPodStatus]) -> BTreeSet<&str> {
    let mut nodes: BTreeMap<&str, bool> = BTreeMap::new();
    for pod_status in pod_statuses {
        let serves = matches!(pod_status.service, PoolService::Serving { .. });
        *nodes.entry(&pod_status.node).or_insert(true) &= serves;
    }
    nodes
        .into_iter()
        .filter_map(|(node, serves)| serves.then_some(node))
        .collect()
}

/// Number of nodes that should have a pool pod: those with a pod, and at least as many as a DaemonSet counts.
fn wanted(pools: &[Option<DaemonSet>], pod_statuses: &[PoolPodStatus]) -> usize {
    let nodes: BTreeSet<&str> = pod_statuses.iter().map(|v| v.node.as_str()).collect();
    let counted = pools
        .iter()
        .flatten()
        .filter_map(scheduled)
        .map(|scheduled| scheduled.desired)
        .max();
    nodes.len().max(counted.unwrap_or(0))
}

#[cfg(test)]
mod tests;

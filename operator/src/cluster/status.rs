//! The status of a cluster: computed, compared, written once.

use std::collections::{BTreeMap, BTreeSet};

use crds::cluster::{Transport, TransportPolicy};
use crds::condition::merge;
use crds::{ByteSize, ConditionType, Finding, MooncakeClusterStatus, Reason, State, names};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::cache::Claimable;
use crate::cluster::injected;
use crate::cluster::observe::Observed;
use crate::cluster::rollout;
use crate::cluster::validate::{Valid, transport};
use crate::cluster::verdict::{Service, Verdict, not_running};
use crate::domain::outlook::Outlook;

/// Troubles that a message tells of at most.
const TOLD: usize = 4;

/// What a status is made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub cluster: &'a Valid,
    pub observed: &'a Observed,
    /// The DaemonSets after apply, in the order of the spec; `None`: written, not yet seen.
    pub pools: &'a [Option<DaemonSet>],
    /// Every pool pod of the cluster.
    pub verdicts: &'a [Verdict],
    pub rollout: &'a rollout::Step,
    /// Percent of the capacity that holds objects.
    pub used: Option<u8>,
    /// `None`: the cluster wants no ComputeDomain.
    pub mnnvl: Option<&'a Outlook>,
}

/// The status to stand in the object.
pub fn compute(
    facts: &Facts<'_>,
    old: &MooncakeClusterStatus,
    now: Timestamp,
) -> MooncakeClusterStatus {
    let Facts {
        cluster,
        observed,
        pools,
        verdicts,
        rollout,
        used,
        mnnvl,
    } = *facts;
    let serving = serving(verdicts);
    let wanted = wanted(pools, verdicts);
    let transport = transport(&cluster.transports);
    let parts = [
        master(observed),
        pools_ready(facts),
        transports_ready(transport.as_ref(), unclaimed(cluster, &observed.claimable)),
    ];
    let mut findings = summary(&parts, rollout, serving.len(), wanted);
    findings.extend(parts);
    findings.push(injected::finding(cluster, &observed.labelled));
    findings.extend(mnnvl.map(|outlook| outlook.finding.clone()));
    let bytes: u64 = verdicts
        .iter()
        .map(|verdict| match verdict.service {
            Service::Serving { bytes } => bytes,
            Service::Not { .. } | Service::Unknown { .. } => 0,
        })
        .sum();
    MooncakeClusterStatus {
        observed_generation: Some(cluster.generation),
        conditions: merge(&old.conditions, &findings, Some(cluster.generation), now),
        nodes: Some(format!("{}/{wanted}", serving.len())),
        capacity: Some(ByteSize(bytes)),
        used: used.map(|percent| format!("{percent}%")),
        transport: transport.ok(),
        master_endpoint: Some(names::master_endpoint(&cluster.name, &cluster.namespace)),
        mnnvl: mnnvl.map(|outlook| outlook.status.clone()),
    }
}

/// The status of a cluster that cannot be carried out, or whose work failed: what is known stays,
/// `Ready` does not.
pub fn failed(
    old: &MooncakeClusterStatus,
    generation: i64,
    reason: Reason,
    message: &str,
    stalled: bool,
    now: Timestamp,
) -> MooncakeClusterStatus {
    let mut findings = vec![
        Finding::new(ConditionType::Ready, false, reason, message),
        Finding::new(ConditionType::Stalled, stalled, reason, message),
        Finding::new(ConditionType::Reconciling, !stalled, reason, message),
    ];
    let others = [
        ConditionType::MasterReady,
        ConditionType::PoolsReady,
        ConditionType::TransportsReady,
        ConditionType::PodsInjected,
    ];
    let mut conditions = Vec::new();
    for kind in others {
        match crds::condition::find(&old.conditions, kind) {
            Some(before) => conditions.push(before.clone()),
            None => findings.push(Finding::new(
                kind,
                State::Unknown,
                reason,
                "not yet looked at",
            )),
        }
    }
    let mnnvl = crds::condition::find(&old.conditions, ConditionType::MnnvlReady);
    conditions.extend(mnnvl.cloned());
    conditions.extend(merge(&old.conditions, &findings, Some(generation), now));
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    MooncakeClusterStatus {
        observed_generation: Some(generation),
        conditions,
        ..old.clone()
    }
}

fn summary(
    parts: &[Finding],
    rollout: &rollout::Step,
    serving: usize,
    wanted: usize,
) -> Vec<Finding> {
    let worst = parts
        .iter()
        .find(|part| part.state == State::False)
        .or_else(|| parts.iter().find(|part| part.state == State::Unknown));
    let ready = match worst {
        Some(part) => Finding::new(
            ConditionType::Ready,
            part.state,
            part.reason,
            part.message.clone(),
        ),
        None => Finding::new(
            ConditionType::Ready,
            true,
            Reason::AsExpected,
            format!("{serving} of {wanted} nodes serve; the master is ready"),
        ),
    };
    let stuck = worst.filter(|part| needs_a_person(part.reason));
    let stalled = match stuck {
        Some(part) => Finding::new(
            ConditionType::Stalled,
            true,
            part.reason,
            format!("{} Remedy: {}", part.message, part.reason.remedy()),
        ),
        None => Finding::new(
            ConditionType::Stalled,
            false,
            Reason::AsExpected,
            "nothing waits for a person",
        ),
    };
    let rolling = !matches!(rollout, rollout::Step::Done);
    let reconciling = match worst {
        Some(part) if stuck.is_none() => Finding::new(
            ConditionType::Reconciling,
            true,
            Reason::Progressing,
            part.message.clone(),
        ),
        _ if rolling => Finding::new(
            ConditionType::Reconciling,
            true,
            Reason::Progressing,
            rollout.to_string(),
        ),
        _ => Finding::new(
            ConditionType::Reconciling,
            false,
            Reason::AsExpected,
            "the spec is carried out",
        ),
    };
    vec![ready, stalled, reconciling]
}

/// Causes that stay until a person changes something.
fn needs_a_person(reason: Reason) -> bool {
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

fn master(observed: &Observed) -> Finding {
    let kind = ConditionType::MasterReady;
    if let Some(pod) = observed.ready_master() {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let place = node.unwrap_or("an unnamed node");
        return Finding::new(
            kind,
            true,
            Reason::AsExpected,
            format!(
                "master pod {} on {place} says that it serves",
                pod.name_any()
            ),
        );
    }
    let message = match observed.master_pods.last() {
        None => "there is no master pod yet; if none comes, see the events of the master's \
                 ReplicaSet"
            .to_owned(),
        Some(pod) => format!("master pod {}: {}", pod.name_any(), trouble(pod)),
    };
    Finding::new(kind, false, Reason::MasterNotReady, message)
}

/// Why a master pod does not serve, in the words of those who know.
fn trouble(pod: &Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "it is being deleted".to_owned();
    }
    let status = pod.status.as_ref();
    let unscheduled = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|condition| condition.message.clone());
    if let Some(words) = unscheduled {
        return format!("it is not scheduled: {words}");
    }
    let containers = status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.filter(|init| !init.ready)
            .chain(status.container_statuses.iter().flatten())
    });
    containers
        .into_iter()
        .find_map(not_running)
        .unwrap_or_else(|| "it runs but does not say that it serves".to_owned())
}

/// Why injected pods are given no RDMA device, where each is to have one.
fn unclaimed<'a>(cluster: &Valid, claimable: &'a Claimable) -> Option<&'a str> {
    match claimable {
        Claimable::No(why) if cluster.transports.rdma == TransportPolicy::Require => Some(why),
        Claimable::No(_) | Claimable::Unknown | Claimable::Yes => None,
    }
}

fn transports_ready(transport: Result<&Transport, &String>, unclaimed: Option<&str>) -> Finding {
    let kind = ConditionType::TransportsReady;
    match transport {
        Ok(Transport::Tcp) => Finding::new(kind, true, Reason::AsExpected, "stock pods use TCP"),
        Ok(Transport::Rdma) => Finding::new(kind, true, Reason::AsExpected, "stock pods use RDMA"),
        Err(why) => {
            let mut message = why.clone();
            if let Some(unclaimed) = unclaimed {
                message.push_str("; injected pods are given no RDMA device: ");
                message.push_str(unclaimed);
            }
            Finding::new(kind, false, Reason::NoUsableTransport, message)
        }
    }
}

fn pools_ready(facts: &Facts<'_>) -> Finding {
    let Facts {
        cluster,
        observed,
        pools,
        verdicts,
        rollout,
        used: _,
        mnnvl: _,
    } = *facts;
    let kind = ConditionType::PoolsReady;
    for (pool, set) in cluster.pools.iter().zip(pools) {
        let Some(wanted) = set.as_ref().and_then(scheduled) else {
            let message = format!("pool {}: its DaemonSet was not yet looked at", pool.name);
            return Finding::new(kind, false, Reason::Progressing, message);
        };
        if wanted.desired == 0 {
            return Finding::new(kind, false, Reason::NoNodeMatches, no_node(pool));
        }
    }
    let mut troubles: Vec<(State, Reason, String)> = verdicts
        .iter()
        .filter_map(|verdict| match &verdict.service {
            Service::Serving { .. } => None,
            Service::Not { reason, message } => {
                Some((State::False, *reason, tell(verdict, *reason, message)))
            }
            Service::Unknown { reason, message } => {
                Some((State::Unknown, *reason, tell(verdict, *reason, message)))
            }
        })
        .collect();
    for (pool, set) in cluster.pools.iter().zip(pools) {
        if let Some(wanted) = set.as_ref().and_then(scheduled)
            && wanted.desired > wanted.current
        {
            troubles.push((
                State::False,
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
    // What a person can act on comes first.
    troubles.sort_by_key(|(state, reason, _)| {
        (
            *state != State::False,
            !needs_a_person(*reason),
            *reason != Reason::PoolPodEvicted,
            *reason == Reason::Draining,
        )
    });
    let Some((state, reason, _)) = troubles.first().cloned() else {
        let mut message = format!("{} pool pods serve", verdicts.len());
        if *rollout != rollout::Step::Done {
            message.push_str(&format!("; {rollout}"));
        }
        if !observed.strangers.is_empty() {
            message.push_str(&format!(
                "; not served, because no DaemonSet of this cluster made it: {}",
                listed(&observed.strangers)
            ));
        }
        return Finding::new(kind, true, Reason::AsExpected, message);
    };
    let told: Vec<String> = troubles.into_iter().map(|(_, _, words)| words).collect();
    // The words of others may end with a full stop already.
    let told = listed(&told);
    let message = format!(
        "{}. Remedy: {}",
        told.trim_end_matches('.'),
        reason.remedy()
    );
    Finding::new(kind, state, reason, message)
}

/// The first few, and how many more there are.
fn listed(words: &[String]) -> String {
    let mut told = words[..words.len().min(TOLD)].join("; ");
    if words.len() > TOLD {
        told.push_str(&format!("; and {} more", words.len() - TOLD));
    }
    told
}

fn tell(verdict: &Verdict, reason: Reason, message: &str) -> String {
    let node = if verdict.node.is_empty() {
        "no node yet"
    } else {
        &verdict.node
    };
    format!("{node}: pool pod {}: {reason}: {message}", verdict.pod)
}

fn no_node(pool: &crate::cluster::validate::Pool) -> String {
    let selector = pool
        .node_selector
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(",");
    if selector.is_empty() {
        return format!(
            "pool {}: no node is free of taints that the pool does not tolerate, and its \
             nodeSelector is empty",
            pool.name
        );
    }
    format!(
        "pool {}: no node matches nodeSelector {selector} and the pool's tolerations",
        pool.name
    )
}

pub(crate) struct Scheduled {
    pub(crate) desired: usize,
    pub(crate) current: usize,
}

/// What the DaemonSet controller counts; `None` until it has seen the present spec.
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

/// Nodes all of whose pool pods serve.
fn serving(verdicts: &[Verdict]) -> BTreeSet<&str> {
    let mut nodes: BTreeMap<&str, bool> = BTreeMap::new();
    for verdict in verdicts {
        let serves = matches!(verdict.service, Service::Serving { .. });
        *nodes.entry(&verdict.node).or_insert(true) &= serves;
    }
    nodes
        .into_iter()
        .filter_map(|(node, serves)| serves.then_some(node))
        .collect()
}

/// Nodes that are to store: those with a pod, and at least as many as a DaemonSet counts.
fn wanted(pools: &[Option<DaemonSet>], verdicts: &[Verdict]) -> usize {
    let nodes: BTreeSet<&str> = verdicts.iter().map(|v| v.node.as_str()).collect();
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

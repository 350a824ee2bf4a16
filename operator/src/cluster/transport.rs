//! The transport of a cluster's stock pods: the decision and what it is based on. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::cluster::{MooncakeCluster, Transport, TransportPolicy, Transports};
use crds::condition::find;
use crds::node::{HcaLine, serving_ports};
use crds::text::first_names;
use crds::{ConditionStatus, ConditionType, MooncakeClusterStatus, MooncakeNode, Word, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::cache::Claimable;
use crate::cluster::injection;
use crate::cluster::observe::Observed;
use crate::cluster::pool_pod::{PoolPodStatus, PoolService, current_report};
use crate::cluster::status::scheduled;
use crate::cluster::validate::{Metadata, Valid};
use crate::pod::{injected_transport, is_over, node_of};

/// Most ports of a node in a message.
const MAX_PORTS: usize = 2;

/// Default of the time for which RDMA has to be usable before a cluster that has fallen back to TCP returns to it. Each change
/// publishes the segments again and interrupts clients, so a port that flaps must not cause one each time.
pub const SETTLING: Duration = Duration::from_secs(300);

/// The transport that the policies in force require; `None` where RDMA is used if it is proved.
pub fn required(policies: &Transports) -> Option<Transport> {
    use TransportPolicy::{Forbid, Require};
    match (policies.tcp, policies.rdma) {
        (_, Require) => Some(Transport::Rdma),
        (Require, _) | (_, Forbid) => Some(Transport::Tcp),
        _ => None,
    }
}

/// The transport that injected pods and pool pods of the cluster use: the one that the spec requires, or the decided one.
/// Until one is decided it is TCP.
pub fn of_stock_pods(cluster: &MooncakeCluster) -> Transport {
    required(&cluster.spec.transports_in_force())
        .or_else(|| cluster.status.as_ref()?.transport?.known())
        .unwrap_or(Transport::Tcp)
}

/// The facts from which the transport is decided.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The transport that the spec requires.
    pub required: Option<Transport>,
    /// The transport that was decided last.
    pub before: Option<Transport>,
    /// The nodes with pool pods, sorted by name.
    pub nodes: Vec<StoringNode>,
    /// Every pool pod that is to exist does.
    pub complete: bool,
    /// A pool pod serves.
    pub serves: bool,
    /// The injected pods with RDMA that have not ended: `namespace/name`, sorted.
    pub over_rdma: Vec<String>,
    /// Why RDMA is not used, even if every node has proved it.
    pub obstacle: Option<Obstacle>,
    /// No object may be changed.
    pub paused: bool,
    /// The change to TCP after which the cluster has not returned to RDMA; `None`: there was none.
    pub fallback: Option<Fallback>,
    /// How long RDMA has to be usable before the cluster returns to it.
    pub settling: Duration,
    /// In whole seconds, as the status stores times.
    pub now: Timestamp,
}

/// What is known of RDMA in a cluster that has changed from it to TCP, because it was no longer usable. The condition RdmaUsable
/// stores it: a restarted operator goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    Unusable,
    /// Whether a node has lost its proof is not known now.
    Unknown,
    UsableSince(Timestamp),
}

/// A node with a pool pod of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoringNode {
    pub name: String,
    pub rdma: Rdma,
    /// Path MTUs in bytes of the ports over which its pool pods are served, as far as they are known.
    pub mtus: BTreeSet<u32>,
}

/// What a node reports of its RDMA ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rdma {
    Proved,
    NoDevice,
    /// No port is proved, for these causes.
    Unproved(String),
    /// Its agent does not report now, or has not probed a port yet.
    Unknown(String),
}

/// Why a cluster cannot use RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The spec excludes it.
    Spec(&'static str),
    /// Pods cannot claim devices, for this cause.
    NoClaims(String),
    /// It is not known yet whether pods can claim devices.
    Unknown,
}

impl Facts {
    /// Reads the facts about a cluster.
    pub fn of(
        cluster: &Valid,
        observed: &Observed,
        pods: &[PoolPodStatus],
        old: &MooncakeClusterStatus,
        paused: bool,
        settling: Duration,
        now: Timestamp,
    ) -> Self {
        Self {
            required: required(&cluster.transports),
            before: old.transport.and_then(Word::known),
            nodes: storing_nodes(observed),
            complete: is_complete(cluster, observed),
            serves: pods
                .iter()
                .any(|pod| matches!(pod.service, PoolService::Serving { .. })),
            over_rdma: injected_over_rdma(cluster, &observed.labelled),
            obstacle: obstacle(cluster, &observed.claimable),
            paused,
            fallback: stored_fallback(&old.conditions),
            settling,
            now,
        }
    }

    /// Decides. A stock engine has one transport for its life, so injected pods with RDMA decide for their cluster, whatever was
    /// decided before: a pod may be created while a decision is on its way to the webhook. Those with TCP are served in any case.
    /// Without pods on RDMA, it is used if every storing node has proved it, after a fallback for some time. `None` while nothing
    /// is known.
    pub fn decide(&self) -> Option<Transport> {
        if let Some(required) = self.required {
            return Some(required);
        }
        if self.paused && self.before.is_some() {
            return self.before;
        }
        let fallback = || {
            let first = (self.complete || self.serves).then_some(Transport::Tcp);
            self.before.or(first)
        };
        (!self.over_rdma.is_empty())
            .then_some(Transport::Rdma)
            .or_else(|| self.wanted().filter(|_| self.settles_at().is_none()))
            .or_else(fallback)
    }

    /// When a cluster that has fallen back to TCP has waited long enough with usable RDMA; `None`: it does not wait. A time that is
    /// still to come was stored by an operator whose clock was ahead, and is not waited for.
    pub fn settles_at(&self) -> Option<Timestamp> {
        let since = self.usable_since()?;
        let at = self.returns_at(since);
        (since <= self.now && self.now < at).then_some(at)
    }

    /// When a cluster that has fallen back returns to RDMA, if RDMA stays usable.
    pub fn returns_at(&self, usable_since: Timestamp) -> Timestamp {
        let at = usable_since.saturating_add(self.settling);
        at.unwrap_or(Timestamp::MAX)
    }

    fn usable_since(&self) -> Option<Timestamp> {
        let fallback = self.fallback?;
        (self.wanted() == Some(Transport::Rdma)).then_some(match fallback {
            Fallback::Unusable | Fallback::Unknown => self.now,
            Fallback::UsableSince(since) => since,
        })
    }

    /// What has to be stored of a fallback until the cluster uses RDMA again. One that the spec causes is none: who changes
    /// the spec back does not expect to wait.
    pub fn next_fallback(&self) -> Option<Fallback> {
        let by_spec = self.required.is_some() || matches!(self.obstacle, Some(Obstacle::Spec(_)));
        let fell_back = self.fallback.is_some() || self.before == Some(Transport::Rdma);
        if by_spec || !fell_back || self.decide() != Some(Transport::Tcp) {
            return None;
        }
        let last = self.fallback.unwrap_or(Fallback::Unusable);
        Some(match self.wanted() {
            Some(Transport::Tcp) => Fallback::Unusable,
            Some(Transport::Rdma) => self.usable_since().map_or(last, Fallback::UsableSince),
            // A node whose agent is silent may have lost its proof and got it again meanwhile, for example over a reboot.
            None if !self.lacking(true).is_empty() => Fallback::Unknown,
            None => last,
        })
    }

    /// The transport that a cluster without injected pods on RDMA is to use; `None` while that is unknown, which changes nothing.
    pub fn wanted(&self) -> Option<Transport> {
        let excluded = matches!(
            self.obstacle,
            Some(Obstacle::Spec(_) | Obstacle::NoClaims(_))
        );
        if excluded || !self.lacking(false).is_empty() {
            return Some(Transport::Tcp);
        }
        let proved = self.complete && self.obstacle.is_none() && self.lacking(true).is_empty();
        (proved && !self.nodes.is_empty()).then_some(Transport::Rdma)
    }

    /// The nodes by the path MTUs of their ports, where they do not have the same. A stock engine sends packets of its own
    /// port's MTU, which one with a smaller MTU rejects.
    pub fn unequal_mtus(&self) -> BTreeMap<&BTreeSet<u32>, Vec<String>> {
        let mut nodes: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| !node.mtus.is_empty()) {
            nodes.entry(&node.mtus).or_default().push(node.name.clone());
        }
        if nodes.len() < 2 {
            nodes.clear();
        }
        nodes
    }

    /// The nodes without a proof; those that do not report only `with_unknown`.
    pub fn lacking(&self, with_unknown: bool) -> Vec<&StoringNode> {
        let lacks = |node: &&StoringNode| match node.rdma {
            Rdma::Proved => false,
            Rdma::NoDevice | Rdma::Unproved(_) => true,
            Rdma::Unknown(_) => with_unknown,
        };
        self.nodes.iter().filter(lacks).collect()
    }
}

/// Whether the cluster has the template of claims by which its injected pods get a device. It exists before a pod can name it.
pub fn has_claims(decided: Option<Transport>, before: Option<Transport>) -> bool {
    [decided, before].contains(&Some(Transport::Rdma))
}

fn stored_fallback(conditions: &[Condition]) -> Option<Fallback> {
    let usable = find(conditions, ConditionType::RdmaUsable)?;
    let is = |state: ConditionStatus| usable.status == state.as_str();
    Some(if is(ConditionStatus::True) {
        Fallback::UsableSince(usable.last_transition_time.0)
    } else if is(ConditionStatus::Unknown) {
        Fallback::Unknown
    } else {
        Fallback::Unusable
    })
}

/// The nodes with pool pods in any state: one that is being replaced leaves no node out.
fn storing_nodes(observed: &Observed) -> Vec<StoringNode> {
    let names: BTreeSet<String> = observed
        .pool_pods
        .iter()
        .filter_map(|pod| node_of(pod))
        .collect();
    let node = |name: String| {
        let mooncake_node = observed.mooncake_node(&name);
        StoringNode {
            rdma: rdma(mooncake_node),
            mtus: mtus(mooncake_node),
            name,
        }
    };
    names.into_iter().map(node).collect()
}

fn mtus(mooncake_node: Option<&MooncakeNode>) -> BTreeSet<u32> {
    let mooncake_node = current_report(mooncake_node).ok();
    let status = mooncake_node.and_then(|mooncake_node| mooncake_node.status.as_ref());
    let ports = status.map_or_else(Vec::new, |status| serving_ports(&status.hcas));
    ports.iter().filter_map(|port| port.path_mtu).collect()
}

fn rdma(mooncake_node: Option<&MooncakeNode>) -> Rdma {
    let mooncake_node = match current_report(mooncake_node) {
        Ok(mooncake_node) => mooncake_node,
        Err((reason, message)) => return Rdma::Unknown(format!("{reason}: {message}")),
    };
    let status = mooncake_node.status.as_ref();
    let ports = status.map_or(&[][..], |status| &status.hcas);
    if ports.is_empty() {
        return match status.and_then(|status| status.checks.as_ref()) {
            Some(_) => Rdma::NoDevice,
            // After a start of the node, until its agent has read the hardware.
            None => Rdma::Unknown("its agent has not checked the node yet".to_owned()),
        };
    }
    if ports.iter().any(HcaLine::serves) {
        return Rdma::Proved;
    }
    let text = first_names(ports.iter().map(HcaLine::unproved), MAX_PORTS);
    match ports.iter().any(HcaLine::awaits_proof) {
        true => Rdma::Unknown(text),
        false => Rdma::Unproved(text),
    }
}

/// True if each pool has pods on as many nodes as its DaemonSet counts.
fn is_complete(cluster: &Valid, observed: &Observed) -> bool {
    let mut nodes: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for pod in &observed.pool_pods {
        let pool = pod.labels().get(names::LABEL_POOL);
        if let (Some(pool), Some(node)) = (pool, node_of(pod)) {
            nodes.entry(pool).or_default().insert(node);
        }
    }
    cluster.pools.iter().all(|pool| {
        let name = names::pool_set(&cluster.name, &pool.name);
        let mut sets = observed.existing.daemon_sets.iter();
        let set = sets.find(|set| set.name_any() == name);
        let wanted = set.and_then(|set| scheduled(set)).map(|set| set.desired);
        let exist = nodes.get(pool.name.as_str()).map_or(0, BTreeSet::len);
        wanted.is_some_and(|wanted| wanted > 0 && exist >= wanted)
    })
}

fn injected_over_rdma(cluster: &Valid, labelled: &[Arc<Pod>]) -> Vec<String> {
    let running = labelled
        .iter()
        .filter(|pod| !is_over(pod) && injection::problem(cluster, pod).is_none());
    let mut names: Vec<_> = running
        .filter(|pod| injected_transport(pod) == Transport::Rdma)
        .map(|pod| {
            let namespace = pod.namespace().unwrap_or_default();
            format!("{namespace}/{}", pod.name_any())
        })
        .collect();
    names.sort_unstable();
    names
}

fn obstacle(cluster: &Valid, claimable: &Claimable) -> Option<Obstacle> {
    if !matches!(cluster.metadata, Metadata::P2P) {
        return Some(Obstacle::Spec(
            "this release serves no pool over RDMA with spec.metadata.type HTTP or Etcd",
        ));
    }
    match claimable {
        Claimable::Yes => None,
        Claimable::Unknown => Some(Obstacle::Unknown),
        Claimable::No(why) => Some(Obstacle::NoClaims(why.clone())),
    }
}

#[cfg(test)]
mod tests;

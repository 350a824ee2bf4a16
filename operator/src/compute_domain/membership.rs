//! Decides whether a node is a member of a ComputeDomain. Pure.
//!
//! ```text
//! member <=> a channel here is held by a claim of this domain, of its namespace
//!        and Node Ready and plugin offers the channel and node label = our UID
//!        and IMEX daemon pod Ready and in its clique, Ready, the clique that of the others
//! ```
//!
//! The ComputeDomain's global status is not used: it is Ready without members and stays Ready when a node
//! fails. Nor is one clique entry alone: only its own daemon removes it.

use std::time::Duration;

use crds::Reason;

use crate::cache::compute_domains::objects::{Claim, Daemon, Domain, Member, Offer};
use crate::cache::compute_domains::registration::REGISTRATION_LIMIT;
use crate::cache::compute_domains::snapshot::DomainSnapshot;
use crate::compute_domain::request::{DomainRequest, Found};

/// Relevant state of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub ready: bool,
    /// Message of the condition Ready.
    pub message: String,
    /// Value of the domain's label.
    pub label: Option<String>,
}

/// A pod that uses the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPod {
    pub pod: String,
    pub uid: String,
}

/// All facts about one node and one cluster's domain.
#[derive(Clone, Debug)]
pub struct NodeFacts<'a> {
    pub node: &'a str,
    /// Namespace of the cluster, whose users read the messages.
    pub namespace: &'a str,
    /// `None`: the Node does not exist.
    pub state: Option<&'a NodeState>,
    pub offer: Option<&'a Offer>,
    pub daemon: Option<&'a Daemon>,
    pub entry: Option<&'a Member>,
    /// Another node is in the clique that this node's daemon names.
    pub has_peers: bool,
    /// Claims of this domain with their channel here.
    pub mine: Vec<&'a Claim>,
    /// Claims of earlier domains of this name with their channel here.
    pub former: Vec<&'a Claim>,
    /// A claim of another domain with its channel here.
    pub other: Option<&'a Claim>,
    /// The cluster's pods on the node.
    pub users: &'a [UserPod],
    /// The operator creates the domain.
    pub to_be_made: bool,
}

/// Membership of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMembership {
    pub node: String,
    pub clique: Option<String>,
    pub member: bool,
    pub reason: Reason,
    pub message: String,
    /// Pods of the cluster here that hold no channel.
    pub without: Vec<String>,
}

impl<'a> NodeFacts<'a> {
    /// `None` if the node is unrelated to the cluster's domain.
    pub fn of(
        snapshot: &'a DomainSnapshot,
        request: &'a DomainRequest,
        node: &'a str,
        state: Option<&'a NodeState>,
        users: &'a [UserPod],
    ) -> Option<Self> {
        let domain = match request.found(snapshot) {
            Found::Usable(domain) => Some(domain),
            Found::Foreign(_) | Found::Nothing => None,
        };
        let uid = domain.map(|domain| domain.uid.as_str());
        let former_uids = request.former(snapshot);
        let (mut mine, mut former, mut other) = (Vec::new(), Vec::new(), None);
        for claim in snapshot.claims_on(node) {
            if Some(claim.domain.as_str()) == uid {
                mine.push(claim);
            } else if former_uids.contains(&claim.domain) {
                former.push(claim);
            } else {
                other = Some(claim);
            }
        }
        let label = state.and_then(|state| state.label.as_deref());
        let of_node = |members: &'a [Member]| members.iter().find(|member| member.node == node);
        // A node that was removed in order needs no report; one that vanished is still listed.
        let vanished = state.is_none()
            && uid.is_some_and(|uid| of_node(snapshot.clique_members(uid)).is_some());
        let labelled = uid.is_some() && label == uid;
        if mine.is_empty() && former.is_empty() && users.is_empty() && !labelled && !vanished {
            return None;
        }
        let members = domain.map_or(&[][..], |domain| snapshot.members(domain));
        let daemon = uid.and_then(|uid| snapshot.daemon(uid, node));
        let clique = daemon.and_then(|daemon| daemon.clique.as_deref());
        Some(Self {
            node,
            namespace: &request.namespace,
            state,
            offer: snapshot.offer(node),
            daemon,
            entry: of_node(members),
            has_peers: clique.is_some_and(|clique| {
                let mut others = members.iter().filter(|member| member.node != node);
                others.any(|member| member.clique == clique)
            }),
            mine,
            former,
            other,
            users,
            to_be_made: request.create.is_some(),
        })
    }

    /// The daemon runs, has named its clique, others are in it, and it is not.
    pub fn waits_for_registration(&self) -> bool {
        let runs = |daemon: &Daemon| daemon.running && !daemon.leaving;
        self.daemon.is_some_and(runs) && self.has_peers && self.entry.is_none()
    }

    fn clique(&self) -> Option<String> {
        let entry = self.entry.map(|entry| entry.clique.clone());
        entry
            .or_else(|| self.daemon.and_then(|daemon| daemon.clique.clone()))
            .filter(|clique| !clique.is_empty())
    }

    fn without(&self) -> Vec<String> {
        let holders: Vec<&str> = self
            .mine
            .iter()
            .flat_map(|claim| &claim.holders)
            .map(|holder| holder.uid.as_str())
            .collect();
        let mut without: Vec<String> = self
            .users
            .iter()
            .filter(|user| !holders.contains(&user.uid.as_str()))
            .map(|user| user.pod.clone())
            .collect();
        without.sort_unstable();
        without
    }
}

/// Evaluates one node. `clique`: that of the domain's members. `waited`: how long its daemon has waited
/// for registration.
pub fn evaluate(
    site: &NodeFacts<'_>,
    domain: Option<&Domain>,
    clique: Option<&str>,
    waited: Option<Duration>,
) -> NodeMembership {
    let (member, reason, message) = match trouble(site, domain, clique, waited) {
        Some((reason, message)) => (false, reason, message),
        None => {
            let message = "its IMEX daemon is ready in the clique of the others".to_owned();
            (true, Reason::AsExpected, message)
        }
    };
    NodeMembership {
        node: site.node.to_owned(),
        clique: site.clique(),
        member,
        reason,
        message,
        without: site.without(),
    }
}

/// Why the node is not a member; `None` if it is.
fn trouble(
    site: &NodeFacts<'_>,
    domain: Option<&Domain>,
    clique: Option<&str>,
    waited: Option<Duration>,
) -> Option<(Reason, String)> {
    let node = site.node;
    let is = |reason: Reason, message: String| Some((reason, message));
    if let Some(claim) = site.former.first() {
        let message = format!(
            "{} holds a channel of a domain that is deleted",
            claim.describe(site.namespace)
        );
        return is(Reason::ComputeDomainDeletedInUse, message);
    }
    let Some(domain) = domain else {
        let reason = if site.to_be_made {
            Reason::Progressing
        } else {
            Reason::ComputeDomainMissing
        };
        return is(reason, "the cluster has no ComputeDomain yet".to_owned());
    };
    if domain.leaving {
        return match site.mine.first() {
            Some(claim) => is(
                Reason::ComputeDomainDeletedInUse,
                format!(
                    "the domain is being deleted while {} holds a channel",
                    claim.describe(site.namespace)
                ),
            ),
            None => is(Reason::Deleting, "the domain is being deleted".to_owned()),
        };
    }
    let Some(state) = site.state else {
        let message =
            format!("Node {node} was deleted; the last state of its IMEX daemon is not valid");
        return is(Reason::NodeNotReady, message);
    };
    if !state.ready {
        let message = format!("node {node} is not Ready: {}", state.message);
        return is(Reason::NodeNotReady, message);
    }
    let Some(offer) = site.offer.filter(|offer| offer.channel) else {
        let message = format!("node {node} has no ResourceSlice with a channel");
        return is(Reason::ComputeDomainPluginMissing, message);
    };
    if let Some(label) = state.label.as_ref().filter(|label| **label != domain.uid) {
        let message = format!("node {node} has the label of ComputeDomain {label}");
        return is(Reason::ComputeDomainLabelConflict, message);
    }
    let own = |claim: &&&Claim| claim.namespace == domain.namespace;
    let Some(claim) = site.mine.iter().find(own) else {
        return without_claim(site, domain);
    };
    if !offer.daemon {
        let message = format!(
            "{} is allocated; the host's own IMEX daemon serves it",
            claim.describe(site.namespace)
        );
        return is(Reason::HostImexUnverified, message);
    }
    if state.label.is_none() {
        let message = format!(
            "{} is allocated and the driver's plugin has not labelled node {node} yet",
            claim.describe(site.namespace)
        );
        return is(Reason::ComputeDomainNotReady, message);
    }
    imex(site, clique, waited)
}

fn without_claim(site: &NodeFacts<'_>, domain: &Domain) -> Option<(Reason, String)> {
    let node = site.node;
    if let Some(claim) = site.mine.first() {
        let message = format!(
            "{} holds the domain's channel on node {node}; only one of namespace {} may",
            claim.describe(site.namespace),
            domain.namespace
        );
        return Some((Reason::ChannelNotPermitted, message));
    }
    if let Some(claim) = site.other {
        let message = format!(
            "the channel of node {node} is held by {}",
            claim.describe(site.namespace)
        );
        return Some((Reason::ChannelBusy, message));
    }
    let without = site.without();
    let message = if without.is_empty() {
        format!("no claim of the domain has its channel on node {node}")
    } else {
        format!("no channel on node {node} for pod {}", without.join(", "))
    };
    Some((Reason::ChannelNotInPod, message))
}

/// Checks the node's IMEX daemon and its clique entry.
fn imex(
    site: &NodeFacts<'_>,
    clique: Option<&str>,
    waited: Option<Duration>,
) -> Option<(Reason, String)> {
    let node = site.node;
    let not_ready = |message: String| Some((Reason::ComputeDomainNotReady, message));
    let Some(daemon) = site.daemon.filter(|daemon| !daemon.leaving) else {
        return not_ready(format!("node {node} has no IMEX daemon pod"));
    };
    let pod = &daemon.pod;
    if daemon.clique.as_deref() == Some("") {
        let message = format!("IMEX daemon pod {pod} found no NVLink clique");
        return Some((Reason::NodeWithoutFabric, message));
    }
    let Some(entry) = site.entry else {
        if site.waits_for_registration()
            && waited.is_some_and(|waited| waited >= REGISTRATION_LIMIT)
        {
            let message = format!(
                "IMEX daemon pod {pod} has run for {} s and is not in its clique, where others are",
                REGISTRATION_LIMIT.as_secs()
            );
            return Some((Reason::ImexDomainFull, message));
        }
        return not_ready(format!("IMEX daemon pod {pod} is not in its clique yet"));
    };
    if entry.clique.is_empty() {
        let message = format!("node {node} is listed without an NVLink clique");
        return Some((Reason::NodeWithoutFabric, message));
    }
    if let Some(clique) = clique.filter(|clique| *clique != entry.clique) {
        let message = format!("it is in clique {}, the members in {clique}", entry.clique);
        return Some((Reason::CliqueMismatch, message));
    }
    if !daemon.ready || !entry.ready {
        return not_ready(format!("IMEX daemon pod {pod} is not ready"));
    }
    None
}

#[cfg(test)]
mod tests;

//! Joins the snapshot of ComputeDomains with the operator's caches: which nodes to evaluate, and their
//! memberships.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crds::node::{DOMAINS_LIMIT, DomainMembership};
use crds::{MooncakeCluster, MooncakeNode, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::cache::ComputeDomains;
use crate::cache::compute_domains::Availability;
use crate::cache::compute_domains::objects::LABEL_DOMAIN;
use crate::cache::compute_domains::registration::REGISTRATION_LIMIT;
use crate::cache::compute_domains::snapshot::DomainSnapshot;
use crate::cache::{Caches, ClusterName};
use crate::compute_domain::membership::{NodeFacts, NodeMembership, NodeState, UserPod, evaluate};
use crate::compute_domain::request::{DomainRequest, Found};
use crate::pod::is_over;

/// The requests of all clusters with spec.mnnvl.
pub fn requests(caches: &Caches) -> Vec<DomainRequest> {
    let clusters = caches.clusters.state();
    let alive = |cluster: &&MooncakeCluster| cluster.meta().deletion_timestamp.is_none();
    clusters
        .iter()
        .filter_map(|cluster| cluster.0.as_ref().ok())
        .filter(alive)
        .filter_map(DomainRequest::of)
        .collect()
}

/// The memberships of all nodes that are related to the cluster's domain.
pub fn of_cluster(
    caches: &Caches,
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
) -> Vec<NodeMembership> {
    let users = users(caches, |pod| names_cluster(pod, request));
    let mut nodes: BTreeSet<String> = users.keys().cloned().collect();
    let mut uids = request.former(snapshot);
    if let Found::Usable(domain) = request.found(snapshot) {
        let members = snapshot.clique_members(&domain.uid).iter();
        nodes.extend(members.map(|member| member.node.clone()));
        uids.push(domain.uid.clone());
        let labelled = |node: &Node| node.labels().get(LABEL_DOMAIN) == Some(&domain.uid);
        let labelled = caches.nodes.state_filter(labelled);
        nodes.extend(labelled.iter().map(|node| node.name_any()));
    }
    for uid in &uids {
        nodes.extend(
            snapshot
                .claims_of(uid)
                .filter_map(|claim| claim.node.clone()),
        );
    }
    nodes
        .iter()
        .filter_map(|name| {
            let node_state = caches.nodes.get(&ObjectRef::<Node>::new(name));
            let node_state = node_state.as_deref().map(node_state_of);
            let users = users.get(name).map_or(&[][..], Vec::as_slice);
            membership(
                &caches.compute_domains,
                snapshot,
                request,
                name,
                node_state.as_ref(),
                users,
            )
        })
        .collect()
}

/// The memberships for the node's MooncakeNode; `None` if unknown: the current ones stay.
pub fn of_node(caches: &Caches, node: &Node) -> Option<Vec<DomainMembership>> {
    let snapshot = match caches.compute_domains.state() {
        Availability::Unknown => return None,
        Availability::Absent(_) => return Some(Vec::new()),
        Availability::Present(snapshot) => snapshot,
    };
    let name = node.name_any();
    let node_state = node_state_of(node);
    let requests = requests(caches);
    if requests.is_empty() {
        return Some(Vec::new());
    }
    let pods = caches.labelled_on.of(&name);
    let mut memberships: Vec<DomainMembership> = requests
        .iter()
        .filter_map(|request| {
            let pods = pods.iter().filter(|pod| names_cluster(pod, request));
            let users: Vec<UserPod> = pods.filter_map(|pod| user(pod)).collect();
            let node_state = Some(&node_state);
            let membership = membership(
                &caches.compute_domains,
                &snapshot,
                request,
                &name,
                node_state,
                &users,
            )?;
            Some(spec_entry(&snapshot, request, membership))
        })
        .collect();
    memberships.sort_by(|a, b| {
        let key = |m: &DomainMembership| (!m.member, m.namespace.clone(), m.cluster.clone());
        key(a).cmp(&key(b))
    });
    memberships.truncate(DOMAINS_LIMIT);
    Some(memberships)
}

/// True if a membership of the node may change by time alone.
pub fn waits(memberships: &[DomainMembership]) -> bool {
    let mut memberships = memberships.iter();
    memberships.any(|membership| membership.reason == crds::Reason::ComputeDomainNotReady)
}

/// The clusters whose domain has or had that UID.
pub fn clusters_of(caches: &Caches, uid: &str) -> Vec<ClusterName> {
    let Availability::Present(snapshot) = caches.compute_domains.state() else {
        return Vec::new();
    };
    requests(caches)
        .into_iter()
        .filter(|request| {
            let there = snapshot.domain(&request.namespace, &request.domain);
            there.is_some_and(|domain| domain.uid == uid)
                || request.known.domain_uid.as_deref() == Some(uid)
                || request.known.former_uids.iter().any(|known| known == uid)
        })
        .map(|request| request.name())
        .collect()
}

/// The clusters of a namespace that request a domain.
pub fn clusters_in(caches: &Caches, namespace: &str) -> Vec<ClusterName> {
    let requests = requests(caches).into_iter();
    requests
        .filter(|request| request.namespace == namespace)
        .map(|request| request.name())
        .collect()
}

/// The clusters whose domain includes that node, or did when its MooncakeNode was written.
pub fn clusters_near(caches: &Caches, node: &str) -> Vec<ClusterName> {
    let Availability::Present(snapshot) = caches.compute_domains.state() else {
        return Vec::new();
    };
    let requests = requests(caches);
    if requests.is_empty() {
        return Vec::new();
    }
    let node_state = caches.nodes.get(&ObjectRef::<Node>::new(node));
    let node_state = node_state.as_deref().map(node_state_of);
    let recorded_clusters = recorded(caches, node);
    requests
        .into_iter()
        .filter(|request| {
            recorded_clusters.contains(&request.name())
                || NodeFacts::of(&snapshot, request, node, node_state.as_ref(), &[]).is_some()
        })
        .map(|request| request.name())
        .collect()
}

/// The nodes with objects of that domain, or with a recorded membership.
pub fn nodes_of(caches: &Caches, uid: &str) -> BTreeSet<String> {
    let mut nodes = BTreeSet::new();
    if let Availability::Present(snapshot) = caches.compute_domains.state() {
        let members = snapshot.clique_members(uid).iter();
        nodes.extend(members.map(|member| member.node.clone()));
        nodes.extend(
            snapshot
                .claims_of(uid)
                .filter_map(|claim| claim.node.clone()),
        );
    }
    let labelled = |node: &Node| node.labels().get(LABEL_DOMAIN).map(String::as_str) == Some(uid);
    let labelled = caches.nodes.state_filter(labelled);
    nodes.extend(labelled.iter().map(|node| node.name_any()));
    nodes.extend(reported(caches, |entry| {
        entry.domain_uid.as_deref() == Some(uid)
    }));
    nodes
}

/// The nodes to reconcile after a change of the cluster.
pub fn nodes_of_cluster(caches: &Caches, cluster: &ClusterName) -> BTreeSet<String> {
    let mut nodes: BTreeSet<String> = reported(caches, |entry| {
        entry.namespace == cluster.namespace && entry.cluster == cluster.name
    })
    .collect();
    let request = requests(caches)
        .into_iter()
        .find(|request| request.name() == *cluster);
    if let (Some(request), Availability::Present(snapshot)) =
        (request, caches.compute_domains.state())
    {
        if let Some(domain) = snapshot.domain(&request.namespace, &request.domain) {
            nodes.extend(nodes_of(caches, &domain.uid));
        }
        nodes.extend(users(caches, |pod| names_cluster(pod, &request)).into_keys());
    }
    nodes
}

/// Nodes whose MooncakeNode has such an entry.
fn reported(
    caches: &Caches,
    request: impl Fn(&DomainMembership) -> bool,
) -> impl Iterator<Item = String> {
    let mooncake_nodes = caches.mooncake_nodes.state();
    let found: Vec<String> = mooncake_nodes
        .iter()
        .filter_map(|mooncake_node| mooncake_node.0.as_ref().ok())
        .filter(|mooncake_node| mooncake_node.spec.domains.iter().any(&request))
        .map(|mooncake_node| mooncake_node.name_any())
        .collect();
    found.into_iter()
}

fn recorded(caches: &Caches, node: &str) -> Vec<ClusterName> {
    let named = ObjectRef::<DeserializeGuard<MooncakeNode>>::new(node);
    let mooncake_node = caches.mooncake_nodes.get(&named);
    let mooncake_node = mooncake_node
        .as_ref()
        .and_then(|mooncake_node| mooncake_node.0.as_ref().ok());
    let entries = mooncake_node
        .iter()
        .flat_map(|mooncake_node| &mooncake_node.spec.domains);
    entries
        .map(|entry| ClusterName {
            namespace: entry.namespace.clone(),
            name: entry.cluster.clone(),
        })
        .collect()
}

fn membership(
    compute_domains: &ComputeDomains,
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
    node: &str,
    node_state: Option<&NodeState>,
    users: &[UserPod],
) -> Option<NodeMembership> {
    // Without an offered channel no pod expects NVLink.
    let offered = snapshot.offer(node).is_some_and(|offer| offer.channel);
    let users = if offered { users } else { &[] };
    let site = NodeFacts::of(snapshot, request, node, node_state, users)?;
    let domain = match request.found(snapshot) {
        Found::Usable(domain) => Some(domain),
        Found::Foreign(_) | Found::Nothing => None,
    };
    let waited = domain.and_then(|domain| {
        let waits = site.waits_for_registration();
        compute_domains
            .registrations()
            .note(&domain.uid, node, waits, Instant::now())
    });
    let clique = domain.and_then(|domain| request.clique(snapshot, domain));
    Some(evaluate(&site, domain, clique.as_deref(), waited))
}

/// Period of rechecks while a membership waits for registration.
pub const RECHECK_PERIOD: std::time::Duration = REGISTRATION_LIMIT;

fn spec_entry(
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
    membership: NodeMembership,
) -> DomainMembership {
    let uid = match request.found(snapshot) {
        Found::Usable(domain) => Some(domain.uid.clone()),
        Found::Foreign(_) | Found::Nothing => None,
    };
    DomainMembership {
        namespace: request.namespace.clone(),
        cluster: request.cluster.clone(),
        domain: request.domain.clone(),
        domain_uid: uid.or_else(|| request.former(snapshot).pop()),
        clique: membership.clique,
        member: membership.member,
        reason: membership.reason.into(),
        message: crds::condition::shorten(&membership.message),
    }
}

/// Relevant state of the Node.
fn node_state_of(node: &Node) -> NodeState {
    let conditions = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready");
    NodeState {
        ready: ready.is_some_and(|ready| ready.status == "True"),
        message: ready
            .and_then(|ready| ready.message.clone().or_else(|| ready.reason.clone()))
            .unwrap_or_else(|| "it has not reported yet".to_owned()),
        label: node.labels().get(LABEL_DOMAIN).cloned(),
    }
}

fn names_cluster(pod: &Pod, request: &DomainRequest) -> bool {
    let labels = pod.labels();
    let has = |label: &str| labels.get(label) == Some(&request.cluster);
    pod.namespace().as_ref() == Some(&request.namespace)
        && (has(names::LABEL_ACCESS) || has(names::LABEL_HOST_ACCESS))
}

fn user(pod: &Pod) -> Option<UserPod> {
    let over = is_over(pod) || pod.meta().deletion_timestamp.is_some();
    (!over).then_some(UserPod {
        pod: pod.name_any(),
        uid: pod.uid()?,
    })
}

/// The cluster's pods by node.
fn users(caches: &Caches, of: impl Fn(&Pod) -> bool) -> BTreeMap<String, Vec<UserPod>> {
    let mut users: BTreeMap<String, Vec<UserPod>> = BTreeMap::new();
    for pod in caches.labelled.state_filter(|pod| of(pod)) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let (Some(node), Some(user)) = (node, user(&pod)) {
            users.entry(node).or_default().push(user);
        }
    }
    users
}

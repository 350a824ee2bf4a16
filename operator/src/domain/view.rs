//! Brings the world of domains together with the operator's own caches: who is to be judged, and the
//! verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crds::node::{DOMAINS_LIMIT, DomainMembership};
use crds::{MooncakeCluster, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};

use crate::cache::{Caches, ClusterName};
use crate::cluster::observe::is_over;
use crate::domain::membership::{Machine, Site, User, Verdict, judge};
use crate::domain::objects::LABEL_DOMAIN;
use crate::domain::patience::REGISTERS;
use crate::domain::wanted::{Found, Wanted};
use crate::domain::world::World;
use crate::domain::{Fabric, State};

/// Every cluster that wants a domain.
pub fn wishes(caches: &Caches) -> Vec<Wanted> {
    let clusters = caches.clusters.state();
    let alive = |cluster: &&MooncakeCluster| cluster.meta().deletion_timestamp.is_none();
    clusters
        .iter()
        .filter_map(|cluster| cluster.0.as_ref().ok())
        .filter(alive)
        .filter_map(Wanted::of)
        .collect()
}

/// The verdicts on all nodes that take part in the cluster's domain.
pub fn of_cluster(caches: &Caches, world: &World, wanted: &Wanted) -> Vec<Verdict> {
    let users = users(caches, |pod| names_cluster(pod, wanted));
    let mut nodes: BTreeSet<String> = users.keys().cloned().collect();
    let mut uids = wanted.former(world);
    if let Found::There(domain) = wanted.found(world) {
        let members = world.clique_members(&domain.uid).iter();
        nodes.extend(members.map(|member| member.node.clone()));
        uids.push(domain.uid.clone());
        let labelled = |node: &Node| node.labels().get(LABEL_DOMAIN) == Some(&domain.uid);
        let labelled = caches.nodes.state_filter(labelled);
        nodes.extend(labelled.iter().map(|node| node.name_any()));
    }
    for uid in &uids {
        nodes.extend(world.claims_of(uid).filter_map(|claim| claim.node.clone()));
    }
    nodes
        .iter()
        .filter_map(|name| {
            let machine = caches.nodes.get(&ObjectRef::<Node>::new(name));
            let machine = machine.as_deref().map(machine_of);
            let users = users.get(name).map_or(&[][..], Vec::as_slice);
            verdict(&caches.fabric, world, wanted, name, machine.as_ref(), users)
        })
        .collect()
}

/// What is to stand in the node's MooncakeNode; `None`: what stands.
pub fn of_node(caches: &Caches, node: &Node) -> Option<Vec<DomainMembership>> {
    let world = match caches.fabric.state() {
        State::Unknown => return None,
        State::Absent(_) => return Some(Vec::new()),
        State::Present(world) => world,
    };
    let name = node.name_any();
    let machine = machine_of(node);
    let wishes = wishes(caches);
    if wishes.is_empty() {
        return Some(Vec::new());
    }
    let pods = caches.labelled_on.of(&name);
    let mut memberships: Vec<DomainMembership> = wishes
        .iter()
        .filter_map(|wanted| {
            let pods = pods.iter().filter(|pod| names_cluster(pod, wanted));
            let users: Vec<User> = pods.filter_map(|pod| user(pod)).collect();
            let machine = Some(&machine);
            let verdict = verdict(&caches.fabric, &world, wanted, &name, machine, &users)?;
            Some(membership(&world, wanted, verdict))
        })
        .collect();
    memberships.sort_by(|a, b| {
        let key = |m: &DomainMembership| (!m.member, m.namespace.clone(), m.cluster.clone());
        key(a).cmp(&key(b))
    });
    memberships.truncate(DOMAINS_LIMIT);
    Some(memberships)
}

/// True where time alone will change a verdict on that node.
pub fn waits(memberships: &[DomainMembership]) -> bool {
    let mut memberships = memberships.iter();
    memberships.any(|membership| membership.reason == crds::Reason::DomainNotReady)
}

/// The clusters whose domain has that UID, had it, or that take part by pods of that domain.
pub fn clusters_of(caches: &Caches, uid: &str) -> Vec<ClusterName> {
    let State::Present(world) = caches.fabric.state() else {
        return Vec::new();
    };
    wishes(caches)
        .into_iter()
        .filter(|wanted| {
            let there = world.domain(&wanted.namespace, &wanted.domain);
            there.is_some_and(|domain| domain.uid == uid)
                || wanted.known.domain_uid.as_deref() == Some(uid)
                || wanted.known.former_uids.iter().any(|known| known == uid)
        })
        .map(|wanted| wanted.name())
        .collect()
}

/// The clusters of a namespace that want a domain.
pub fn clusters_in(caches: &Caches, namespace: &str) -> Vec<ClusterName> {
    let wishes = wishes(caches).into_iter();
    wishes
        .filter(|wanted| wanted.namespace == namespace)
        .map(|wanted| wanted.name())
        .collect()
}

/// The clusters in whose domain that node takes part, or did when it was last written down.
pub fn clusters_near(caches: &Caches, node: &str) -> Vec<ClusterName> {
    let State::Present(world) = caches.fabric.state() else {
        return Vec::new();
    };
    let wishes = wishes(caches);
    if wishes.is_empty() {
        return Vec::new();
    }
    let machine = caches.nodes.get(&ObjectRef::<Node>::new(node));
    let machine = machine.as_deref().map(machine_of);
    let stands = standing(caches, node);
    wishes
        .into_iter()
        .filter(|wanted| {
            stands.contains(&wanted.name())
                || Site::of(&world, wanted, node, machine.as_ref(), &[]).is_some()
        })
        .map(|wanted| wanted.name())
        .collect()
}

/// The nodes on which something of that domain is, or was when it was last written down.
pub fn nodes_of(caches: &Caches, uid: &str) -> BTreeSet<String> {
    let mut nodes = BTreeSet::new();
    if let State::Present(world) = caches.fabric.state() {
        let members = world.clique_members(uid).iter();
        nodes.extend(members.map(|member| member.node.clone()));
        nodes.extend(world.claims_of(uid).filter_map(|claim| claim.node.clone()));
    }
    let labelled = |node: &Node| node.labels().get(LABEL_DOMAIN).map(String::as_str) == Some(uid);
    let labelled = caches.nodes.state_filter(labelled);
    nodes.extend(labelled.iter().map(|node| node.name_any()));
    nodes.extend(reported(caches, |entry| {
        entry.domain_uid.as_deref() == Some(uid)
    }));
    nodes
}

/// The nodes that may have to be told of a change of the cluster.
pub fn nodes_of_cluster(caches: &Caches, cluster: &ClusterName) -> BTreeSet<String> {
    let mut nodes: BTreeSet<String> = reported(caches, |entry| {
        entry.namespace == cluster.namespace && entry.cluster == cluster.name
    })
    .collect();
    let wish = wishes(caches)
        .into_iter()
        .find(|wanted| wanted.name() == *cluster);
    if let (Some(wanted), State::Present(world)) = (wish, caches.fabric.state()) {
        if let Some(domain) = world.domain(&wanted.namespace, &wanted.domain) {
            nodes.extend(nodes_of(caches, &domain.uid));
        }
        nodes.extend(users(caches, |pod| names_cluster(pod, &wanted)).into_keys());
    }
    nodes
}

/// Nodes whose MooncakeNode has such an entry.
fn reported(
    caches: &Caches,
    wanted: impl Fn(&DomainMembership) -> bool,
) -> impl Iterator<Item = String> {
    let reports = caches.reports.state();
    let found: Vec<String> = reports
        .iter()
        .filter_map(|report| report.0.as_ref().ok())
        .filter(|report| report.spec.domains.iter().any(&wanted))
        .map(|report| report.name_any())
        .collect();
    found.into_iter()
}

fn standing(caches: &Caches, node: &str) -> Vec<ClusterName> {
    let reports = caches.reports.state();
    let report = reports
        .iter()
        .filter_map(|report| report.0.as_ref().ok())
        .find(|report| report.metadata.name.as_deref() == Some(node));
    let entries = report.iter().flat_map(|report| &report.spec.domains);
    entries
        .map(|entry| ClusterName {
            namespace: entry.namespace.clone(),
            name: entry.cluster.clone(),
        })
        .collect()
}

fn verdict(
    fabric: &Fabric,
    world: &World,
    wanted: &Wanted,
    node: &str,
    machine: Option<&Machine>,
    users: &[User],
) -> Option<Verdict> {
    // Where no channel is offered, nobody expects NVLink.
    let offered = world.offer(node).is_some_and(|offer| offer.channel);
    let users = if offered { users } else { &[] };
    let site = Site::of(world, wanted, node, machine, users)?;
    let domain = match wanted.found(world) {
        Found::There(domain) => Some(domain),
        Found::Foreign(_) | Found::Nothing => None,
    };
    let waited = domain.and_then(|domain| {
        let waits = site.waits_for_a_place();
        fabric
            .patience()
            .note(&domain.uid, node, waits, Instant::now())
    });
    let clique = domain.and_then(|domain| wanted.clique(world, domain));
    Some(judge(&site, domain, clique.as_deref(), waited))
}

/// Longest time after which a verdict that waits is looked at again.
pub const LOOK_AGAIN: std::time::Duration = REGISTERS;

fn membership(world: &World, wanted: &Wanted, verdict: Verdict) -> DomainMembership {
    let uid = match wanted.found(world) {
        Found::There(domain) => Some(domain.uid.clone()),
        Found::Foreign(_) | Found::Nothing => None,
    };
    DomainMembership {
        namespace: wanted.namespace.clone(),
        cluster: wanted.cluster.clone(),
        domain: wanted.domain.clone(),
        domain_uid: uid.or_else(|| wanted.former(world).pop()),
        clique: verdict.clique,
        member: verdict.member,
        reason: verdict.reason,
        message: crds::condition::shorten(&verdict.message),
    }
}

/// The Node as far as it matters here.
fn machine_of(node: &Node) -> Machine {
    let conditions = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready");
    Machine {
        ready: ready.is_some_and(|ready| ready.status == "True"),
        message: ready
            .and_then(|ready| ready.message.clone().or_else(|| ready.reason.clone()))
            .unwrap_or_else(|| "it has not reported yet".to_owned()),
        label: node.labels().get(LABEL_DOMAIN).cloned(),
    }
}

fn names_cluster(pod: &Pod, wanted: &Wanted) -> bool {
    let labels = pod.labels();
    let has = |label: &str| labels.get(label) == Some(&wanted.cluster);
    pod.namespace().as_ref() == Some(&wanted.namespace)
        && (has(names::LABEL_ACCESS) || has(names::LABEL_HOST_ACCESS))
}

fn user(pod: &Pod) -> Option<User> {
    let over = is_over(pod) || pod.meta().deletion_timestamp.is_some();
    (!over).then_some(User {
        pod: pod.name_any(),
        uid: pod.uid()?,
    })
}

/// The cluster's pods by node.
fn users(caches: &Caches, of: impl Fn(&Pod) -> bool) -> BTreeMap<String, Vec<User>> {
    let mut users: BTreeMap<String, Vec<User>> = BTreeMap::new();
    for pod in caches.labelled.state_filter(|pod| of(pod)) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if let (Some(node), Some(user)) = (node, user(&pod)) {
            users.entry(node).or_default().push(user);
        }
    }
    users
}

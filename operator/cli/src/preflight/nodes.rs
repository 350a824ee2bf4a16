//! Nodes: whether agents and pools match any, whether the images run there, and memory for the pools.

use std::collections::BTreeMap;

use crds::text::first_names;
use k8s_openapi::api::core::v1::{Node, NodeSystemInfo};
use kube::ResourceExt;
use mooncake_operator::admission::{advise, is_used, rooms};
use mooncake_operator::cache::ClusterName;

use super::api::{OLDEST_KUBERNETES, major_minor};
use super::{Check, Facts, Finding, MAX_NAMES, Plan};
use crate::doctor::Severity;

/// Architecture for which the images are built.
const ARCHITECTURE: &str = "amd64";
/// `MADV_POPULATE_WRITE`, by which pool pods touch their memory.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

pub(super) fn findings(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    let Some(nodes) = &facts.nodes else {
        return Vec::new();
    };
    let linux: Vec<&Node> = nodes
        .iter()
        .filter(|node| info(node).is_none_or(|info| info.operating_system != "windows"))
        .collect();
    let (mut found, selected) = agents(&linux, plan);
    found.extend(images(&selected));
    found.extend(policies(&linux, plan));
    let all = rooms(linux.iter().copied(), std::iter::empty(), None);
    let unserved: Vec<&str> = all
        .iter()
        .filter(|room| !matches(&plan.agent_selector, &room.labels))
        .filter(|room| {
            let mut clusters = plan.clusters.iter();
            clusters.any(|cluster| is_used(&cluster.spec, room))
        })
        .map(|room| room.node.as_str())
        .collect();
    if !unserved.is_empty() {
        found.push(Finding::new(
            Severity::Error,
            Check::Nodes,
            format!("Nodes {}", first_names(&unserved, MAX_NAMES)),
            "a pool selects them and agent.nodeSelector does not: no agent serves a pool pod there",
            "Extend agent.nodeSelector of the chart, or narrow nodeSelector of the pool.",
        ));
    }
    for cluster in &plan.clusters {
        // The operator warns in the same words when the MooncakeCluster is created.
        let own = ClusterName {
            namespace: cluster.namespace().unwrap_or_default(),
            name: cluster.name_any(),
        };
        let rooms = rooms(
            linux.iter().copied(),
            facts.mooncake_nodes.iter(),
            Some(&own),
        );
        for message in advise(&cluster.spec, &rooms) {
            let nowhere = message.contains("no node of this cluster matches");
            found.push(Finding::new(
                Severity::Error,
                match nowhere {
                    true => Check::Nodes,
                    false => Check::PoolMemory,
                },
                format!("MooncakeCluster {}", cluster.name_any()),
                message,
                match nowhere {
                    true => "Label nodes, or change nodeSelector and tolerations of the pool.",
                    false => {
                        "Follow the message; `kubectl get nodes -o yaml` shows status.allocatable."
                    }
                },
            ));
        }
    }
    found
}

/// The nodes on which the chart runs agents, and a finding if there are none.
fn agents<'a>(linux: &[&'a Node], plan: &Plan) -> (Vec<Finding>, Vec<&'a Node>) {
    let selected: Vec<&Node> = linux
        .iter()
        .copied()
        .filter(|node| matches(&plan.agent_selector, node.labels()))
        .collect();
    if !selected.is_empty() {
        return (Vec::new(), selected);
    }
    let (message, remedy) = match linux.len() {
        0 => ("the cluster has no Linux node".to_owned(), "Add nodes."),
        count => (
            format!("agent.nodeSelector matches none of {count} Linux nodes"),
            "Label the nodes, or change agent.nodeSelector.",
        ),
    };
    let finding = Finding::new(Severity::Error, Check::Nodes, "chart", message, remedy);
    (vec![finding], selected)
}

/// Nodes of another architecture, with an old kernel or kubelet.
fn images(nodes: &[&Node]) -> Vec<Finding> {
    let those = |wrong: &dyn Fn(&NodeSystemInfo) -> bool| {
        let nodes = nodes.iter().filter(|node| info(node).is_some_and(wrong));
        let names = nodes.filter_map(|node| node.metadata.name.as_deref());
        names.collect::<Vec<&str>>()
    };
    let older = |version: &str, oldest| major_minor(version).is_some_and(|it| it < oldest);
    let other =
        |info: &NodeSystemInfo| !info.architecture.is_empty() && info.architecture != ARCHITECTURE;
    let (major, minor) = OLDEST_KERNEL;
    let (of_kubernetes, minor_of_kubernetes) = OLDEST_KUBERNETES;
    let groups = [
        (
            Check::Nodes,
            those(&other),
            format!(
                "are not {ARCHITECTURE}, for which the images are built: operator, agents and pool pods do not start there"
            ),
            format!(
                "Set kubernetes.io/arch: {ARCHITECTURE} in agent.nodeSelector and operator.nodeSelector of the chart, and in nodeSelector of the pools."
            ),
        ),
        (
            Check::Nodes,
            those(&|info| older(&info.kernel_version, OLDEST_KERNEL)),
            format!(
                "have a kernel before {major}.{minor}: pool pods cannot touch their memory there"
            ),
            "Upgrade the kernel, or keep pools off the nodes with nodeSelector.".to_owned(),
        ),
        (
            Check::KubernetesVersion,
            those(&|info| older(&info.kubelet_version, OLDEST_KUBERNETES)),
            format!(
                "have a kubelet before {of_kubernetes}.{minor_of_kubernetes}, the oldest that the tests run"
            ),
            "Upgrade the kubelet of the nodes.".to_owned(),
        ),
    ];
    let found = groups
        .into_iter()
        .filter(|(_, names, ..)| !names.is_empty());
    found
        .map(|(check, names, message, remedy)| {
            let object = format!("Nodes {}", first_names(&names, MAX_NAMES));
            Finding::new(Severity::Warning, check, object, message, remedy)
        })
        .collect()
}

fn policies(nodes: &[&Node], plan: &Plan) -> Vec<Finding> {
    let idle = plan.policies.iter().filter(|policy| {
        let selector = &policy.spec.node_selector;
        !nodes.iter().any(|node| matches(selector, node.labels()))
    });
    idle.map(|policy| {
        Finding::new(
            Severity::Warning,
            Check::Nodes,
            format!("MooncakeNodePolicy {}", policy.name_any()),
            "no node matches its nodeSelector",
            "Label nodes, or change nodeSelector.",
        )
    })
    .collect()
}

fn matches(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    let mut selector = selector.iter();
    selector.all(|(key, value)| labels.get(key) == Some(value))
}

fn info(node: &Node) -> Option<&NodeSystemInfo> {
    node.status.as_ref()?.node_info.as_ref()
}

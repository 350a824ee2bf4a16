//! Releases and API groups of Kubernetes: the oldest supported one, device claims, ComputeDomains.

use crds::cluster::TransportPolicy;
use crds::text::first_names;
use kube::ResourceExt;
use mooncake_operator::cache::compute_domains::objects as nvidia;

use super::{Check, Facts, Finding, MAX_NAMES, Plan};
use crate::doctor::Severity;

/// Major and minor of the oldest Kubernetes that the tests run, as `kubeVersion` of the chart.
pub const OLDEST_KUBERNETES: (u32, u32) = (1, 35);
/// The version of `resource.k8s.io` that agents and operator use.
const CLAIMS: &str = "v1";
/// Set by the NVIDIA driver on nodes in an NVLink fabric.
const LABEL_NODE_CLIQUE: &str = "nvidia.com/gpu.clique";

pub(super) fn findings(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    let version = facts.kubernetes.as_deref().and_then(version);
    [version, claims(facts, plan), compute_domains(facts, plan)]
        .into_iter()
        .flatten()
        .collect()
}

/// Major and minor of `v1.35.4` or `v1.35.4-gke.100`.
pub(super) fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix('v').unwrap_or(version).split('.');
    let digits = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().ok()
    };
    Some((digits(parts.next()?)?, digits(parts.next()?)?))
}

fn version(found: &str) -> Option<Finding> {
    let (major, minor) = OLDEST_KUBERNETES;
    let (severity, message) = match major_minor(found) {
        Some(it) if it >= OLDEST_KUBERNETES => return None,
        Some(_) => (
            Severity::Error,
            format!("it is {found}; {major}.{minor} is the oldest release that the tests run"),
        ),
        None => (
            Severity::Warning,
            format!("its version `{found}` is not of the form v1.35.4"),
        ),
    };
    Some(Finding::new(
        severity,
        Check::KubernetesVersion,
        "API server",
        message,
        format!("Upgrade the control plane to {major}.{minor} or later."),
    ))
}

fn claims(facts: &Facts, plan: &Plan) -> Option<Finding> {
    let served = facts.groups.claims.as_ref()?;
    if served.iter().any(|version| version == CLAIMS) {
        return None;
    }
    let requiring = plan
        .clusters
        .iter()
        .find(|cluster| cluster.spec.transports_in_force().rdma == TransportPolicy::Require);
    let (severity, whose) = match requiring {
        Some(cluster) => (
            Severity::Error,
            format!(
                "MooncakeCluster {} requires RDMA, whose devices pods claim",
                cluster.name_any()
            ),
        ),
        None if plan.devices => (
            Severity::Warning,
            "agent.devices.enabled offers devices that no pod can claim".to_owned(),
        ),
        None => return None,
    };
    let message = format!(
        "the API server does not serve resource.k8s.io/{CLAIMS}{}; {whose}",
        other_versions(served)
    );
    let remedy = "Use a Kubernetes that serves it, or set agent.devices.enabled to false and do not require RDMA.";
    Some(Finding::new(
        severity,
        Check::DeviceClaims,
        "API server",
        message,
        remedy,
    ))
}

fn compute_domains(facts: &Facts, plan: &Plan) -> Option<Finding> {
    let served = facts.groups.compute_domains.as_ref()?;
    if served.iter().any(|version| version == nvidia::VERSION) {
        return None;
    }
    let using = plan
        .clusters
        .iter()
        .find(|cluster| cluster.spec.mnnvl.is_some());
    let nodes = facts.nodes.iter().flatten();
    let in_fabric: Vec<&str> = nodes
        .filter(|node| node.labels().contains_key(LABEL_NODE_CLIQUE))
        .filter_map(|node| node.metadata.name.as_deref())
        .collect();
    let (severity, whose) = match (using, in_fabric.as_slice()) {
        (Some(cluster), _) => (
            Severity::Error,
            format!("MooncakeCluster {} has spec.mnnvl", cluster.name_any()),
        ),
        (None, []) => return None,
        (None, nodes) => (
            Severity::Warning,
            format!(
                "{} are in an NVLink fabric, which no MooncakeCluster can use",
                first_names(nodes, MAX_NAMES)
            ),
        ),
    };
    let message = format!(
        "the API server does not serve {}/{}{}; {whose}",
        nvidia::GROUP,
        nvidia::VERSION,
        other_versions(served)
    );
    let remedy = "Install the DRA driver dra-driver-nvidia-gpu with ComputeDomains, or leave out spec.mnnvl (docs/mnnvl.md).";
    Some(Finding::new(
        severity,
        Check::ComputeDomains,
        "API server",
        message,
        remedy,
    ))
}

fn other_versions(served: &[String]) -> String {
    match served {
        [] => String::new(),
        versions => format!(" (only {})", versions.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_read() {
        assert_eq!(major_minor("v1.35.4"), Some((1, 35)));
        assert_eq!(major_minor("v1.34.1-gke.1000"), Some((1, 34)));
        assert_eq!(major_minor("1.35+"), Some((1, 35)));
        assert_eq!(major_minor("unknown"), None);
    }
}

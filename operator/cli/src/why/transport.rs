//! The transport of a pod's stock engines and why it was selected.

use std::collections::BTreeMap;

use crds::cluster::TransportPolicy;
use crds::condition::find;
use crds::{ConditionType, MooncakeCluster};
use k8s_openapi::api::core::v1::{Container, Pod};
use mooncake_operator::admission::{
    FORCE_TCP, InjectionRequest, PROTOCOL, Target, injected_protocol,
};
use serde::Serialize;

/// The transport of a pod.
#[derive(Debug, Serialize)]
pub struct PodTransport {
    /// Transport of the store by container.
    pub containers: BTreeMap<String, String>,
    pub message: String,
}

pub(super) fn of(
    pod: &Pod,
    request: &InjectionRequest,
    cluster: Option<&MooncakeCluster>,
) -> PodTransport {
    let value = |container: &Container, name: &str| {
        let mut env = container.env.iter().flatten();
        let variable = env.find(|variable| variable.name == name)?;
        Some(variable.value.clone().unwrap_or_default())
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let containers: BTreeMap<String, String> = containers
        .filter_map(|container| {
            let file = injected_protocol(pod, container);
            let mut protocol = file.or_else(|| value(container, PROTOCOL))?;
            if protocol != "tcp" && value(container, FORCE_TCP).is_some() {
                protocol += &format!(", but {FORCE_TCP} forces tcp");
            }
            Some((container.name.clone(), protocol))
        })
        .collect();
    let expected = Target::new(request, cluster).transport.protocol();
    let mut message = match cluster {
        None => format!("{expected}, the default: the MooncakeCluster could not be read"),
        Some(cluster) => format!("{expected}: {}", cause(cluster)),
    };
    let others = containers.iter().filter(|(_, value)| *value != expected);
    let others: Vec<&str> = others.map(|(container, _)| container.as_str()).collect();
    if !others.is_empty() {
        message += &format!(
            "; {} has another value, from its own spec or from the time of its admission",
            others.join(", ")
        );
    }
    PodTransport {
        containers,
        message,
    }
}

/// Why stock pods of the cluster use their transport.
fn cause(cluster: &MooncakeCluster) -> String {
    let policies = cluster.spec.transports_in_force();
    if policies.rdma == TransportPolicy::Require {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        let conditions: Vec<_> = conditions.cloned().collect();
        let found = find(&conditions, ConditionType::TransportsReady);
        return found.map_or_else(
            || "the spec requires RDMA".to_owned(),
            |condition| condition.message.clone(),
        );
    }
    if policies.tcp == TransportPolicy::Require {
        "spec.transports.tcp is Require"
    } else if policies.rdma == TransportPolicy::Forbid {
        "spec.transports.rdma is Forbid"
    } else {
        "a stock engine has one transport, and with spec.transports.rdma: Prefer this release uses TCP"
    }
    .to_owned()
}

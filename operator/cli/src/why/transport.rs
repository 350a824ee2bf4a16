//! The transport of a pod's stock engines and why it was selected.

use std::collections::BTreeMap;

use crds::cluster::{Transport, TransportPolicy};
use crds::condition::find;
use crds::{ConditionType, MooncakeCluster};
use k8s_openapi::api::core::v1::{Container, Pod};
use mooncake_operator::admission::{
    FORCE_TCP, InjectionRequest, PROTOCOL, Target, injected_protocol,
};
use mooncake_operator::cluster::transport::required;
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
    let spec = match required(&policies) {
        Some(Transport::Tcp) if policies.tcp == TransportPolicy::Require => {
            return "spec.transports.tcp is Require".to_owned();
        }
        Some(Transport::Tcp) => return "spec.transports.rdma is Forbid".to_owned(),
        Some(Transport::Rdma) => "the spec requires RDMA",
        None => "the operator has not decided yet whether every storing node has proved RDMA",
    };
    let status = cluster.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    let decided = find(conditions, ConditionType::TransportsReady);
    decided.map_or_else(|| spec.to_owned(), |decided| decided.message.clone())
}

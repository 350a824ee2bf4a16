//! The transport of a pod's stock engines and why it was selected.

use std::collections::BTreeMap;

use crds::cluster::{Transport, TransportPolicy};
use crds::condition::find;
use crds::{ConditionType, MooncakeCluster, names};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use mooncake_operator::admission::{
    FORCE_TCP, InjectionRequest, PROTOCOL, StockTransport, injected_protocol, transport_of,
};
use mooncake_operator::cluster::transport::{of_stock_pods, required};
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
    let namespace = pod.namespace().unwrap_or_default();
    let given = pod.spec.as_ref().map_or(Ok(StockTransport::Tcp), |spec| {
        transport_of(pod, spec, &namespace, request, cluster)
    });
    let (expected, mut message) = match (given, cluster) {
        (Err(refused), _) => {
            return PodTransport {
                containers,
                message: refused.to_string(),
            };
        }
        (Ok(given), None) => {
            let why = "the default: the MooncakeCluster could not be read";
            (given.protocol(), format!("{}, {why}", given.protocol()))
        }
        (Ok(given), Some(cluster)) => {
            let why = cause(pod, given, cluster);
            (given.protocol(), format!("{}: {why}", given.protocol()))
        }
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

/// Why the pod has this transport: for a reason of its own, or because stock pods of the cluster have it.
fn cause(pod: &Pod, given: StockTransport, cluster: &MooncakeCluster) -> String {
    if given == StockTransport::Tcp && of_stock_pods(cluster) == Transport::Rdma {
        let annotation = names::ANNOTATION_TRANSPORT;
        return if pod.annotations().contains_key(annotation) {
            format!(
                "the pod requests it by the annotation {annotation}, and the MooncakeCluster uses RDMA"
            )
        } else {
            "the MooncakeCluster uses RDMA, and pods of other namespaces are given no RDMA device"
                .to_owned()
        };
    }
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

//! Which transport a pod's stock engines use, and why that one.

use std::collections::BTreeMap;

use crds::MooncakeCluster;
use crds::cluster::{Transport, TransportPolicy};
use k8s_openapi::api::core::v1::{Container, Pod};
use serde::Serialize;

use crate::admission::{FORCE_TCP, PROTOCOL, Target, Wish};
use crate::cluster::validate::transport;

/// The transport of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Used {
    /// Container, then the word that it was given.
    pub containers: BTreeMap<String, String>,
    pub message: String,
}

pub(super) fn used(pod: &Pod, wish: &Wish, cluster: Option<&MooncakeCluster>) -> Used {
    let containers: Vec<&Container> = pod.spec.iter().flat_map(|spec| &spec.containers).collect();
    let value = |container: &Container, name: &str| {
        let var = container
            .env
            .iter()
            .flatten()
            .find(|var| var.name == name)?;
        Some(var.value.clone().unwrap_or_default())
    };
    let given: BTreeMap<String, String> = containers
        .iter()
        .filter_map(|container| {
            let word = value(container, PROTOCOL)?;
            let forced = value(container, FORCE_TCP).is_some();
            let said = if forced && word != "tcp" {
                format!("{word}, but {FORCE_TCP} keeps it on tcp")
            } else {
                word
            };
            Some((container.name.clone(), said))
        })
        .collect();
    let target = Target::new(wish, cluster).transport.protocol();
    let mut message = match cluster {
        None => format!("{target}, the default where the cluster is not known"),
        Some(cluster) => format!("{target}: {}", because(cluster)),
    };
    let others: Vec<&str> = given
        .iter()
        .filter(|(_, word)| *word != target)
        .map(|(container, _)| container.as_str())
        .collect();
    if !others.is_empty() {
        message.push_str(&format!(
            "; {} has another of its own, or from when the pod was made",
            others.join(", ")
        ));
    }
    Used {
        containers: given,
        message,
    }
}

/// Why stock pods of the cluster get the transport that they get.
fn because(cluster: &MooncakeCluster) -> String {
    let policies = cluster.spec.transports_in_force();
    match transport(&policies) {
        Err(why) => why,
        Ok(Transport::Rdma) => "every storing node has proved RDMA".to_owned(),
        Ok(Transport::Tcp) if policies.tcp == TransportPolicy::Require => {
            "spec.transports.tcp is Require".to_owned()
        }
        Ok(Transport::Tcp) if policies.rdma == TransportPolicy::Forbid => {
            "spec.transports.rdma is Forbid".to_owned()
        }
        Ok(Transport::Tcp) => {
            "a stock engine has one transport, and RDMA is given only when every \
                               storing node has proved it; none has"
                .to_owned()
        }
    }
}

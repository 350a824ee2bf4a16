//! The objects that a cluster consists of. Pure, and it cannot fail: what could be wrong was refused
//! by `validate`.

use std::collections::BTreeMap;

use crds::names;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, SeccompProfile, SecurityContext, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::validate::{Settings, Valid};

pub mod claim;
pub mod master;
pub mod network;
pub mod pool;
pub mod service;

pub use network::ForeignPeer;

/// Names who made an object, for people.
pub(crate) const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`LABEL_MANAGED_BY`] and of an EndpointSlice's own label of that meaning.
pub const MANAGED_BY: &str = "mooncake-operator";

/// User and group of every container in a user's namespace.
const NONROOT: i64 = 65532;

/// Every child of one cluster.
#[derive(Clone, Debug)]
pub struct Children {
    pub account: ServiceAccount,
    pub services: Vec<Service>,
    pub policies: Vec<NetworkPolicy>,
    pub slices: Vec<EndpointSlice>,
    pub master: Deployment,
    pub pools: Vec<DaemonSet>,
    /// `None`: the cluster does not require RDMA.
    pub claim_template: Option<ResourceClaimTemplate>,
}

/// What `cluster` should consist of. `peers` are the injected pods of other allowed namespaces.
pub fn desired(cluster: &Valid, settings: &Settings, peers: &[ForeignPeer]) -> Children {
    Children {
        account: service::account(cluster),
        services: service::all(cluster),
        policies: network::policies(cluster, settings),
        slices: network::slices(cluster, peers),
        master: master::deployment(cluster, settings),
        pools: cluster
            .pools
            .iter()
            .map(|pool| pool::daemon_set(cluster, pool, settings))
            .collect(),
        claim_template: claim::template(cluster),
    }
}

/// Labels of everything that belongs to the cluster.
fn labels(cluster: &Valid) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::LABEL_CLUSTER.to_owned(), cluster.name.clone()),
        (LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned()),
    ])
}

/// Labels by which the pods of one component are found.
fn component(cluster: &Valid, component: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::LABEL_CLUSTER.to_owned(), cluster.name.clone()),
        (names::LABEL_COMPONENT.to_owned(), component.to_owned()),
    ])
}

fn metadata(cluster: &Valid, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(labels(cluster)),
        owner_references: Some(vec![cluster.owner.clone()]),
        ..ObjectMeta::default()
    }
}

/// Pod Security "restricted", the pod's part.
fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NONROOT),
        run_as_group: Some(NONROOT),
        fs_group: Some(NONROOT),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// Pod Security "restricted", the container's part, and a read-only root.
fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: None,
            drop: Some(vec!["ALL".to_owned()]),
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

#[cfg(test)]
mod tests;

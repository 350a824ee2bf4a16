//! The objects that a cluster consists of. Pure and infallible: invalid specs were rejected
//! by `validate`.

use std::collections::{BTreeMap, BTreeSet};

use crds::names;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::apply::{LABEL_MANAGED_BY, MANAGED_BY};
use crate::cluster::validate::{Settings, Valid};

pub mod access;
pub mod claim;
pub mod guard;
pub mod master;
pub mod network;
pub mod pool;
pub mod service;

pub use network::ForeignPeer;

/// Every object of one cluster.
#[derive(Clone, Debug)]
pub struct Children {
    pub accounts: Vec<ServiceAccount>,
    pub roles: Vec<Role>,
    pub bindings: Vec<RoleBinding>,
    pub budgets: Vec<PodDisruptionBudget>,
    pub services: Vec<Service>,
    pub policies: Vec<NetworkPolicy>,
    pub slices: Vec<EndpointSlice>,
    /// Created empty; the elected master writes its address. `None`: there is one master.
    pub leader_slice: Option<EndpointSlice>,
    pub master: Deployment,
    pub pools: Vec<DaemonSet>,
    /// `None`: the cluster does not use RDMA.
    pub claim_template: Option<ResourceClaimTemplate>,
}

/// The desired objects of `cluster`. `peers` are the injected pods of other allowed namespaces; `claims`: injected pods get
/// devices; `excluded` are nodes that are drained of pool pods because they are cordoned.
pub fn desired(
    cluster: &Valid,
    settings: &Settings,
    peers: &[ForeignPeer],
    claims: bool,
    excluded: &BTreeSet<String>,
) -> Children {
    let mut budgets = master::budgets(cluster);
    budgets.extend(guard::budgets(cluster));
    Children {
        accounts: access::accounts(cluster),
        roles: access::roles(cluster),
        bindings: access::bindings(cluster, settings),
        budgets,
        services: service::all(cluster),
        policies: network::policies(cluster, settings),
        slices: network::slices(cluster, peers),
        leader_slice: network::leader_slice(cluster),
        master: master::deployment(cluster, settings),
        pools: cluster
            .pools
            .iter()
            .map(|pool| pool::daemon_set(cluster, pool, settings, excluded))
            .collect(),
        claim_template: claims.then(|| claim::template(cluster)),
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

/// What the user adds, with the operator's own, which wins.
fn with_own(
    added: &BTreeMap<String, String>,
    own: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut all = added.clone();
    all.extend(own);
    all
}

#[cfg(test)]
mod tests;

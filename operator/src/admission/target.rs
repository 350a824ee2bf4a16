//! What an injected pod is pointed at: the cluster's settings, or the defaults where there is none.

use crds::cluster::{Injection, MetadataType, MooncakeCluster, OnDeadline};
use crds::names;
use crds::policy::HostPorts;
use proto::metadata::etcd_url;

use super::environment::P2P;
use super::request::InjectionRequest;
use super::transport::StockTransport;
use crate::args::RdmaClass;

/// Settings for one pod, all of them decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub cluster: String,
    pub namespace: String,
    /// Host and port of the master.
    pub master: String,
    /// Seconds of the Lease after which another master takes over; `None`: there is no other one.
    pub elected_for: Option<u32>,
    /// What stock engines connect to for metadata: a URL, or [`P2P`].
    pub metadata: String,
    /// With which their keys begin in an etcd.
    pub metadata_cluster: Option<String>,
    pub transport: StockTransport,
    /// Bytes that a stock client takes for its own transfers.
    pub local_buffer_size: u64,
    pub deadline_seconds: u32,
    pub on_deadline: OnDeadline,
    /// The pod waits for the node checks.
    pub preflight: bool,
    /// Ports on which its engine listens, where the pod is in the node's own network.
    pub host_ports: Option<HostPorts>,
    /// Class of the packets of its engine, with RDMA.
    pub rdma_class: RdmaClass,
    /// Secrets with the credentials of the gate's registry.
    pub pull_secrets: Vec<String>,
}

impl Target {
    /// The target of a request. A cluster that does not exist yet has every default, so pods and
    /// cluster may be applied in any order.
    pub fn new(
        request: &InjectionRequest,
        cluster: Option<&MooncakeCluster>,
        transport: StockTransport,
    ) -> Self {
        let injection = cluster.map_or_else(Injection::default, |c| c.spec.injection.clone());
        Self {
            cluster: request.cluster.clone(),
            namespace: request.namespace.clone(),
            master: names::master_endpoint(&request.cluster, &request.namespace),
            elected_for: cluster.and_then(|cluster| cluster.spec.master.elected_for()),
            metadata: metadata(request, cluster),
            metadata_cluster: cluster
                .filter(|cluster| cluster.spec.metadata.kind == MetadataType::Etcd)
                .map(|_| names::metadata_cluster(&request.cluster, &request.namespace)),
            transport,
            local_buffer_size: injection.local_buffer_size.0,
            deadline_seconds: injection.deadline_seconds,
            on_deadline: injection.on_deadline,
            preflight: cluster.is_some_and(|c| !c.spec.preflight.checks.is_empty()),
            host_ports: None,
            rdma_class: RdmaClass::default(),
            pull_secrets: cluster.map_or_else(Vec::new, |c| {
                let secrets = c.spec.image_pull_secrets.iter();
                secrets.map(|secret| secret.name.clone()).collect()
            }),
        }
    }
}

/// The metadata service of the cluster. Where there is no cluster yet, the default of its spec.
fn metadata(request: &InjectionRequest, cluster: Option<&MooncakeCluster>) -> String {
    let spec = cluster.map(|cluster| cluster.spec.metadata.clone());
    let spec = spec.unwrap_or_default();
    match spec.kind {
        MetadataType::P2P => P2P.to_owned(),
        MetadataType::Http => spec
            .endpoint
            .unwrap_or_else(|| names::metadata_endpoint(&request.cluster, &request.namespace)),
        MetadataType::Etcd => etcd_url(&spec.endpoints.unwrap_or_default()),
    }
}

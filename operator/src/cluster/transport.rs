//! The transport of a cluster's stock pods. Pure.

use crds::cluster::{MooncakeCluster, Transport, TransportPolicy};

/// The transport that injected pods and pool pods of the cluster use: the one in its status, and before there is one RDMA
/// only where the spec allows nothing else.
pub fn of_stock_pods(cluster: &MooncakeCluster) -> Transport {
    let decided = cluster.status.as_ref().and_then(|s| s.transport?.known());
    let requires_rdma = cluster.spec.transports_in_force().rdma == TransportPolicy::Require;
    decided.unwrap_or(if requires_rdma {
        Transport::Rdma
    } else {
        Transport::Tcp
    })
}

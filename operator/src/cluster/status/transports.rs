//! The transport of stock pods, and the condition TransportsReady. Pure.

use crds::cluster::{Transport, TransportPolicy};
use crds::{ConditionType, NewCondition, Reason};

use super::{describe, listed};
use crate::cache::Claimable;
use crate::cluster::pool_pod::{PoolPodStatus, PoolService};
use crate::cluster::validate::Valid;

/// Decides by the spec and by the transport over which pool pods are served. With `rdma: Prefer` stock pods use TCP: one
/// process uses one transport, and every node of the pools serves TCP. Returns no transport while none is served.
pub(super) fn decide(
    cluster: &Valid,
    pods: &[PoolPodStatus],
    claimable: &Claimable,
) -> (Option<Transport>, NewCondition) {
    let kind = ConditionType::TransportsReady;
    if cluster.transports.rdma != TransportPolicy::Require {
        let message = "stock pods use TCP";
        let ready = NewCondition::new(kind, true, Reason::AsExpected, message);
        return (Some(Transport::Tcp), ready);
    }
    let not = |reason, message: String| NewCondition::new(kind, false, reason, message);
    if let Claimable::No(why) = claimable {
        let message =
            format!("the spec requires RDMA, and injected pods are given no RDMA device: {why}");
        return (None, not(Reason::NoUsableTransport, message));
    }
    let serving = |wanted: Transport| {
        pods.iter().filter(move |pod| {
            matches!(pod.service, PoolService::Serving { transport, .. } if transport == wanted)
        })
    };
    let over_tcp: Vec<_> = serving(Transport::Tcp)
        .map(|pod| format!("{} on {}", pod.pod, pod.node))
        .collect();
    if !over_tcp.is_empty() {
        let message = format!(
            "the spec requires RDMA, and these pool pods are still served over TCP: {}. Their agents change that, if \
             they are of release 0.2.0 or later",
            listed(&over_tcp)
        );
        return (None, not(Reason::Progressing, message));
    }
    let count = serving(Transport::Rdma).count();
    if count > 0 {
        let message = format!("stock pods use RDMA, over which {count} pool pods are served");
        let ready = NewCondition::new(kind, true, Reason::AsExpected, message);
        return (Some(Transport::Rdma), ready);
    }
    let unproved = pods.iter().filter_map(|pod| match &pod.service {
        PoolService::NotServing { reason, message } if *reason == Reason::NoUsableTransport => {
            Some(describe(pod, *reason, message))
        }
        _ => None,
    });
    let unproved: Vec<_> = unproved.collect();
    let condition = if unproved.is_empty() {
        let message = "the spec requires RDMA, and no pool pod is served over it yet".to_owned();
        not(Reason::Progressing, message)
    } else {
        let message = format!(
            "the spec requires RDMA, and no pool pod is served over it: {}. To use TCP, set spec.transports.rdma to \
             Prefer, spec.transports.tcp not to Forbid, and remove Pd from spec.usage",
            listed(&unproved)
        );
        not(Reason::NoUsableTransport, message)
    };
    (None, condition)
}

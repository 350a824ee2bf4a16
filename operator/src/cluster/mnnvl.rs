//! The cluster's ComputeDomain: created if the spec requires it, then its status.

use crds::condition::find;
use crds::{
    ConditionStatus, ConditionType, MooncakeCluster, MooncakeClusterStatus, NewCondition, Reason,
};
use kube::Api;

use crate::apply::{Error as WriteError, Writer};
use crate::cache::compute_domains::snapshot::DomainSnapshot;
use crate::cache::compute_domains::{Availability, objects};
use crate::cluster::{Context, pool_pod};
use crate::compute_domain::request::Found;
use crate::compute_domain::status::{DomainStatus, absent, clashes, status};
use crate::compute_domain::{self, DomainRequest, view};

/// Creates the ComputeDomain if required; returns its status, `None` if the cluster has no spec.mnnvl.
pub async fn reconcile(
    context: &Context,
    writer: &Writer,
    cluster: &MooncakeCluster,
    old: &MooncakeClusterStatus,
) -> Result<Option<DomainStatus>, WriteError> {
    let Some(request) = DomainRequest::of(cluster) else {
        return Ok(None);
    };
    let snapshot = match context.caches.compute_domains.state() {
        Availability::Unknown => return Ok(Some(as_before(&request, old))),
        Availability::Absent(why) => return Ok(Some(absent(&request, &why))),
        Availability::Present(snapshot) => snapshot,
    };
    let failed = match create(context, writer, &snapshot, &request).await {
        Ok(()) => None,
        Err(error @ WriteError::Deposed { .. }) => return Err(error),
        // Pools do not depend on it.
        Err(error) => Some(error.to_string()),
    };
    let memberships = view::of_cluster(&context.caches, &snapshot, &request);
    Ok(Some(status(
        &snapshot,
        &request,
        &memberships,
        failed.as_deref(),
    )))
}

async fn create(
    context: &Context,
    writer: &Writer,
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
) -> Result<(), WriteError> {
    let Some(channels) = request.create else {
        return Ok(());
    };
    match request.found(snapshot) {
        Found::Foreign(_) => return Ok(()),
        Found::Nothing if clashes(snapshot, request) => return Ok(()),
        // Created again after its deletion.
        Found::Usable(domain) if domain.leaving => return Ok(()),
        Found::Nothing | Found::Usable(_) => {}
    }
    let kind = objects::compute_domains();
    let api = Api::namespaced_with(context.client.clone(), &request.namespace, &kind);
    let desired = compute_domain::desired::compute_domain(request, channels);
    let compute_domains = &context.caches.compute_domains;
    let current = compute_domains.object(&request.namespace, &request.domain);
    writer
        .apply_kind(&kind.kind, &api, desired, current.as_deref())
        .await?;
    Ok(())
}

/// The previous condition and status, while the state is unknown.
fn as_before(request: &DomainRequest, old: &MooncakeClusterStatus) -> DomainStatus {
    let kind = ConditionType::MnnvlReady;
    let finding = match find(&old.conditions, kind) {
        Some(previous) => {
            let state = [ConditionStatus::True, ConditionStatus::False]
                .into_iter()
                .find(|state| state.as_str() == previous.status)
                .unwrap_or(ConditionStatus::Unknown);
            NewCondition::new(
                kind,
                state,
                pool_pod::parse_reason(&previous.reason),
                previous.message.clone(),
            )
        }
        None => NewCondition::new(
            kind,
            ConditionStatus::Unknown,
            Reason::Progressing,
            "the ComputeDomain was not evaluated yet",
        ),
    };
    let mut status = request.known.clone();
    status.domain.clone_from(&request.domain);
    DomainStatus { finding, status }
}

//! The cluster's ComputeDomain: made where the spec asks for it, then judged.

use crds::condition::find;
use crds::{ConditionType, Finding, MooncakeCluster, MooncakeClusterStatus, Reason, State};
use kube::Api;

use crate::apply::Error as WriteError;
use crate::cluster::{Context, verdict};
use crate::domain::outlook::{Outlook, absent, clashes, outlook};
use crate::domain::wanted::Found;
use crate::domain::{self, Wanted, World, objects, view};

/// What is to be told; `None` where the cluster wants no domain.
pub async fn look(
    context: &Context,
    cluster: &MooncakeCluster,
    old: &MooncakeClusterStatus,
) -> Result<Option<Outlook>, WriteError> {
    let Some(wanted) = Wanted::of(cluster) else {
        return Ok(None);
    };
    let world = match context.caches.fabric.state() {
        domain::State::Unknown => return Ok(Some(as_before(&wanted, old))),
        domain::State::Absent(why) => return Ok(Some(absent(&wanted, &why))),
        domain::State::Present(world) => world,
    };
    let failed = match make(context, &world, &wanted).await {
        Ok(()) => None,
        Err(error @ WriteError::Deposed { .. }) => return Err(error),
        // The pool does not wait for it.
        Err(error) => Some(error.to_string()),
    };
    let verdicts = view::of_cluster(&context.caches, &world, &wanted);
    Ok(Some(outlook(&world, &wanted, &verdicts, failed.as_deref())))
}

async fn make(context: &Context, world: &World, wanted: &Wanted) -> Result<(), WriteError> {
    let Some(channels) = wanted.create else {
        return Ok(());
    };
    match wanted.found(world) {
        Found::Foreign(_) => return Ok(()),
        Found::Nothing if clashes(world, wanted) => return Ok(()),
        // Another is made when it is gone.
        Found::There(domain) if domain.leaving => return Ok(()),
        Found::Nothing | Found::There(_) => {}
    }
    let kind = objects::compute_domains();
    let api = Api::namespaced_with(context.client.clone(), &wanted.namespace, &kind);
    let desired = domain::desired::compute_domain(wanted, channels);
    let fabric = &context.caches.fabric;
    let standing = fabric.object(&wanted.namespace, &wanted.domain);
    context
        .writer
        .apply_kind(&kind.kind, &api, desired, standing.as_deref())
        .await?;
    Ok(())
}

/// Nothing is known yet, so nothing that was known is taken back.
fn as_before(wanted: &Wanted, old: &MooncakeClusterStatus) -> Outlook {
    let kind = ConditionType::MnnvlReady;
    let finding = match find(&old.conditions, kind) {
        Some(said) => {
            let state = [State::True, State::False]
                .into_iter()
                .find(|state| state.as_str() == said.status)
                .unwrap_or(State::Unknown);
            Finding::new(
                kind,
                state,
                verdict::reason(&said.reason),
                said.message.clone(),
            )
        }
        None => Finding::new(
            kind,
            State::Unknown,
            Reason::Progressing,
            "not yet looked at",
        ),
    };
    let mut status = wanted.known.clone();
    status.domain.clone_from(&wanted.domain);
    Outlook { finding, status }
}

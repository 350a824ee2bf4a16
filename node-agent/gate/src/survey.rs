//! One check of everything that the pod waits for: the node's checks if required, the master, the pool pods of its
//! node and a sample of others.

use crds::Reason;
use futures::future::join_all;
use metadata::{Problem, Service, system_lookup};

use super::args::{Hold, Transport};
use super::gate_state::GateState;
use super::master;
use super::peer::{self, PeerError};
use super::preflight;
use super::segment::{Listing, Peer, Plan, plan};

/// Probes everything; a list alone proves nothing.
pub(super) async fn survey(hold: &Hold) -> GateState {
    match walk(hold).await {
        Ok(plan) => probe(hold, plan).await,
        Err(state) => state,
    }
}

async fn walk(hold: &Hold) -> Result<Plan, GateState> {
    let Hold {
        cluster,
        master,
        admin_port,
        node,
        samples,
        preflight,
        metadata,
        metadata_cluster,
        ..
    } = hold;
    if let Some(path) = preflight {
        preflight::passes(path, node)?;
    }
    let addresses = master::resolve(master).await?;
    master::check_release(master, &addresses).await?;
    let body = master::segments(master, &addresses, *admin_port).await?;
    let listing: Listing<'_> = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("cannot parse the master's list of segments: {error}");
        GateState::waiting(Reason::EngineVersionSkew, message)
    })?;
    let plan = plan(&listing, cluster, node, *samples, random_below);
    if let Some(url) = metadata {
        check_metadata(url, metadata_cluster.as_deref(), &plan).await?;
    }
    if plan != Plan::default() {
        return Ok(plan);
    }
    let message = format!("the master {master} has no segment of cluster {cluster} in use");
    let similar = listing.similar(cluster, node);
    Err(if similar.is_empty() {
        GateState::waiting(Reason::PoolPodNotReady, message)
    } else {
        let message = format!("{message}, but {}", similar.join(", "));
        GateState::waiting(Reason::SegmentUnknown, message)
    })
}

/// The metadata service must have the descriptor of a pool pod; without any pool pod it must answer.
async fn check_metadata(url: &str, cluster: Option<&str>, plan: &Plan) -> Result<(), GateState> {
    let waiting = |cause: String| GateState::waiting(Reason::MetadataUnreachable, cause);
    let service = Service::new(url, cluster, system_lookup())
        .map_err(|error| waiting(format!("metadata service {url:?}: {error}")))?;
    let peer = plan.own.first().or_else(|| plan.others.first());
    let segment = peer.map_or("", |peer| &peer.endpoint);
    match service.descriptor(segment).await {
        Ok(_) => Ok(()),
        Err(error) if peer.is_none() && matches!(error.problem, Problem::NoKey(_)) => Ok(()),
        Err(error) => Err(waiting(error.to_string())),
    }
}

/// The pool pods of the node must respond; if it has none, at least one of the others.
async fn probe(hold: &Hold, plan: Plan) -> GateState {
    let Plan { own, others } = plan;
    let transport = hold.transport;
    let (own_failures, failures) =
        tokio::join!(failures(&own, transport), failures(&others, transport));
    if let Some(message) = joined(&own_failures) {
        return GateState::waiting(Reason::PeerUnreachable, message);
    }
    let warnings: Vec<String> = failures.iter().map(ToString::to_string).collect();
    if own.is_empty() && warnings.len() == others.len() {
        let message = format!(
            "node {} has no pool pod, and none of {} others responds: {}",
            hold.node,
            others.len(),
            warnings.join("; ")
        );
        return GateState::waiting(Reason::PeerUnreachable, message);
    }
    GateState::Open { warnings }
}

async fn failures(peers: &[Peer], transport: Transport) -> Vec<PeerError> {
    let probes = peers.iter().map(|peer| peer::probe(peer, transport));
    let results = join_all(probes).await;
    results.into_iter().filter_map(Result::err).collect()
}

fn joined(failures: &[PeerError]) -> Option<String> {
    let words: Vec<String> = failures.iter().map(ToString::to_string).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// A random number below `bound`, which is not 0; 0 if there is no randomness, which only spreads probes less.
fn random_below(bound: usize) -> usize {
    let random = getrandom::u32().unwrap_or(0);
    usize::try_from(random).unwrap_or(0) % bound
}

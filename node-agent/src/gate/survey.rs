//! One look at what the pod waits for: its node where that is asked for, then the pool: master, the own node's pool pods,
//! a sample of others.

use crds::Reason;
use futures::future::join_all;

use super::args::Hold;
use super::master;
use super::peer::{self, PeerError};
use super::preflight;
use super::segment::{Listing, Peer, Plan, plan};
use super::verdict::Verdict;

/// What a look finds. Everything is really tried; lists alone prove nothing.
pub(super) async fn survey(hold: &Hold) -> Verdict {
    match walk(hold).await {
        Ok(plan) => judge(hold, plan).await,
        Err(verdict) => verdict,
    }
}

async fn walk(hold: &Hold) -> Result<Plan, Verdict> {
    let Hold {
        cluster,
        master,
        admin_port,
        node,
        samples,
        preflight,
        ..
    } = hold;
    if let Some(path) = preflight {
        preflight::passes(path, node)?;
    }
    let addresses = master::resolve(master).await?;
    master::answers(master, &addresses).await?;
    let body = master::segments(master, &addresses, *admin_port).await?;
    let listing: Listing<'_> = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the master's list of segments does not parse: {error}");
        Verdict::waiting(Reason::EngineVersionSkew, message)
    })?;
    let plan = plan(&listing, cluster, node, *samples, random_below);
    if plan != Plan::default() {
        return Ok(plan);
    }
    let message = format!("the master {master} knows no segment of cluster {cluster} in use");
    let near = listing.near(cluster, node);
    Err(if near.is_empty() {
        Verdict::waiting(Reason::PoolPodNotReady, message)
    } else {
        let message = format!("{message}, but {}", near.join(", "));
        Verdict::waiting(Reason::SegmentUnknown, message)
    })
}

/// The own node's pool must answer; where the node has none, one of the others must.
async fn judge(hold: &Hold, plan: Plan) -> Verdict {
    let Plan { own, others } = plan;
    let (own_failures, failures) = tokio::join!(failures(&own), failures(&others));
    if let Some(message) = in_words(&own_failures) {
        return Verdict::waiting(Reason::PeerUnreachable, message);
    }
    let warnings: Vec<String> = failures.iter().map(ToString::to_string).collect();
    if own.is_empty() && warnings.len() == others.len() {
        let message = format!(
            "node {} has no pool, and none of {} others answers: {}",
            hold.node,
            others.len(),
            warnings.join("; ")
        );
        return Verdict::waiting(Reason::PeerUnreachable, message);
    }
    Verdict::Open { warnings }
}

async fn failures(peers: &[Peer]) -> Vec<PeerError> {
    let tries = join_all(peers.iter().map(peer::answers)).await;
    tries.into_iter().filter_map(Result::err).collect()
}

fn in_words(failures: &[PeerError]) -> Option<String> {
    let words: Vec<String> = failures.iter().map(ToString::to_string).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// A number below `bound`, which is not 0. Without randomness the first is taken: the sample is
/// then the same for all, which costs nothing but spread.
fn random_below(bound: usize) -> usize {
    let random = getrandom::u32().unwrap_or(0);
    usize::try_from(random).unwrap_or(0) % bound
}

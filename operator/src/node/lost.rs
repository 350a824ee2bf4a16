//! Nodes that nobody hears from: their segments leave the master before its own time is up, so that
//! nobody waits for bytes that cannot come.
//!
//! ```text
//! heard --(kubelet silent)--> silent --(PATIENCE, and no pool pod of it answers)--> lost
//! lost --(assigned another instance of the master, then unmounted)--> out of the pool
//! ```
//!
//! A node that still answers on its pool pods' own addresses is only cut off from the API server: it
//! keeps serving. Where most nodes fall silent at once, it is not they who are lost.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crds::names;
use crds::node::PoolAssignment;
use kube::ResourceExt;
use tokio::net::TcpStream;

use crate::cluster::admin::{self, Segment};
use crate::node::observe::{Observed, PoolPod, address};

/// How long a node must be silent, by our own clock. After an outage of the API server kubelets need
/// up to 10 s until they are heard again.
pub const PATIENCE: Duration = Duration::from_secs(12);
/// How often a silent node is looked at.
pub const LOOK: Duration = Duration::from_secs(4);
/// Longest time for one connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest time for one call to the master.
const CALL: Duration = Duration::from_secs(3);

/// Since when each node is silent, as far as this process has seen.
#[derive(Debug, Default)]
pub struct Silence {
    since: Mutex<HashMap<String, Instant>>,
}

impl Silence {
    /// Notes what was seen now; how long the node has been silent, if it is.
    pub fn note(&self, node: &str, silent: bool, now: Instant) -> Option<Duration> {
        let mut since = self
            .since
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !silent {
            since.remove(node);
            return None;
        }
        let first = since.entry(node.to_owned()).or_insert(now);
        Some(now.duration_since(*first))
    }

    /// Nodes that are silent now.
    pub fn count(&self) -> usize {
        self.since
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .len()
    }
}

/// Segments of one pool pod that a master still offers.
#[derive(Clone, Debug)]
pub struct Left {
    pub pod_uid: String,
    pub pod_name: String,
    pub master: SocketAddr,
    pub segments: Vec<Segment>,
}

/// Why a segment could not be taken out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("master {master}: connect: {cause}")]
    Connect {
        master: SocketAddr,
        cause: std::io::Error,
    },
    #[error("master {master}: no connection in {} s", CONNECT.as_secs())]
    Silent { master: SocketAddr },
    #[error("segment {segment}: id not understood: {cause}")]
    Id {
        segment: String,
        cause: <store::Uuid as FromStr>::Err,
    },
    #[error("segment {segment}: {cause}")]
    Unmount {
        segment: String,
        cause: store::Error,
    },
}

/// What the masters still offer of a silent node, pods that answer left out.
pub async fn left(observed: &Observed) -> Vec<Left> {
    let mut left = Vec::new();
    for pool in &observed.pools {
        let entry = observed
            .report
            .iter()
            .flat_map(|report| &report.spec.pools)
            .find(|entry| Some(&entry.pod_uid) == pool.pod.uid().as_ref());
        let (Some(entry), Some(ip)) = (entry, pool.master_ip) else {
            continue;
        };
        match of_pod(&observed.name, entry, pool, ip).await {
            Ok(Some(found)) => left.push(found),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(node = %observed.name, pod = %entry.pod_name, %error,
                    "the master's index could not be read");
            }
        }
    }
    left
}

async fn of_pod(
    node: &str,
    entry: &PoolAssignment,
    pool: &PoolPod,
    master: IpAddr,
) -> Result<Option<Left>, admin::Error> {
    let index = SocketAddr::new(master, names::MASTER_ADMIN_PORT);
    let segments: Vec<Segment> = admin::segments(index)
        .await?
        .into_iter()
        .filter(|segment| is_of(&segment.name, entry, node))
        .collect();
    if segments.is_empty() || answers(address(&pool.pod)).await {
        return Ok(None);
    }
    Ok(Some(Left {
        pod_uid: entry.pod_uid.clone(),
        pod_name: entry.pod_name.clone(),
        master: SocketAddr::new(master, names::MASTER_RPC_PORT),
        segments,
    }))
}

/// True where the segment is an extent of that pool on that node.
fn is_of(segment: &str, entry: &PoolAssignment, node: &str) -> bool {
    segment
        .rsplit_once('.')
        .and_then(|(_, index)| index.parse().ok())
        .is_some_and(|index| segment == names::segment(&entry.cluster, &entry.pool, node, index))
}

/// True where somebody accepts connections at the pool pod's address.
async fn answers(pod: Option<IpAddr>) -> bool {
    let Some(ip) = pod else { return false };
    let connect = TcpStream::connect((ip, names::POOL_HANDSHAKE_PORT));
    matches!(tokio::time::timeout(CONNECT, connect).await, Ok(Ok(_)))
}

/// Takes the segments out of the master; objects whose last replica lay there go with them.
pub async fn unmount(left: &Left) -> Result<(), Error> {
    let master = left.master;
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect(master))
        .await
        .map_err(|_| Error::Silent { master })?
        .map_err(|cause| Error::Connect { master, cause })?;
    let link = store::Master::connect(stream, master.to_string()).with_call_timeout(CALL);
    for segment in &left.segments {
        let id = |text: &str| {
            text.parse().map_err(|cause| Error::Id {
                segment: segment.name.clone(),
                cause,
            })
        };
        link.unmount(id(&segment.client_id)?, id(&segment.segment_id)?)
            .await
            .map_err(|cause| Error::Unmount {
                segment: segment.name.clone(),
                cause,
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_from_its_first_sight_and_ends_with_a_word() {
        let (silence, now) = (Silence::default(), Instant::now());
        assert_eq!(silence.note("n1", true, now), Some(Duration::ZERO));
        let later = now + PATIENCE;
        assert_eq!(silence.note("n1", true, later), Some(PATIENCE));
        assert_eq!(silence.count(), 1);
        assert_eq!(silence.note("n1", false, later), None);
        assert_eq!(silence.note("n1", true, later), Some(Duration::ZERO));
    }

    #[test]
    fn only_the_extents_of_that_pool_on_that_node_are_its_segments() {
        let entry: PoolAssignment = serde_yaml_ng::from_str(
            "{podUid: u, podName: p, namespace: team, cluster: kv, clusterUid: c, pool: a, size: 1Gi, \
             pageSize: 4Ki, numaPolicy: Any, drainSeconds: 5}",
        )
        .unwrap();
        assert!(is_of("kv.a.n1.example.0", &entry, "n1.example"));
        assert!(is_of("kv.a.n1.example.12", &entry, "n1.example"));
        for other in [
            "kv.a.n1.0",
            "kv.a.n1.example.x",
            "kv.b.n1.example.0",
            "n1.example",
            "0",
        ] {
            assert!(!is_of(other, &entry, "n1.example"), "{other}");
        }
    }
}

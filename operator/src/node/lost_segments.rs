//! Unmounts the segments of unresponsive nodes before the master's own timeout, so that clients do not
//! wait for bytes that cannot come.
//!
//! ```text
//! ready --(kubelet does not report)--> unresponsive --(UNMOUNT_DELAY, and its pool pods do not respond)--> lost
//! lost --(assigned another instance of the master, then unmounted)--> out of the pool
//! ```
//!
//! A node whose pool pods still respond is only cut off from the API server: it keeps serving. If most
//! nodes are unresponsive at once, the fault is not theirs and nothing is unmounted.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crds::names;
use crds::node::PoolAssignment;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::cluster::admin::{self, Segment};
use crate::node::observe::{Observed, PoolPod};
use crate::pod::address;

/// How long a node must be unresponsive. After an outage of the API server kubelets need up to 10 s to
/// report again.
pub const UNMOUNT_DELAY: Duration = Duration::from_secs(12);
/// How often an unresponsive node is checked.
pub const RECHECK_PERIOD: Duration = Duration::from_secs(4);
/// Longest time for one connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest time for one call to the master.
const CALL: Duration = Duration::from_secs(3);

/// When this process first saw each unresponsive node, by name and UID.
#[derive(Debug, Default)]
pub struct UnresponsiveNodes {
    since: Mutex<HashMap<(String, String), Instant>>,
    /// When deleted nodes were removed last.
    swept: Mutex<Option<Instant>>,
}

impl UnresponsiveNodes {
    /// Records the state now; returns how long the node has been unresponsive, if it is.
    pub fn note(
        &self,
        node: &str,
        uid: &str,
        unresponsive: bool,
        now: Instant,
    ) -> Option<Duration> {
        let mut since = self.since.lock();
        let node = (node.to_owned(), uid.to_owned());
        if !unresponsive {
            since.remove(&node);
            return None;
        }
        let first = since.entry(node).or_insert(now);
        Some(now.duration_since(*first))
    }

    /// Forgets the nodes that no longer exist, by name and UID; at most once per `RECHECK_PERIOD`. Otherwise deleted
    /// nodes would soon be most of the unresponsive ones, and no lost node would be cleaned up any more.
    pub fn forget_deleted(&self, exists: impl Fn(&str, &str) -> bool, now: Instant) {
        let mut swept = self.swept.lock();
        if swept.is_some_and(|at| now.duration_since(at) < RECHECK_PERIOD) {
            return;
        }
        *swept = Some(now);
        let mut since = self.since.lock();
        since.retain(|(name, uid), _| exists(name, uid));
    }

    /// Number of nodes that are unresponsive now.
    pub fn count(&self) -> usize {
        self.since.lock().len()
    }
}

/// Segments of one pool pod that a master still lists.
#[derive(Clone, Debug)]
pub struct LostSegments {
    pub pod_uid: String,
    pub pod_name: String,
    pub master: SocketAddr,
    pub segments: Vec<Segment>,
}

/// Why segments could not be unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot connect to master {master}: {cause}")]
    Connect {
        master: SocketAddr,
        cause: std::io::Error,
    },
    #[error("cannot connect to master {master} in {} s", CONNECT.as_secs())]
    Timeout { master: SocketAddr },
    #[error("segment {segment}: the master reports an invalid id: {cause}")]
    Id {
        segment: String,
        cause: <store::Uuid as FromStr>::Err,
    },
    #[error("cannot unmount segment {segment}: {cause}")]
    Unmount {
        segment: String,
        cause: store::Error,
    },
}

/// The segments that masters still list for an unresponsive node, except those of pods that respond.
pub async fn find(observed: &Observed) -> Vec<LostSegments> {
    let mut lost = Vec::new();
    for pool in &observed.pools {
        let entry = observed
            .mooncake_node
            .iter()
            .flat_map(|mooncake_node| &mooncake_node.spec.pools)
            .find(|entry| Some(&entry.pod_uid) == pool.pod.uid().as_ref());
        let (Some(entry), Some(ip)) = (entry, pool.master_ip) else {
            continue;
        };
        match of_pod(&observed.name, entry, pool, ip).await {
            Ok(Some(found)) => lost.push(found),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(node = %observed.name, pod = %entry.pod_name, %error,
                    "cannot read the master's segments; retrying");
            }
        }
    }
    lost
}

async fn of_pod(
    node: &str,
    entry: &PoolAssignment,
    pool: &PoolPod,
    master: IpAddr,
) -> Result<Option<LostSegments>, admin::Error> {
    let index = SocketAddr::new(master, names::MASTER_ADMIN_PORT);
    let segments: Vec<Segment> = admin::segments(index)
        .await?
        .into_iter()
        .filter(|segment| is_of(&segment.name, entry, node))
        .collect();
    if segments.is_empty() || responds(address(&pool.pod)).await {
        return Ok(None);
    }
    Ok(Some(LostSegments {
        pod_uid: entry.pod_uid.clone(),
        pod_name: entry.pod_name.clone(),
        master: SocketAddr::new(master, names::MASTER_RPC_PORT),
        segments,
    }))
}

/// True if the segment is an extent of that pool on that node.
fn is_of(segment: &str, entry: &PoolAssignment, node: &str) -> bool {
    segment
        .rsplit_once('.')
        .and_then(|(_, index)| index.parse().ok())
        .is_some_and(|index| segment == names::segment(&entry.cluster, &entry.pool, node, index))
}

/// True if the pool pod accepts connections.
async fn responds(pod: Option<IpAddr>) -> bool {
    let Some(ip) = pod else { return false };
    let connect = TcpStream::connect((ip, names::POOL_HANDSHAKE_PORT));
    matches!(tokio::time::timeout(CONNECT, connect).await, Ok(Ok(_)))
}

/// Unmounts the segments from the master; objects whose last replica is in them are lost.
pub async fn unmount(lost: &LostSegments) -> Result<(), Error> {
    let master = lost.master;
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect(master))
        .await
        .map_err(|_| Error::Timeout { master })?
        .map_err(|cause| Error::Connect { master, cause })?;
    let link = store::Master::connect(stream, master.to_string()).with_call_timeout(CALL);
    for segment in &lost.segments {
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
    fn unresponsive_time_starts_at_first_observation_and_ends_with_a_report() {
        let (nodes, now) = (UnresponsiveNodes::default(), Instant::now());
        let note = |silent, at| nodes.note("n1", "u1", silent, at);
        assert_eq!(note(true, now), Some(Duration::ZERO));
        let later = now + UNMOUNT_DELAY;
        assert_eq!(note(true, later), Some(UNMOUNT_DELAY));
        assert_eq!(nodes.count(), 1);
        assert_eq!(note(false, later), None);
        assert_eq!(note(true, later), Some(Duration::ZERO));
    }

    #[test]
    fn deleted_nodes_are_forgotten_and_a_new_node_of_the_name_starts_again() {
        let (nodes, start) = (UnresponsiveNodes::default(), Instant::now());
        for spot in 0..100 {
            nodes.note(&format!("spot-{spot}"), "u", true, start);
        }
        nodes.note("n1", "u1", true, start);
        let exists = |name: &str, uid: &str| (name, uid) == ("n1", "u1");
        nodes.forget_deleted(exists, start);
        assert_eq!(nodes.count(), 1, "100 deleted spot nodes count");
        let later = start + UNMOUNT_DELAY;
        assert_eq!(nodes.note("n1", "u1", true, later), Some(UNMOUNT_DELAY));
        assert_eq!(nodes.note("n1", "u2", true, later), Some(Duration::ZERO));
        nodes.forget_deleted(|_, uid| uid == "u2", later);
        assert_eq!(nodes.count(), 1);
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

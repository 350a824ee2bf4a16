//! What a master says about itself: over RPC to a pod's gate, over HTTP to its own readiness probe.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crds::Reason;
use serde::Deserialize;
use store::{Master, ProbeError};
use tokio::net::TcpStream;

use super::http::{self, GetError};
use super::verdict::Verdict;

/// Time for each of connecting, the RPC and the list.
const DEADLINE: Duration = Duration::from_secs(2);
/// Time for a readiness probe, below the kubelet's own.
const READY_DEADLINE: Duration = Duration::from_millis(1500);

/// Why the master is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error("the master's admin service at {address} does not answer: {cause}")]
    Get {
        address: SocketAddr,
        cause: GetError,
    },
    #[error("the master's health is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the master says that it does not serve: role {role}, state {ha_state}")]
    NotServing { role: String, ha_state: String },
}

#[derive(Deserialize)]
struct Health {
    #[serde(default)]
    service_ready: bool,
    #[serde(default)]
    role: String,
    #[serde(default)]
    ha_state: String,
}

/// Asks the admin service; its status code is 200 in every state, only `service_ready` counts.
///
/// # Errors
/// Whatever is not a master that serves.
pub async fn master_ready(address: SocketAddr) -> Result<(), NotReady> {
    let host = address.to_string();
    let body = http::get(address, &host, "/health", READY_DEADLINE)
        .await
        .map_err(|cause| NotReady::Get { address, cause })?;
    let Health {
        service_ready,
        role,
        ha_state,
    } = serde_json::from_slice(&body)?;
    if service_ready {
        Ok(())
    } else {
        Err(NotReady::NotServing { role, ha_state })
    }
}

/// The addresses of `master` (host and port). Looked up anew each time: it may move.
pub(super) async fn resolve(master: &str) -> Result<Vec<SocketAddr>, Verdict> {
    let failed = |error: io::Error| {
        let message = format!("the master's name {master} cannot be resolved: {error}");
        Verdict::waiting(Reason::MasterUnreachable, message)
    };
    match tokio::time::timeout(DEADLINE, tokio::net::lookup_host(master)).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(failed(error)),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

/// Whether the RPC service of `master`, at these addresses, is of our generation.
pub(super) async fn answers(master: &str, addresses: &[SocketAddr]) -> Result<(), Verdict> {
    let connecting = TcpStream::connect(addresses);
    let stream = match tokio::time::timeout(DEADLINE, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(master, &error)),
        Err(_) => return Err(unreachable(master, &io::ErrorKind::TimedOut.into())),
    };
    let service = Master::connect(stream, master.to_owned()).with_call_timeout(DEADLINE);
    match service.probe_generation().await {
        Ok(_) => Ok(()),
        Err(ProbeError::Skew(skew)) => Err(Verdict::waiting(
            Reason::EngineVersionSkew,
            skew.to_string(),
        )),
        Err(ProbeError::Unasked(error)) => {
            Err(Verdict::waiting(Reason::MasterNotReady, error.to_string()))
        }
    }
}

fn unreachable(master: &str, error: &io::Error) -> Verdict {
    let message = format!("the master {master} cannot be connected to: {error}");
    Verdict::waiting(Reason::MasterUnreachable, message)
}

/// The list of segments, JSON.
pub(super) async fn segments(
    master: &str,
    addresses: &[SocketAddr],
    admin_port: u16,
) -> Result<Vec<u8>, Verdict> {
    let host = master.rsplit_once(':').map_or(master, |(host, _)| host);
    let host = format!("{host}:{admin_port}");
    let admin: Vec<_> = addresses
        .iter()
        .map(|address| SocketAddr::new(address.ip(), admin_port))
        .collect();
    http::get(&admin[..], &host, "/get_segments_detail", DEADLINE)
        .await
        .map_err(|cause| {
            let message = format!("the master's list of segments at {host}: {cause}");
            Verdict::waiting(Reason::MasterUnreachable, message)
        })
}

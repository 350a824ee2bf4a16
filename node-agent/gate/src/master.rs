//! Checks of a master: over RPC for the gate of a pod, over HTTP for its readiness probe.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crds::Reason;
use serde::Deserialize;
use store::{Master, ProbeError};
use tokio::net::TcpStream;

use super::gate_state::GateState;
use super::http::{self, GetError};

/// Deadline of each of connecting, the RPC and the list.
const DEADLINE: Duration = Duration::from_secs(2);
/// Deadline of a readiness probe, below the kubelet's.
const READY_DEADLINE: Duration = Duration::from_millis(1500);

/// Why the master is not ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotReady {
    #[error("the master's admin service at {address} does not respond: {cause}")]
    Get {
        address: SocketAddr,
        cause: GetError,
    },
    #[error("the master's health is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the master is not ready: role {role}, state {ha_state}")]
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

/// Checks readiness through the admin service. Its status code is 200 in every state; `service_ready` decides.
///
/// # Errors
/// No response, malformed health, or a master that is not ready.
pub(crate) async fn master_ready(address: SocketAddr) -> Result<(), NotReady> {
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

/// Resolves `master` (host and port) each time, since it may move.
pub(super) async fn resolve(master: &str) -> Result<Vec<SocketAddr>, GateState> {
    let failed = |error: io::Error| {
        let message = format!("cannot resolve the master's name {master}: {error}");
        GateState::waiting(Reason::MasterUnreachable, message)
    };
    match tokio::time::timeout(DEADLINE, tokio::net::lookup_host(master)).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(failed(error)),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

/// Checks that the RPC service of `master` at these addresses has a supported release.
pub(super) async fn check_release(master: &str, addresses: &[SocketAddr]) -> Result<(), GateState> {
    let connecting = TcpStream::connect(addresses);
    let stream = match tokio::time::timeout(DEADLINE, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(unreachable(master, &error)),
        Err(_) => return Err(unreachable(master, &io::ErrorKind::TimedOut.into())),
    };
    let service = Master::connect(stream, master.to_owned()).with_call_timeout(DEADLINE);
    match service.probe_release().await {
        Ok(_) => Ok(()),
        Err(ProbeError::Skew(skew)) => Err(GateState::waiting(
            Reason::EngineVersionSkew,
            skew.to_string(),
        )),
        Err(ProbeError::Call(error)) => Err(GateState::waiting(
            Reason::MasterNotReady,
            error.to_string(),
        )),
    }
}

fn unreachable(master: &str, error: &io::Error) -> GateState {
    let message = format!("cannot connect to the master {master}: {error}");
    GateState::waiting(Reason::MasterUnreachable, message)
}

/// Reads the list of segments (JSON).
pub(super) async fn segments(
    master: &str,
    addresses: &[SocketAddr],
    admin_port: u16,
) -> Result<Vec<u8>, GateState> {
    let host = master.rsplit_once(':').map_or(master, |(host, _)| host);
    let host = format!("{host}:{admin_port}");
    let admin: Vec<_> = addresses
        .iter()
        .map(|address| SocketAddr::new(address.ip(), admin_port))
        .collect();
    http::get(&admin[..], &host, "/get_segments_detail", DEADLINE)
        .await
        .map_err(|cause| {
            let message = format!("cannot read the master's list of segments at {host}: {cause}");
            GateState::waiting(Reason::MasterUnreachable, message)
        })
}

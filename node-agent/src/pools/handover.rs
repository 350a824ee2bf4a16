//! Connects to a pool process in its network namespace, and verifies that the process belongs to the pod. Reads nothing
//! from it: its engine process does.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crds::reason::Reason;
use pool::handover::ADDRESS;
use sys::net::{Namespace, seqpacket};

use super::processes::Process;

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) reason: Reason,
    pub(super) message: String,
}

/// Connects to the pool process of a pod. Verifies with the kernel's credentials of the listener that it
/// belongs to the pod and runs in the pod's network namespace.
///
/// # Errors
/// `ForeignProcess`: another process listens. `PoolPodNotReady`: none does.
pub(super) async fn connect(
    proc: &Path,
    process: &Process,
    network: &Arc<Namespace>,
    pod_uid: &str,
) -> Result<OwnedFd, Refused> {
    let inside = Arc::clone(network);
    let connected =
        tokio::task::spawn_blocking(move || inside.run(|| seqpacket::connect(ADDRESS))).await;
    let socket = connected
        .map_err(io::Error::other)
        .flatten()
        .map_err(|error| Refused {
            reason: Reason::PoolPodNotReady,
            message: format!(
                "cannot connect to pool process {} of pod {pod_uid}: {error}",
                process.pid
            ),
        })?;
    let foreign = |what: String| Refused {
        reason: Reason::ForeignProcess,
        message: format!("the hand-over socket of pod {pod_uid} is served by {what}"),
    };
    let unreadable = |error: io::Error| foreign(format!("an unknown process: {error}"));
    let Some(pid) = seqpacket::peer(&socket).map_err(unreadable)?.pid else {
        return Err(foreign(
            "a process outside this node's PID namespace".to_owned(),
        ));
    };
    let gone = |error: io::Error| foreign(format!("process {pid}, which cannot be read: {error}"));
    let listener = Process::open(proc, pid).map_err(gone)?;
    let of = listener.pod_uid().map_err(gone)?;
    if of.as_deref() != Some(pod_uid) {
        let of = of.unwrap_or_else(|| "no pod".to_owned());
        return Err(foreign(format!("process {pid}, which belongs to {of}")));
    }
    let here = process.network_identity().map_err(gone)?;
    if listener.network_identity().map_err(gone)? != here {
        return Err(foreign(format!(
            "process {pid} of another network namespace"
        )));
    }
    if !listener.runs() {
        return Err(foreign(format!("process {pid}, which has ended")));
    }
    Ok(socket)
}

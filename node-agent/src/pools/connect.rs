//! Connects to a pool process in its network namespace, and verifies that the process belongs to the pod.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crds::reason::Reason;
use sys::net::{Namespace, seqpacket};

use super::failure::Failure;
use super::record::{Record, RecordError};
use crate::pools::processes::{PoolProcess, Process};
use pool::handover::record::Key;
use pool::handover::{ADDRESS, Client, Connection};

/// Limit for inspecting one process. The tasks of served pods wait for it when an agent starts.
const INSPECT_DEADLINE: Duration = Duration::from_secs(1);

/// Connects to the pool process of a pod. Verifies with the kernel's credentials of the listener that it
/// belongs to the pod and runs in the pod's network namespace.
pub(super) async fn connect(
    proc: &Path,
    process: &Process,
    network: &Arc<Namespace>,
    pod_uid: &str,
) -> Result<Client, Failure> {
    let inside = Arc::clone(network);
    let socket = tokio::task::spawn_blocking(move || inside.run(|| seqpacket::connect(ADDRESS)))
        .await
        .map_err(|error| Failure::new(Reason::HandoverFailed, error))?
        .map_err(|error| {
            let message = format!(
                "cannot connect to pool process {} of pod {pod_uid}: {error}",
                process.pid
            );
            Failure::new(Reason::PoolPodNotReady, message)
        })?;
    let connection = Connection::new(socket)?;
    let foreign = |what: String| {
        let message = format!("the hand-over socket of pod {pod_uid} is served by {what}");
        Failure::new(Reason::ForeignProcess, message)
    };
    let Some(pid) = connection.peer()?.pid else {
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
    Ok(Client::new(connection))
}

/// Result of the inspection of a pool process.
pub(crate) enum Inspection {
    /// An agent of this node sealed its record.
    Ours(Box<Record>),
    /// It has no record, or the record cannot be used.
    Foreign,
    /// It did not answer in time.
    NoResponse,
}

/// Reads the record of a pool process without attaching to it.
pub(crate) async fn inspect(proc: &Path, found: &PoolProcess, key: &Key) -> Inspection {
    let record = async {
        let process = Process::open(proc, found.pid).ok()?;
        let network = Arc::new(process.network().ok()?);
        let mut client = connect(proc, &process, &network, &found.pod_uid)
            .await
            .ok()?;
        client.record().await.ok()
    };
    let Ok(Some(kept)) = tokio::time::timeout(INSPECT_DEADLINE, record).await else {
        return Inspection::NoResponse;
    };
    let Some(sealed) = kept else {
        return Inspection::Foreign;
    };
    match Record::open(key, &found.pod_uid, &sealed) {
        Ok(record) => Inspection::Ours(Box::new(record)),
        Err(RecordError::Forged) => Inspection::Foreign,
        Err(error @ RecordError::Unreadable(_)) => {
            tracing::warn!(pod = found.pod_uid, %error, "cannot take over a pool pod");
            Inspection::Foreign
        }
    }
}

//! Connects to a pool process in its own network namespace, and makes sure whose process it is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crds::reason::Reason;
use sys::net::{Namespace, seqpacket};

use super::failure::Failure;
use super::record::{Record, Unusable};
use crate::agent::census::{Found, Process};
use crate::handover::record::Key;
use crate::handover::{ADDRESS, Client, Connection};

/// How long a look may take. Pods that are served wait for it when an agent starts.
const PEEK_DEADLINE: Duration = Duration::from_secs(1);

/// Connects to the pool process of a pod and checks, by what the kernel says about the listener,
/// that it is of that pod and in that network namespace.
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
                "connecting to the pool process {} of pod {pod_uid}: {error}",
                process.pid
            );
            Failure::new(Reason::PoolPodNotReady, message)
        })?;
    let connection = Connection::new(socket)?;
    let foreign = |what: String| {
        let message = format!("at the hand-over socket of pod {pod_uid} {what}");
        Failure::new(Reason::ForeignProcess, message)
    };
    let Some(pid) = connection.peer()?.pid else {
        return Err(foreign("listens a process of another machine".to_owned()));
    };
    let gone = |error: io::Error| foreign(format!("listens process {pid}, which is gone: {error}"));
    let listener = Process::open(proc, pid).map_err(gone)?;
    let of = listener.pod_uid().map_err(gone)?;
    if of.as_deref() != Some(pod_uid) {
        let of = of.unwrap_or_else(|| "no pod".to_owned());
        return Err(foreign(format!("listens process {pid}, which is of {of}")));
    }
    let here = process.network_identity().map_err(gone)?;
    if listener.network_identity().map_err(gone)? != here {
        return Err(foreign(format!(
            "listens process {pid} from another network namespace"
        )));
    }
    if !listener.runs() {
        return Err(foreign(format!("listened process {pid}, which ended")));
    }
    Ok(Client::new(connection))
}

/// What a look at a pool process tells.
pub(crate) enum Peeked {
    /// An agent of this node sealed its record.
    Ours(Box<Record>),
    /// Nobody did, or it cannot be used.
    Foreign,
    /// It gave no answer in time.
    Unclear,
}

/// Looks at the record of a pool process without becoming its agent.
pub(crate) async fn peek(proc: &Path, found: &Found, key: &Key) -> Peeked {
    let look = async {
        let process = Process::open(proc, found.pid).ok()?;
        let network = Arc::new(process.network().ok()?);
        let mut client = connect(proc, &process, &network, &found.pod_uid)
            .await
            .ok()?;
        client.record().await.ok()
    };
    let Ok(Some(kept)) = tokio::time::timeout(PEEK_DEADLINE, look).await else {
        return Peeked::Unclear;
    };
    let Some(sealed) = kept else {
        return Peeked::Foreign;
    };
    match Record::open(key, &found.pod_uid, &sealed) {
        Ok(record) => Peeked::Ours(Box::new(record)),
        Err(Unusable::Forged) => Peeked::Foreign,
        Err(error @ Unusable::Unreadable(_)) => {
            tracing::warn!(pod = found.pod_uid, %error, "cannot take a pool pod over");
            Peeked::Foreign
        }
    }
}

//! Serves the handshake listener: connections run concurrently, each with one framed request and one
//! deadline.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::handshake::{self, FrameError, Kind, Notify, PREFIX_LENGTH, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::accept;
use crate::admission::{ConnectionLimit, PeerFilter};
use crate::ended::Ended;
use crate::identity::Identity;
#[cfg(feature = "rdma")]
use crate::transport::rdma::Served;

/// Most messages in the queue; further ones are rejected.
const NOTIFY_LIMIT: usize = 1024;
/// Most bytes of all messages in the queue.
const NOTIFY_BYTES: usize = 1 << 20;
/// Frames above this size wait for one of [`LARGE_FRAMES`] permits, which bounds the memory of all
/// connections.
const SMALL: usize = 16 << 10;
const LARGE_FRAMES: usize = 8;
/// Most concurrent connections, of all peers and of one address.
const CONNECTIONS: usize = 256;
const CONNECTIONS_PER_ADDRESS: usize = 32;

/// Messages from peers that were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct NotifyQueue {
    messages: VecDeque<Notify>,
    bytes: usize,
}

impl NotifyQueue {
    fn push(&mut self, notify: Notify) -> bool {
        let size = notify.name.len() + notify.notify_msg.len();
        if self.messages.len() >= NOTIFY_LIMIT || self.bytes + size > NOTIFY_BYTES {
            return false;
        }
        self.bytes += size;
        self.messages.push_back(notify);
        true
    }

    pub(crate) fn take(&mut self) -> Vec<Notify> {
        self.bytes = 0;
        self.messages.drain(..).collect()
    }
}

/// The state that all connections of an endpoint's handshake listener share.
#[derive(Debug)]
pub(crate) struct HandshakeState {
    pub(crate) identity: Arc<Identity>,
    pub(crate) notifies: Mutex<NotifyQueue>,
    large: Semaphore,
    /// Of an engine over RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) served: Option<Arc<Served>>,
}

impl HandshakeState {
    pub(crate) fn new(identity: Arc<Identity>) -> Self {
        let large = Semaphore::new(LARGE_FRAMES);
        Self {
            #[cfg(feature = "rdma")]
            served: identity.served(),
            identity,
            notifies: Mutex::default(),
            large,
        }
    }
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How long an RDMA device may take for a rendezvous: the rest of a connection's deadline is for the refusal.
fn patience(deadline: Duration) -> Duration {
    deadline * 4 / 5
}

/// Serves a handshake listener until the task is aborted, or `stop` changes and each request that was accepted is answered.
pub(crate) async fn serve(
    listener: TcpListener,
    state: Arc<HandshakeState>,
    filter: Arc<PeerFilter>,
    deadline: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let limit = ConnectionLimit::new(CONNECTIONS_PER_ADDRESS, CONNECTIONS, Arc::default());
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.try_join_next().is_some() {}
        let (stream, from) = tokio::select! {
            next = accept::next(&listener) => next,
            _ = stop.changed() => break,
        };
        let Some(permit) = filter.check(from, &limit) else {
            continue;
        };
        let (state, filter) = (Arc::clone(&state), Arc::clone(&filter));
        // The set aborts its tasks when it is dropped with this task.
        running.spawn(async move {
            let until = Instant::now() + patience(deadline);
            let conversation = converse(stream, (from, &filter), &state, until);
            let ended = match tokio::time::timeout(deadline, conversation).await {
                Ok(Ok(())) => return filter.counters.answered(),
                Ok(Err(Unanswered::Frame(error))) => {
                    tracing::debug!(%from, %error, "handshake rejected");
                    Ended::BadHeader
                }
                Ok(Err(Unanswered::Io(_))) => Ended::Broken,
                Err(_) => Ended::HeaderDeadline,
            };
            filter.counters.ended(permit.peer(), ended);
        });
    }
    drop(listener);
    running.join_all().await;
}

/// Reads the request, answers it, and waits for the peer to close, as stock engines do.
async fn converse(
    mut stream: TcpStream,
    from: (IpAddr, &PeerFilter),
    state: &HandshakeState,
    until: Instant,
) -> Result<(), Unanswered> {
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await?;
    let length = handshake::length(prefix)?;
    let permit = if length > SMALL {
        state.large.acquire().await.ok()
    } else {
        None
    };
    // Grows with the bytes that arrive, not with the announced length.
    let mut payload = Vec::new();
    (&mut stream)
        .take(length as u64)
        .read_to_end(&mut payload)
        .await?;
    if payload.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let reply = answer(Request::parse(&payload)?, from, state, until).await?;
    drop((payload, permit));
    stream.write_all(&reply).await?;
    stream.shutdown().await?;
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    Ok(())
}

/// A rendezvous is answered by `until`: the peer is not to blame for a device that is busy or hangs.
async fn answer(
    request: Request,
    from: (IpAddr, &PeerFilter),
    state: &HandshakeState,
    until: Instant,
) -> Result<Vec<u8>, FrameError> {
    let (from, filter) = from;
    #[cfg(feature = "rdma")]
    if let (Some(served), Request::Connection { typed, body, .. }) = (&state.served, &request) {
        let theirs = proto::rdma::Rendezvous::parse(body)?;
        let (ours, peer) = (theirs.peer_nic_path.clone(), theirs.local_nic_path.clone());
        let answering = served.answer(from, theirs);
        let Ok(reply) = tokio::time::timeout_at(until, answering).await else {
            let why = late(&ours, &peer);
            tracing::warn!(%from, why, "RDMA connection refused");
            return Ok(handshake::connection_refusal(*typed, &ours, &peer, &why));
        };
        // The admission may have changed since the accept.
        if !filter.allows(from) {
            served.admit(filter).await;
        }
        return Ok(reply.frame(*typed));
    }
    let _without_rdma = (from, filter, until);
    Ok(match request {
        Request::Metadata { protocol } => {
            handshake::encode(Some(Kind::Metadata), &state.identity.encoded_for(protocol))
        }
        Request::Probe => handshake::probe_reply(),
        Request::Notify(notify) => handshake::notify_reply(state.notifies.lock().push(notify)),
        Request::Connection {
            typed,
            peer_nic_path,
            local_nic_path,
            ..
        } => {
            let why = "this segment is served over TCP and has no RDMA endpoint";
            handshake::connection_refusal(typed, &peer_nic_path, &local_nic_path, why)
        }
    })
}

/// Why a rendezvous is refused that has waited too long. The NIC path has named the device.
#[cfg(feature = "rdma")]
fn late(ours: &str, peer: &str) -> String {
    let device = proto::rdma::split_nic_path(ours).map_or("", |(_, device)| device);
    format!(
        "RDMA device {device} of {ours} has not connected queue pairs with {peer} in time: it is busy or hangs"
    )
}

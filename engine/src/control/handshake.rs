//! The handshake listener: one framed request per connection, served concurrently, each within
//! one deadline.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::handshake::{self, FrameError, Kind, Notify, PREFIX_LENGTH, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::accept::{self, Door};
use super::identity::Identity;
use crate::admission::Gate;
use crate::stats::Ended;

/// Messages that wait to be fetched; more are answered as rejected.
const NOTIFY_LIMIT: usize = 1024;
/// Bytes of all messages that wait.
const NOTIFY_BYTES: usize = 1 << 20;
/// Frames above this wait for one of [`LARGE_FRAMES`] places, which bounds the memory of all
/// connections together.
const SMALL: usize = 16 << 10;
const LARGE_FRAMES: usize = 8;
/// Connections at once, of all peers and of one address.
const CONNECTIONS: usize = 256;
const CONNECTIONS_PER_ADDRESS: usize = 32;

/// Messages that peers left and nobody fetched yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: VecDeque<Notify>,
    bytes: usize,
}

impl Inbox {
    fn offer(&mut self, notify: Notify) -> bool {
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

/// What every connection of a host's handshake listener shares.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) identity: Arc<Identity>,
    pub(crate) inbox: Mutex<Inbox>,
    large: Semaphore,
}

impl Desk {
    pub(crate) fn new(identity: Arc<Identity>) -> Self {
        let large = Semaphore::new(LARGE_FRAMES);
        Self {
            identity,
            inbox: Mutex::default(),
            large,
        }
    }
}

/// Why a connection got no answer.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Serves a handshake listener until the task is ended.
pub(crate) async fn serve(
    listener: TcpListener,
    desk: Arc<Desk>,
    door: Arc<Door>,
    deadline: Duration,
) {
    let gate = Gate::new(CONNECTIONS_PER_ADDRESS, CONNECTIONS, Arc::default());
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.try_join_next().is_some() {}
        let (stream, from) = accept::next(&listener).await;
        let Some(peer) = door.meet(from) else {
            continue;
        };
        let Some(ticket) = gate.enter(&peer) else {
            door.counters.ended(&peer, Ended::OverLimit);
            continue;
        };
        let (desk, door) = (Arc::clone(&desk), Arc::clone(&door));
        // The set ends its tasks when this task is ended.
        running.spawn(async move {
            match tokio::time::timeout(deadline, converse(stream, &desk)).await {
                Ok(Ok(())) => door.counters.handshakes.add(1),
                Ok(Err(Unanswered::Frame(error))) => {
                    tracing::debug!(%from, %error, "handshake refused");
                    door.counters.ended(&peer, Ended::BadHeader);
                }
                Ok(Err(Unanswered::Io(_))) => door.counters.ended(&peer, Ended::Broken),
                Err(_) => door.counters.ended(&peer, Ended::HeaderDeadline),
            }
            drop(ticket);
        });
    }
}

/// Reads the request, answers, and waits for the peer to close, as stock engines do.
async fn converse(mut stream: TcpStream, desk: &Desk) -> Result<(), Unanswered> {
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await?;
    let length = handshake::length(prefix)?;
    let place = if length > SMALL {
        desk.large.acquire().await.ok()
    } else {
        None
    };
    // Grows with what really comes, not with what was announced.
    let mut payload = Vec::new();
    (&mut stream)
        .take(length as u64)
        .read_to_end(&mut payload)
        .await?;
    if payload.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let reply = answer(Request::parse(&payload)?, desk);
    drop((payload, place));
    stream.write_all(&reply).await?;
    stream.shutdown().await?;
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    Ok(())
}

fn answer(request: Request, desk: &Desk) -> Vec<u8> {
    match request {
        Request::Metadata => {
            handshake::encode(Some(Kind::Metadata), &desk.identity.descriptor().encode())
        }
        Request::Probe => handshake::probe_reply(),
        Request::Notify(notify) => {
            let mut inbox = desk.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            handshake::notify_reply(inbox.offer(notify))
        }
        Request::Connection {
            typed,
            peer_nic_path,
            local_nic_path,
        } => {
            let why = "this segment is served over tcp; it has no RDMA endpoint";
            handshake::connection_refusal(typed, &peer_nic_path, &local_nic_path, why)
        }
    }
}

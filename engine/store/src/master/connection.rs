//! One socket: a task that writes requests, a task that reads replies and hands them out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::coro_rpc::{RequestHeader, ResponseHeader};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::error::Lost;

/// No answer that a storing node asks for comes near it; a hostile master costs at most this.
const MOST_REPLY_BYTES: u32 = 16 << 20;
/// Requests that wait for the socket; further callers wait within their deadlines.
const QUEUED_REQUESTS: usize = 64;

/// One reply: the RPC layer's code and the body.
pub(super) struct Reply {
    pub(super) code: u8,
    pub(super) body: Vec<u8>,
}

pub(super) struct Connection {
    requests: mpsc::Sender<Vec<u8>>,
    calls: Arc<Mutex<Calls>>,
    /// Reader and writer; they end with the connection.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Calls {
    /// Sequence number of the next call.
    next: u32,
    waiting: HashMap<u32, oneshot::Sender<Reply>>,
    lost: Option<Lost>,
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    pub(super) fn start(stream: TcpStream) -> Self {
        // Without it small requests wait for earlier acknowledgements: slower, not wrong.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY refused");
        }
        let (read, write) = stream.into_split();
        let (requests, queue) = mpsc::channel(QUEUED_REQUESTS);
        let calls = Arc::new(Mutex::new(Calls::default()));
        let mut tasks = JoinSet::new();
        let of_reader = Arc::clone(&calls);
        tasks.spawn(async move {
            let Err(lost) = read_replies(read, &of_reader).await;
            end(&of_reader, lost);
        });
        let of_writer = Arc::clone(&calls);
        tasks.spawn(async move {
            if let Err(error) = write_requests(write, queue).await {
                end(&of_writer, Lost::Io(Arc::new(error)));
            }
        });
        Self {
            requests,
            calls,
            _tasks: tasks,
        }
    }

    /// Sends one request and waits for its reply. The caller sets the deadline; when it gives up,
    /// the reply is dropped on arrival.
    pub(super) async fn exchange(&self, function_id: u32, body: &[u8]) -> Result<Reply, Lost> {
        let (sender, reply) = oneshot::channel();
        let sequence = {
            let mut calls = lock(&self.calls);
            if let Some(lost) = &calls.lost {
                return Err(lost.clone());
            }
            let sequence = calls.next;
            calls.next = calls.next.wrapping_add(1);
            calls.waiting.insert(sequence, sender);
            sequence
        };
        let _forget = Forget {
            calls: &self.calls,
            sequence,
        };
        let length = u32::try_from(body.len()).map_err(|_| Lost::TooLarge(u32::MAX))?;
        let mut frame = RequestHeader {
            sequence,
            function_id,
            length,
        }
        .encode()
        .to_vec();
        frame.extend_from_slice(body);
        // Both ends vanish only when the connection has ended, and then the reason stands there.
        let sent = self.requests.send(frame).await.is_ok();
        match reply.await {
            Ok(reply) if sent => Ok(reply),
            _ => Err(lock(&self.calls).lost.clone().unwrap_or(Lost::Closed)),
        }
    }
}

/// Takes a call out of the waiting ones, however its future ends.
struct Forget<'a> {
    calls: &'a Mutex<Calls>,
    sequence: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.calls).waiting.remove(&self.sequence);
    }
}

/// Ends every call, present and future, with the reason. The first reason stays.
fn end(calls: &Mutex<Calls>, reason: Lost) {
    let mut calls = lock(calls);
    calls.lost.get_or_insert(reason);
    calls.waiting.clear();
}

async fn write_requests(
    mut socket: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> std::io::Result<()> {
    while let Some(frame) = queue.recv().await {
        socket.write_all(&frame).await?;
    }
    Ok(())
}

async fn read_replies(
    mut socket: OwnedReadHalf,
    calls: &Mutex<Calls>,
) -> Result<std::convert::Infallible, Lost> {
    loop {
        let mut header = [0; ResponseHeader::BYTES];
        socket.read_exact(&mut header).await.map_err(broken)?;
        let header = ResponseHeader::decode(header)?;
        if header.length > MOST_REPLY_BYTES {
            return Err(Lost::TooLarge(header.length));
        }
        let body = read_body(&mut socket, header.length).await?;
        hand_out(
            calls,
            header.sequence,
            Reply {
                code: header.code,
                body,
            },
        )?;
    }
}

/// Memory grows with what really arrives, not with what the header announces.
async fn read_body(socket: &mut (impl AsyncRead + Unpin), length: u32) -> Result<Vec<u8>, Lost> {
    let mut body = Vec::new();
    let read = socket
        .take(u64::from(length))
        .read_to_end(&mut body)
        .await
        .map_err(broken)?;
    if read as u64 == u64::from(length) {
        Ok(body)
    } else {
        Err(Lost::Closed)
    }
}

fn hand_out(calls: &Mutex<Calls>, sequence: u32, reply: Reply) -> Result<(), Lost> {
    let mut calls = lock(calls);
    match calls.waiting.remove(&sequence) {
        // The caller may give up at this very moment; nobody misses the reply then.
        Some(waiting) => drop(waiting.send(reply)),
        None if sequence < calls.next => tracing::debug!(sequence, "reply after its deadline"),
        None => return Err(Lost::NeverAsked(sequence)),
    }
    Ok(())
}

fn broken(error: std::io::Error) -> Lost {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        Lost::Closed
    } else {
        Lost::Io(Arc::new(error))
    }
}

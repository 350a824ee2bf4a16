//! One connection: a task that writes requests, and a task that reads and delivers replies.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::coro_rpc::{RequestHeader, ResponseHeader};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::error::Lost;

/// Limit of a reply after the deadline of its call, which is not kept.
const MOST_LATE_BYTES: u32 = 16 << 20;
/// Bytes of one read.
const READ: usize = 16 << 10;
/// Most queued requests; further callers wait, within their deadlines.
const QUEUED_REQUESTS: usize = 64;

/// A reply: the code of the RPC layer and the body.
pub(super) struct Reply {
    pub(super) code: u8,
    pub(super) body: Vec<u8>,
}

pub(super) struct Connection {
    requests: mpsc::Sender<Vec<u8>>,
    calls: Arc<Mutex<Calls>>,
    /// Reader and writer; aborted when this is dropped.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Calls {
    /// Sequence number of the next call.
    next: u32,
    waiting: HashMap<u32, Waiting>,
    lost: Option<Lost>,
}

/// A call that waits for its reply.
struct Waiting {
    reply: oneshot::Sender<Reply>,
    /// Limit of the reply's size.
    most_bytes: u32,
}

impl Connection {
    pub(super) fn start(stream: TcpStream) -> Self {
        // Without it small requests wait for earlier acknowledgements, which only adds latency.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
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

    /// Sends a request and waits for its reply, of at most `most_bytes`. The caller sets the deadline. If the future is
    /// dropped, the reply is discarded.
    pub(super) async fn exchange(
        &self,
        function_id: u32,
        body: &[u8],
        most_bytes: u32,
    ) -> Result<Reply, Lost> {
        let (sender, reply) = oneshot::channel();
        let sequence = {
            let mut calls = self.calls.lock();
            if let Some(lost) = &calls.lost {
                return Err(lost.clone());
            }
            let sequence = calls.next;
            calls.next = calls.next.wrapping_add(1);
            let waiting = Waiting {
                reply: sender,
                most_bytes,
            };
            calls.waiting.insert(sequence, waiting);
            sequence
        };
        let _remove = RemoveOnDrop {
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
        // Either fails only after the connection has ended, for the reason in `lost`.
        let sent = self.requests.send(frame).await.is_ok();
        match reply.await {
            Ok(reply) if sent => Ok(reply),
            _ => Err(self.calls.lock().lost.clone().unwrap_or(Lost::Closed)),
        }
    }
}

/// Removes a call from the waiting calls when its future ends.
struct RemoveOnDrop<'a> {
    calls: &'a Mutex<Calls>,
    sequence: u32,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.calls.lock().waiting.remove(&self.sequence);
    }
}

/// Ends all current and later calls with a reason. The first reason is kept.
fn end(calls: &Mutex<Calls>, reason: Lost) {
    let mut calls = calls.lock();
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
    socket: OwnedReadHalf,
    calls: &Mutex<Calls>,
) -> Result<std::convert::Infallible, Lost> {
    // Header and body of a small reply take one system call.
    let mut socket = BufReader::with_capacity(READ, socket);
    loop {
        let mut header = [0; ResponseHeader::BYTES];
        socket.read_exact(&mut header).await.map_err(broken)?;
        let header = ResponseHeader::decode(header)?;
        let expected = expected(calls, header.sequence)?;
        if header.length > expected.unwrap_or(MOST_LATE_BYTES) {
            return Err(Lost::TooLarge(header.length));
        }
        if expected.is_none() {
            skip(&mut socket, header.length).await?;
            continue;
        }
        let body = read_body(&mut socket, header.length).await?;
        // Its call may have ended meanwhile.
        if let Some(waiting) = calls.lock().waiting.remove(&header.sequence) {
            let _ended = waiting.reply.send(Reply {
                code: header.code,
                body,
            });
        }
    }
}

/// Returns the limit of a reply; `None` after the deadline of its call.
fn expected(calls: &Mutex<Calls>, sequence: u32) -> Result<Option<u32>, Lost> {
    let calls = calls.lock();
    match calls.waiting.get(&sequence) {
        Some(waiting) => Ok(Some(waiting.most_bytes)),
        None if sequence < calls.next => {
            tracing::debug!(sequence, "reply after its deadline");
            Ok(None)
        }
        None => Err(Lost::UnexpectedReply(sequence)),
    }
}

async fn skip(socket: &mut (impl AsyncRead + Unpin), length: u32) -> Result<(), Lost> {
    let mut body = socket.take(u64::from(length));
    let skipped = tokio::io::copy(&mut body, &mut tokio::io::sink()).await;
    if skipped.map_err(broken)? == u64::from(length) {
        Ok(())
    } else {
        Err(Lost::Closed)
    }
}

/// Memory grows with the bytes that arrive, not with the announced length.
async fn read_body(socket: &mut (impl AsyncRead + Unpin), length: u32) -> Result<Vec<u8>, Lost> {
    let mut body = Vec::with_capacity(READ.min(length as usize));
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

fn broken(error: std::io::Error) -> Lost {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        Lost::Closed
    } else {
        Lost::Io(Arc::new(error))
    }
}

//! One connection: reads requests, answers them, and writes the replies of one read together.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use proto::coro_rpc::{
    HeaderError, INVALID_ARGUMENTS, MESSAGE_TOO_LARGE, NOT_REGISTERED, RequestHeader,
    ResponseHeader,
};
use proto::struct_pack::{self, DecodeError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Master, ledger};
use crate::admission::Peer;
use crate::index::Wait;

/// Bytes of one read.
const READ: usize = 16 << 10;
/// Bytes that each connection may buffer without a permit.
const FREE: usize = 64 << 10;
/// Replies are written when they have this size, so that they do not accumulate.
const MOST_REPLIES: usize = 256 << 10;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    ByPeer,
    /// The peer sent nothing for the idle time.
    Idle,
    Io(io::Error),
    Header(HeaderError),
    TooLarge {
        bytes: u32,
        most: u32,
    },
    /// A request did not arrive whole in time, or the peer did not take its replies.
    Deadline(&'static str, Duration),
    /// All connections together buffer too much.
    NoBuffers,
    /// The owners of segments did not acknowledge the changes of a call in time, so its outcome after a restart is open.
    Unacknowledged(Duration),
    /// The peer's address is no longer admitted.
    NotAdmitted,
    /// Another master leads, or may lead.
    NotLeading,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ByPeer => f.write_str("the peer closed it"),
            Self::Idle => f.write_str("no request within the idle time"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Header(error) => write!(f, "{error}"),
            Self::TooLarge { bytes, most } => {
                write!(f, "a request of {bytes} bytes exceeds the limit of {most}")
            }
            Self::Deadline(what, time) => write!(f, "{what} within {time:?}"),
            Self::Unacknowledged(time) => write!(
                f,
                "the owners of segments did not acknowledge a change of keys within {time:?}: look at their engine processes"
            ),
            Self::NoBuffers => f.write_str("all connections together buffer too much"),
            Self::NotAdmitted => f.write_str("the peer is no longer admitted"),
            Self::NotLeading => f.write_str("this master no longer leads"),
        }
    }
}

/// Received bytes, of which the first ones have been read.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    read: usize,
}

impl Input {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.read..]
    }

    /// Drops the bytes that were read, and returns memory that one large request has needed.
    fn settle(&mut self) {
        if self.read == self.bytes.len() && self.bytes.capacity() > FREE {
            self.bytes = Vec::new();
        } else {
            self.bytes.drain(..self.read);
        }
        self.read = 0;
    }

    /// Returns the capacity for the next read. It grows with the bytes that have arrived, not with the announced length.
    fn wanted(&self) -> usize {
        let length = self.bytes.len();
        let header = self.bytes.first_chunk();
        let header = header.and_then(|header| RequestHeader::decode(*header).ok());
        let whole = header.map_or(0, |header| RequestHeader::BYTES + header.length as usize);
        whole.min(2 * length).max(length + READ)
    }
}

/// Replies that are not sent yet.
#[derive(Default)]
struct Unsent {
    /// What must happen before.
    waits: Vec<Wait>,
    /// The numbers of the functions, and when their calls began.
    calls: Vec<(usize, Instant)>,
}

impl Unsent {
    /// Waits until the owners of segments have acknowledged what the calls have changed, and counts the time of the calls.
    async fn may_be_sent(&mut self, master: &Master) -> Result<(), Ended> {
        ledger::acknowledged(master, std::mem::take(&mut self.waits)).await?;
        if !self.calls.is_empty() {
            let now = Instant::now();
            for (function, began) in self.calls.drain(..) {
                master.traffic.answered(function, now - began);
            }
        }
        Ok(())
    }
}

/// Serves a connection until it ends. The caller closes it.
pub(super) async fn serve(master: &Master, stream: &mut TcpStream, peer: Peer) -> Ended {
    match converse(master, stream, peer).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

async fn converse(
    master: &Master,
    stream: &mut TcpStream,
    peer: Peer,
) -> Result<std::convert::Infallible, Ended> {
    let limits = &master.limits;
    stream.set_nodelay(limits.no_delay).map_err(Ended::Io)?;
    let mut input = Input::default();
    let mut replies = Vec::new();
    // When the first byte of the incomplete request arrived.
    let mut began: Option<Instant> = None;
    let mut permit: Option<SemaphorePermit<'_>> = None;
    let mut unsent = Unsent::default();
    loop {
        let mut answered = false;
        while let Some((header, body)) = frame(input.unread(), limits.frame_bytes)? {
            if ledger::is_poll(header.function_id) {
                unsent.may_be_sent(master).await?;
                write(master, stream, &mut replies).await?;
                ledger::wait_for_changes(master, peer, body).await;
            }
            answer(master, peer, header, body, &mut replies, &mut unsent).await;
            let length = RequestHeader::BYTES + body.len();
            input.read += length;
            answered = true;
            if replies.len() >= MOST_REPLIES {
                unsent.may_be_sent(master).await?;
                write(master, stream, &mut replies).await?;
            }
        }
        if answered {
            master.stir();
        }
        unsent.may_be_sent(master).await?;
        write(master, stream, &mut replies).await?;
        input.settle();
        if input.bytes.is_empty() {
            permit = None;
            began = None;
        } else if answered || began.is_none() {
            began = Some(Instant::now());
        }
        if let Some(began) = began {
            let end = began + limits.frame_deadline;
            let wanted = input.wanted();
            acquire(master, &mut permit, wanted, end).await?;
            input.bytes.reserve_exact(wanted - input.bytes.len());
            let late =
                || Ended::Deadline("the request did not arrive whole", limits.frame_deadline);
            let read = timeout_at(end, stream.read_buf(&mut input.bytes)).await;
            arrived(read.map_err(|_elapsed| late())?)?;
        } else {
            input.bytes.reserve(READ);
            let read = stream.read_buf(&mut input.bytes);
            match limits.idle {
                None => arrived(read.await)?,
                Some(idle) => arrived(timeout(idle, read).await.map_err(|_| Ended::Idle)?)?,
            }
        }
    }
}

fn arrived(read: io::Result<usize>) -> Result<(), Ended> {
    match read {
        Ok(0) => Err(Ended::ByPeer),
        Ok(_) => Ok(()),
        Err(error) => Err(Ended::Io(error)),
    }
}

/// Acquires permits for the memory that a connection needs beyond its free part.
async fn acquire<'a>(
    master: &'a Master,
    permit: &mut Option<SemaphorePermit<'a>>,
    memory: usize,
    end: Instant,
) -> Result<(), Ended> {
    let wanted = memory.saturating_sub(FREE).div_ceil(1024);
    let held = permit.as_ref().map_or(0, SemaphorePermit::num_permits);
    if wanted <= held {
        return Ok(());
    }
    let more = u32::try_from(wanted - held).map_err(|_| Ended::NoBuffers)?;
    let more = timeout_at(end, master.buffers.acquire_many(more)).await;
    let more = more
        .map_err(|_elapsed| Ended::NoBuffers)?
        .map_err(|_closed| Ended::NoBuffers)?;
    match permit {
        Some(permit) => permit.merge(more),
        None => *permit = Some(more),
    }
    Ok(())
}

/// Returns the first request, if it is complete.
fn frame(bytes: &[u8], most: u32) -> Result<Option<(RequestHeader, &[u8])>, Ended> {
    let Some((header, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let header = RequestHeader::decode(*header).map_err(Ended::Header)?;
    if header.length > most {
        return Err(Ended::TooLarge {
            bytes: header.length,
            most,
        });
    }
    Ok(rest
        .get(..header.length as usize)
        .map(|body| (header, body)))
}

async fn write(
    master: &Master,
    stream: &mut TcpStream,
    replies: &mut Vec<u8>,
) -> Result<(), Ended> {
    if replies.is_empty() {
        return Ok(());
    }
    // The process may have been stopped since the request was read.
    if !master.leadership.holds() {
        return Err(Ended::NotLeading);
    }
    let deadline = master.limits.frame_deadline;
    timeout(deadline, stream.write_all(replies))
        .await
        .map_err(|_elapsed| Ended::Deadline("the peer did not take its replies", deadline))?
        .map_err(Ended::Io)?;
    if replies.capacity() > 2 * MOST_REPLIES {
        *replies = Vec::new();
    }
    replies.clear();
    Ok(())
}

/// Appends the reply to one request, and to `unsent` what must happen before it is sent.
async fn answer(
    master: &Master,
    peer: Peer,
    header: RequestHeader,
    body: &[u8],
    replies: &mut Vec<u8>,
    unsent: &mut Unsent,
) {
    let began = Instant::now();
    let start = replies.len();
    replies.extend_from_slice(&[0; ResponseHeader::BYTES]);
    let code = match master.functions.find(header.function_id) {
        None => {
            master.traffic.unknown.fetch_add(1, Relaxed);
            refuse(replies, NOT_REGISTERED, "the rpc function not registered")
        }
        Some((number, function)) => match function.call(master, peer, body, replies).await {
            Ok((tally, mut waits)) => {
                unsent.waits.append(&mut waits);
                unsent.calls.push((number, began));
                master.traffic.called(number, tally);
                0
            }
            Err(error) => {
                master.traffic.undecodable.fetch_add(1, Relaxed);
                tracing::debug!(function = function.name(), %error, "arguments refused");
                replies.truncate(start + ResponseHeader::BYTES);
                match error {
                    DecodeError::TooManyElements { .. } => {
                        refuse(replies, MESSAGE_TOO_LARGE, &error.to_string())
                    }
                    _ => refuse(replies, INVALID_ARGUMENTS, "invalid rpc arg"),
                }
            }
        },
    };
    let length = replies.len() - start - ResponseHeader::BYTES;
    let header = ResponseHeader {
        code,
        sequence: header.sequence,
        length: u32::try_from(length).unwrap_or(u32::MAX),
    };
    replies[start..start + ResponseHeader::BYTES].copy_from_slice(&header.encode());
}

/// Appends the message of a failure of the RPC layer, and returns its code for the header.
fn refuse(replies: &mut Vec<u8>, code: u16, message: &str) -> u8 {
    replies.extend(struct_pack::encode(&String::from(message)));
    u8::try_from(code).unwrap_or(u8::MAX)
}

//! A served connection. Requests are carried out in order: the payload of a write is received, then its status is
//! queued; a read is queued as an answer. Queued answers are sent together when no request is left, before a write that
//! follows a read, and at the end of a turn. Version 1 has no statuses.

mod answers;
mod headers;

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use proto::frame::{HEADER_LENGTH, Header, Op, Status, Version};
use sys::mem::Region;
use sys::mem::parts::{Inward, Received};
use sys::net::socket::{set_receive_low_water, unacknowledged};

use super::super::Before;
use super::{Bounds, EndpointId, PeerEnd, RegionId, SEND_BYTES, ServedEndpoint, TURN_BYTES, Turn};
use crate::admission::ConnectionPermit;
use crate::ended::Ended;

use answers::Answers;
use headers::Headers;

/// Payload sizes that are received in portions of [`TURN_BYTES`] instead of as the bytes arrive. A stock
/// peer sends 64 KiB at a time; a wakeup for each would take processor time from it on a small machine.
/// Smaller payloads arrive whole; the sender of a larger one would wait for space in the buffers.
const AT_ONCE: RangeInclusive<u64> = 128 << 10..=1 << 20;
/// Bytes were sent, and how many of them are not acknowledged is not looked at on each request.
const UNKNOWN: u64 = u64::MAX;
/// Most requests of one connection before the others are served.
const TURN_REQUESTS: u32 = 64;

/// Unacknowledged bytes that end no connection, such as the status of a write: their memory is small, and a stock client with a
/// connection that has ended fails at its next request.
const FEW: u64 = 4 << 10;

#[derive(Debug)]
pub(super) struct Served {
    pub(super) endpoint: EndpointId,
    pub(super) permit: ConnectionPermit,
    headers: Headers,
    /// The write whose payload is received.
    writing: Option<Writing>,
    answers: Answers,
    /// The latest request was a read: the headers of further ones may follow without payload between them.
    reading: bool,
    /// An address was rejected: the connection ends after the answers.
    rejected: bool,
    /// A valid header has arrived; from then on a header may take any time.
    proven: bool,
    /// Time of the accept, of the first byte, or of the last progress of a payload or of acknowledgements.
    since: Instant,
    /// Bytes of answers that the peer has not acknowledged, as the timer has last seen them, or [`UNKNOWN`].
    unacknowledged: u64,
    /// A timer is set.
    timed: bool,
    /// The socket's receive low-water mark, in bytes.
    pub(super) low_water: u32,
}

#[derive(Debug)]
struct Writing {
    payload: Payload,
    version: Version,
    at_once: bool,
}

/// The rest of a payload. Keeps its region mapped.
#[derive(Debug)]
struct Payload {
    region: Arc<Region>,
    id: RegionId,
    offset: u64,
    left: u64,
}

impl Payload {
    /// Returns whether the socket has all missing bytes.
    fn is_queued(&self, socket: BorrowedFd<'_>) -> bool {
        rustix::io::ioctl_fionread(socket).is_ok_and(|queued| queued >= self.left)
    }

    fn advance(&mut self, count: u64) {
        self.offset += count;
        self.left -= count;
    }
}

impl Writing {
    /// Returns the number of received bytes that wake the thread, at most the missing ones. The last portion is not
    /// worth two changes of the socket, there and back: its sender sends so many bytes at a time.
    fn low_water(&self) -> u32 {
        let least = if self.at_once && self.payload.left > SEND_BYTES {
            self.payload.left.min(TURN_BYTES)
        } else {
            1
        };
        u32::try_from(least).unwrap_or(1)
    }
}

/// What one turn works with, and what it has done.
pub(super) struct Visit<'a> {
    pub(super) socket: BorrowedFd<'a>,
    pub(super) peer: PeerEnd,
    pub(super) endpoint: &'a ServedEndpoint,
    pub(super) regions: &'a HashMap<RegionId, Arc<Region>>,
    pub(super) now: Instant,
    /// Most payload bytes that are moved before the others are served.
    share: u64,
    /// Payload bytes.
    moved: u64,
    /// Requests that were begun or continued.
    requests: u32,
    buffer: Buffer,
    /// The socket has no space for more answers.
    full: bool,
}

/// What is known about the socket's receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    /// Nothing was received in this turn.
    Untried,
    /// It has so many bytes.
    Holds(usize),
    /// It may have bytes, and the socket does not report how many.
    Unknown,
}

impl<'a> Visit<'a> {
    pub(super) fn new(
        (socket, peer): (BorrowedFd<'a>, PeerEnd),
        endpoint: &'a ServedEndpoint,
        regions: &'a HashMap<RegionId, Arc<Region>>,
        share: u64,
        now: Instant,
    ) -> Self {
        Self {
            socket,
            peer,
            endpoint,
            regions,
            now,
            share,
            moved: 0,
            requests: 0,
            buffer: Buffer::Untried,
            full: false,
        }
    }

    /// Returns the number of requests that were begun or continued.
    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    /// Returns whether the others are to be served now.
    pub(super) fn is_over(&self) -> bool {
        self.moved >= self.share || self.requests >= TURN_REQUESTS
    }

    /// Receives into `parts`. Returns the number of bytes; `None` if there are none.
    fn receive(&mut self, parts: Inward<'_>) -> io::Result<Option<usize>> {
        let wanted = parts.length();
        match parts.receive_counted(self.socket) {
            Ok(Received { count, left }) => {
                self.buffer = match left {
                    Some(left) => Buffer::Holds(left),
                    None if count < wanted => Buffer::Holds(0),
                    None => Buffer::Unknown,
                };
                Ok(Some(count))
            }
            Err(error) if is_wait_error(&error) => {
                self.buffer = Buffer::Holds(0);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Progress was made; more may be possible.
    Progress,
    /// The socket has no bytes, or no space.
    Blocked,
    /// The peer closed between requests.
    Finished,
}

impl Served {
    pub(super) fn new(endpoint: EndpointId, permit: ConnectionPermit, now: Instant) -> Self {
        Self {
            endpoint,
            permit,
            headers: Headers::default(),
            writing: None,
            answers: Answers::default(),
            reading: false,
            rejected: false,
            proven: false,
            since: now,
            unacknowledged: 0,
            timed: false,
            low_water: 1,
        }
    }

    /// Serves a connection on that another engine has passed on. Returns false if that engine received more ahead than this one
    /// does: then it cannot be served on.
    pub(super) fn resume(&mut self, before: &Before) -> bool {
        let Some(headers) = Headers::of(&before.unread) else {
            return false;
        };
        self.headers = headers;
        self.proven = before.proven;
        self.unacknowledged = UNKNOWN;
        true
    }

    /// Moves what the socket allows, up to about the share of the visit and [`TURN_REQUESTS`].
    ///
    /// After a reset nothing that is still queued is used: its sender has given up the request and may have
    /// written the range again over another connection. The same holds for an incomplete payload of a version 2
    /// write whose sender has finished. A sender that finishes after its last byte may only have closed its own
    /// direction; it gets its answer. Version 1 has no status; its senders may close after the last byte.
    pub(super) fn turn(&mut self, visit: &mut Visit<'_>) -> Result<Turn, Ended> {
        if visit.peer == PeerEnd::Reset {
            let between = self.headers.is_empty() && !self.is_within_request();
            return if between {
                Ok(Turn::Over)
            } else {
                Err(Ended::Broken)
            };
        }
        let mut last = Ok(Step::Blocked);
        // A socket that was watched for space has not reported the peer's end: nothing is received before it does.
        if self.answers.is_empty() {
            visit.requests = u32::from(self.writing.is_some());
            loop {
                if visit.endpoint.passed.is_some() && self.writing.is_none() {
                    break;
                }
                last = self.step(visit);
                if last != Ok(Step::Progress) || visit.is_over() {
                    break;
                }
            }
        }
        // Also before an error: those requests were complete.
        let sent = self.send_answers(visit);
        let finished = last? == Step::Finished || self.rejected;
        if sent? && finished {
            return Ok(Turn::Over);
        }
        self.wants(visit.socket)
    }

    /// Returns whether a request that has begun uses this region.
    pub(super) fn uses(&self, region: RegionId) -> bool {
        let writing = self.writing.as_ref();
        writing.is_some_and(|writing| writing.payload.id == region)
            || self.answers.use_region(region)
    }

    /// Returns the due time of a timer, if one is needed and none is set.
    pub(super) fn arm_timer(&mut self, bounds: Bounds) -> Option<Instant> {
        if self.timed {
            return None;
        }
        let due = self.due(bounds)?;
        self.timed = true;
        Some(due)
    }

    /// Returns when the timer looks, and the connection ends if it sees no progress. A connection without a byte does not end:
    /// stock peers open more than they need, and their later request on one that was closed fails.
    fn due(&self, bounds: Bounds) -> Option<Instant> {
        if self.is_within_request() {
            Some(self.since + bounds.stall)
        } else if self.is_unproven() {
            Some(self.since + bounds.header)
        } else if self.unacknowledged > 0 {
            Some(self.since + bounds.stall)
        } else {
            None
        }
    }

    /// Whether its first header has begun and is not complete.
    fn is_unproven(&self) -> bool {
        !self.proven && !self.headers.is_empty()
    }

    /// Handles its due timer: returns when to check again, or why the connection ends.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        bounds: Bounds,
        socket: BorrowedFd<'_>,
    ) -> Result<Option<Instant>, Ended> {
        if self.due(bounds).is_some_and(|due| due <= now) {
            if self.is_within_request() {
                return Err(Ended::Stalled);
            }
            if self.is_unproven() {
                return Err(Ended::HeaderDeadline);
            }
            self.acknowledged(unacknowledged(socket).map_err(|_| Ended::Broken)?, now)?;
        }
        let due = self.due(bounds);
        self.timed = due.is_some();
        Ok(due)
    }

    /// Notes how many bytes of answers the peer has not acknowledged. The kernel would send them again for a quarter of an hour to
    /// a peer that is gone, and their memory is charged to this process.
    fn acknowledged(&mut self, left: u64, now: Instant) -> Result<(), Ended> {
        self.unacknowledged = outstanding(self.unacknowledged, left)?;
        self.since = now;
        Ok(())
    }

    /// Returns whether no request is in progress. Bytes of requests that have not begun may be there.
    pub(super) fn is_idle(&self) -> bool {
        self.writing.is_none() && self.answers.is_empty() && !self.rejected
    }

    /// Returns whether bytes of requests are there that have not begun.
    pub(super) fn has_bytes(&self) -> bool {
        !self.headers.is_empty()
    }

    /// Returns what the next engine must know of an idle connection.
    pub(super) fn before(&self) -> Before {
        Before {
            unread: self.headers.unread().to_vec(),
            proven: self.proven,
        }
    }

    fn is_within_request(&self) -> bool {
        self.writing.is_some() || !self.answers.is_empty() || self.headers.first().is_some()
    }

    /// Returns the socket event to wait for.
    fn wants(&mut self, socket: BorrowedFd<'_>) -> Result<Turn, Ended> {
        let (turn, least) = if !self.answers.is_empty() {
            (Turn::Writable, 1)
        } else if let Some(writing) = &self.writing {
            (Turn::Readable, writing.low_water())
        } else if self.headers.first().is_some() {
            (Turn::Share, 1)
        } else {
            (Turn::Readable, 1)
        };
        if least != self.low_water {
            set_receive_low_water(socket, least).map_err(|_| Ended::Broken)?;
            self.low_water = least;
        }
        Ok(turn)
    }

    fn step(&mut self, visit: &mut Visit<'_>) -> Result<Step, Ended> {
        if let Some(writing) = self.writing.take() {
            return self.receive(writing, visit);
        }
        match self.headers.first() {
            Some(header) => self.begin(header, visit),
            None => self.receive_headers(visit),
        }
    }

    fn receive_headers(&mut self, visit: &mut Visit<'_>) -> Result<Step, Ended> {
        let many = match visit.buffer {
            Buffer::Holds(0) => return Ok(Step::Blocked),
            // Epoll knows whether there are more.
            Buffer::Unknown if visit.requests > 0 => return Ok(Step::Blocked),
            Buffer::Holds(bytes) => self.reading && bytes >= 2 * HEADER_LENGTH,
            Buffer::Untried | Buffer::Unknown => false,
        };
        let was_empty = self.headers.is_empty();
        let received = if many {
            let count = self.headers.receive(visit.socket);
            if let (Ok(count), Buffer::Holds(bytes)) = (&count, visit.buffer) {
                visit.buffer = Buffer::Holds(bytes.saturating_sub(*count));
            }
            count.map(Some)
        } else {
            let mut parts = Inward::default();
            let added = parts.bytes(self.headers.spare());
            let received = added.and_then(|()| visit.receive(parts));
            if let Ok(Some(count)) = received {
                self.headers.received(count);
            }
            received
        };
        match received {
            Ok(Some(count)) if count > 0 => {
                if was_empty {
                    self.since = visit.now;
                }
                Ok(Step::Progress)
            }
            Ok(None) => Ok(Step::Blocked),
            Err(error) if is_wait_error(&error) => Ok(Step::Blocked),
            Ok(_) | Err(_) if self.headers.is_empty() => Ok(Step::Finished),
            Ok(_) | Err(_) => Err(Ended::Broken),
        }
    }

    /// Begins the request of a complete header, unless earlier answers must be sent first.
    fn begin(&mut self, header: Header, visit: &mut Visit<'_>) -> Result<Step, Ended> {
        let found = visit
            .endpoint
            .extents
            .translate(header.address, header.size)
            .ok()
            .and_then(|(id, offset)| Some((id, offset, Arc::clone(visit.regions.get(&id)?))));
        // A write may change what an earlier read has to return.
        let waits = found.is_none() || header.op == Op::Write && self.answers.payload() > 0;
        if waits && !self.send_answers(visit)? {
            return Ok(Step::Blocked);
        }
        self.headers.advance();
        let status = (header.version == Version::V2).then_some(Status::Ok);
        let Some((id, offset, region)) = found else {
            tracing::debug!(
                peer = %self.permit.peer().address(), address = header.address, size = header.size,
                "address rejected"
            );
            if status.is_none() {
                return Err(Ended::BadAddress);
            }
            visit
                .endpoint
                .counters
                .ended(self.permit.peer(), Ended::BadAddress);
            self.answers.push(Some(Status::AddressRejected), None);
            self.rejected = true;
            return Ok(Step::Blocked);
        };
        self.proven = true;
        self.since = visit.now;
        self.reading = header.op == Op::Read;
        visit.requests += 1;
        let payload = Payload {
            region,
            id,
            offset,
            left: header.size,
        };
        if header.op == Op::Write {
            self.writing = Some(Writing {
                payload,
                version: header.version,
                at_once: AT_ONCE.contains(&header.size),
            });
            return Ok(Step::Progress);
        }
        self.answers.push(status, Some(payload));
        if self.answers.payload() >= SEND_BYTES && !self.send_answers(visit)? {
            return Ok(Step::Blocked);
        }
        Ok(Step::Progress)
    }

    /// Receives payload of a write, and the header behind it.
    fn receive(&mut self, writing: Writing, visit: &mut Visit<'_>) -> Result<Step, Ended> {
        let Writing {
            payload,
            version,
            at_once,
        } = self.writing.insert(writing);
        if visit.buffer == Buffer::Holds(0) {
            return Ok(Step::Blocked);
        }
        let given_up = *version == Version::V2 && visit.peer == PeerEnd::Finished;
        if given_up && !payload.is_queued(visit.socket) {
            return Err(Ended::Broken);
        }
        // What arrives in portions is received so: the low-water mark is not that of a part.
        let most = if *at_once { TURN_BYTES } else { visit.share };
        let wanted = payload.left.min(most);
        let mut parts = Inward::default();
        parts
            .range(&payload.region, payload.offset, wanted)
            .and_then(|()| {
                if wanted < payload.left {
                    return Ok(());
                }
                parts.bytes(self.headers.spare())
            })
            .map_err(|_| Ended::Broken)?;
        let count = match visit.receive(parts) {
            Ok(Some(count)) if count > 0 => count,
            Ok(None) => return Ok(Step::Blocked),
            Ok(Some(_)) | Err(_) => return Err(Ended::Broken),
        };
        let of_payload = wanted.min(count as u64);
        self.headers
            .received(count - usize::try_from(of_payload).unwrap_or(count));
        payload.advance(of_payload);
        self.since = visit.now;
        visit.moved += of_payload;
        visit.endpoint.counters.moved(Op::Write, of_payload);
        if payload.left > 0 {
            return Ok(Step::Progress);
        }
        if *version == Version::V2 {
            self.answers.push(Some(Status::Ok), None);
        }
        self.writing = None;
        visit.endpoint.counters.served();
        Ok(Step::Progress)
    }

    /// Sends answers, as far as the socket has space and the turn has bytes left. Returns whether none is left.
    fn send_answers(&mut self, visit: &mut Visit<'_>) -> Result<bool, Ended> {
        while !self.answers.is_empty() && !visit.full {
            let most = visit.share.saturating_sub(visit.moved);
            let sent = self.answers.send(visit.socket, most);
            let sent = sent.map_err(|_| Ended::Broken)?;
            self.unacknowledged = UNKNOWN;
            visit.full = sent.full || most == 0;
            if sent.payload > 0 {
                self.since = visit.now;
                visit.moved += sent.payload;
                visit.endpoint.counters.moved(Op::Read, sent.payload);
            }
            for _ in 0..sent.reads {
                visit.endpoint.counters.served();
            }
        }
        Ok(self.answers.is_empty())
    }
}

pub(super) fn is_wait_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Returns for how many bytes of answers the timer looks again, if so many were unacknowledged and so many are left.
///
/// # Errors
/// [`Ended::Stalled`] without progress.
fn outstanding(before: u64, left: u64) -> Result<u64, Ended> {
    match left {
        0..=FEW => Ok(0),
        _ if left < before => Ok(left),
        _ => Err(Ended::Stalled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_without_acknowledgement_end_no_connection() {
        assert_eq!(outstanding(UNKNOWN, FEW + 1), Ok(FEW + 1));
        assert_eq!(outstanding(FEW + 2, FEW + 1), Ok(FEW + 1));
        assert_eq!(outstanding(FEW + 1, FEW + 1), Err(Ended::Stalled));
        assert_eq!(outstanding(8, 8), Ok(0));
    }
}

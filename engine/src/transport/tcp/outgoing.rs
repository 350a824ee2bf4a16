//! A link to a peer. Requests to a peer that announces a pipeline are sent ahead of the answers to earlier ones; the
//! peer answers in order. Statuses are read while payload is sent, because a peer that rejects an address answers at
//! once.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::frame::{HEADER_LENGTH, Header, Op, Partial, STATUS_LENGTH, Status, Version};
use proto::scheduler::{Effect, Failure, PieceKey, Slice};
use rustix::net::RecvFlags;
use sys::mem::Region;
use sys::mem::parts::{Inward, Outward};
use sys::net::socket::set_receive_low_water;

use super::served::is_wait_error;
use super::{Cause, Event, LinkError, LinkId, PIPELINE_DEPTH, Post, SEND_BYTES, TURN_BYTES, Turn};

/// Most payload bytes of the requests on a link, except that one request may have any length. A large request goes to
/// another link instead of waiting behind other large ones.
const PIPELINE_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) link: LinkId,
    version: Version,
    /// Most requests at a time.
    window: usize,
    /// It has carried a request, so the peer may have closed it since.
    used: bool,
    /// In the order of the post, which is that of the answers.
    requests: VecDeque<Request>,
    /// How many of the first requests are sent completely.
    sent: usize,
    /// Payload bytes of all requests.
    bytes: u64,
    /// The latest progress.
    since: Instant,
    /// A timer is set.
    timed: bool,
    /// The socket's receive low-water mark, in bytes.
    low_water: u32,
}

/// A request in progress.
#[derive(Debug)]
struct Request {
    piece: PieceKey,
    op: Op,
    region: Arc<Region>,
    offset: u64,
    length: u64,
    header: [u8; HEADER_LENGTH],
    header_sent: usize,
    /// Payload bytes that were sent or received.
    moved: u64,
    status: Partial<STATUS_LENGTH>,
    /// The status has arrived, or this version has none.
    accepted: bool,
    reply_seen: bool,
}

impl Outgoing {
    pub(super) fn new(link: LinkId, version: Version, depth: u32, now: Instant) -> Self {
        // Version 1 confirms nothing, so the outcome of requests behind a failed one would be unknown.
        let most = match version {
            Version::V1 => 1,
            Version::V2 => depth.clamp(1, PIPELINE_DEPTH),
        };
        Self {
            link,
            version,
            window: usize::try_from(most).unwrap_or(1),
            used: false,
            requests: VecDeque::new(),
            sent: 0,
            bytes: 0,
            since: now,
            timed: false,
            low_water: 1,
        }
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Checks a used link before the first byte after an idle time: a request on a link that the peer has closed
    /// fails without an effect and can be sent on another link.
    pub(super) fn check(&self, socket: BorrowedFd<'_>) -> Result<(), Failure<LinkError>> {
        if self.used && self.requests.is_empty() {
            self.idle(socket)
        } else {
            Ok(())
        }
    }

    /// Returns whether closing now could leave bytes of a write in the kernel, which would still be sent.
    pub(super) fn is_writing(&self) -> bool {
        self.requests.iter().any(|request| request.op == Op::Write)
    }

    /// Returns whether the link takes a request of this length now.
    pub(super) fn has_space(&self, length: u64) -> bool {
        self.requests.is_empty()
            || self.requests.len() < self.window
                && self.bytes.saturating_add(length) <= PIPELINE_BYTES
    }

    pub(super) fn begin(&mut self, request: &Post, region: Arc<Region>, now: Instant) {
        let Slice {
            op,
            remote,
            memory: _,
            offset,
            length,
        } = request.slice;
        let header = Header {
            size: length,
            address: remote,
            op,
            version: self.version,
        };
        if self.requests.is_empty() {
            self.since = now;
        }
        self.used = true;
        self.bytes += length;
        self.requests.push_back(Request {
            piece: request.piece,
            op,
            region,
            offset,
            length,
            header: header.encode(),
            header_sent: 0,
            moved: 0,
            status: Partial::default(),
            accepted: self.version == Version::V1,
            reply_seen: false,
        });
    }

    /// Sends what the socket allows, up to about `share` bytes, receives up to about [`TURN_BYTES`], and reports the
    /// completed requests. Only a direction that `cause` lets expect something is tried.
    pub(super) fn turn(
        &mut self,
        socket: BorrowedFd<'_>,
        cause: Cause,
        (share, now): (u64, Instant),
        events: &mut Vec<Event>,
    ) -> Result<Turn, Failure<LinkError>> {
        if self.requests.is_empty() {
            return self.idle(socket).map(|()| Turn::Readable);
        }
        let moved = self.exchange(socket, cause, share, events);
        match moved {
            Ok(progress) => {
                if progress {
                    self.since = now;
                }
                self.set_low_water(socket)
                    .map_err(|cause| self.failure(cause, events))?;
                let sending = self.sent < self.requests.len();
                Ok(if sending { Turn::Both } else { Turn::Readable })
            }
            Err(cause) => Err(self.failure(cause, events)),
        }
    }

    /// Returns the due time of a timer, if one is needed and none is set. A link with one request at a time needs none:
    /// the deadline of its transfer closes it.
    pub(super) fn arm_timer(&mut self, stall: Duration) -> Option<Instant> {
        if self.timed || self.window == 1 || self.requests.is_empty() {
            return None;
        }
        self.timed = true;
        Some(self.since + stall)
    }

    /// Handles its due timer: returns when to check again, or why the link fails.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        stall: Duration,
        events: &mut Vec<Event>,
    ) -> Result<Option<Instant>, Failure<LinkError>> {
        let due = self.since + stall;
        if self.requests.is_empty() {
            self.timed = false;
            Ok(None)
        } else if due > now {
            Ok(Some(due))
        } else {
            let what = "moving bytes of requests";
            Err(self.failure(LinkError::TimedOut { what }, events))
        }
    }

    /// Detects that the peer closed an idle link, or sent unexpected bytes.
    fn idle(&self, socket: BorrowedFd<'_>) -> Result<(), Failure<LinkError>> {
        let mut byte = [0];
        let cause = match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
            Ok((0, _)) => LinkError::Closed,
            Ok(_) => LinkError::Protocol("bytes without a request".to_owned()),
            Err(errno) => {
                let error = errno.into();
                if is_wait_error(&error) {
                    return Ok(());
                }
                LinkError::io("watching an idle connection")(error)
            }
        };
        Err(Failure::unsent(cause))
    }

    /// Sets the number of received bytes that wake the thread. It is at most what the first request lacks, so nothing
    /// that is complete waits for the bytes of another request.
    fn set_low_water(&mut self, socket: BorrowedFd<'_>) -> Result<(), LinkError> {
        let awaited = self.requests.front().map_or(0, Request::awaited);
        let least = if awaited > SEND_BYTES {
            awaited.min(TURN_BYTES)
        } else {
            1
        };
        let least = u32::try_from(least).unwrap_or(1);
        if least != self.low_water {
            set_receive_low_water(socket, least)
                .map_err(LinkError::io("setting the low-water mark of a connection"))?;
            self.low_water = least;
        }
        Ok(())
    }

    /// Returns whether a byte has moved.
    fn exchange(
        &mut self,
        socket: BorrowedFd<'_>,
        cause: Cause,
        share: u64,
        events: &mut Vec<Event>,
    ) -> Result<bool, LinkError> {
        let sent = if cause.may_send() {
            self.send(socket, share)
        } else {
            Ok(false)
        };
        if let Err(error) = sent {
            // A peer that rejected an address sent its status before it closed.
            self.receive(socket, events)?;
            return Err(error);
        }
        let received = if cause.may_receive() {
            self.receive(socket, events)?
        } else {
            // A write of version 1 has no answer.
            self.report(events);
            false
        };
        Ok(received || sent?)
    }

    /// Sends headers and payload, of several requests in one call.
    fn send(&mut self, socket: BorrowedFd<'_>, mut budget: u64) -> Result<bool, LinkError> {
        const WHAT: &str = "sending a request";
        let mut progress = false;
        while self.sent < self.requests.len() && budget > 0 {
            let mut parts = Outward::default();
            let mut space = budget.min(SEND_BYTES);
            for request in self.requests.range(self.sent..) {
                // A header and a payload.
                if parts.space() < 2 || space == 0 {
                    break;
                }
                let payload = request.unsent().min(space);
                parts
                    .bytes(&request.header[request.header_sent..])
                    .and_then(|()| {
                        let offset = request.offset + request.moved;
                        parts.range(&request.region, offset, payload)
                    })
                    .map_err(LinkError::io(WHAT))?;
                space -= payload;
            }
            let wanted = parts.length();
            let count = match parts.send(socket) {
                Ok(count) => count,
                Err(error) if is_wait_error(&error) => return Ok(progress),
                Err(error) => return Err(LinkError::io(WHAT)(error)),
            };
            progress |= count > 0;
            self.count_sent(count);
            if count < wanted {
                return Ok(progress);
            }
            budget = budget.saturating_sub(count as u64);
        }
        Ok(progress)
    }

    fn count_sent(&mut self, mut count: usize) {
        while let Some(request) = self.requests.get_mut(self.sent) {
            let of_header = count.min(HEADER_LENGTH - request.header_sent);
            request.header_sent += of_header;
            count -= of_header;
            if request.op == Op::Write {
                let of_payload = request.unsent().min(count as u64);
                request.moved += of_payload;
                count -= usize::try_from(of_payload).unwrap_or(count);
            }
            if request.is_sending() {
                return;
            }
            self.sent += 1;
        }
    }

    /// Receives statuses and the payload of reads, of several requests in one call. Until the status of a read is
    /// known, its memory may get other bytes: the peer has no more right to it afterwards.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        events: &mut Vec<Event>,
    ) -> Result<bool, LinkError> {
        let (mut budget, mut progress) = (TURN_BYTES, false);
        loop {
            self.report(events);
            let mut parts = Inward::default();
            let mut what = "waiting for the status";
            for request in &mut self.requests {
                if request.header_sent == 0 || parts.space() < 2 || budget == 0 {
                    break;
                }
                let wanted = request.awaited().min(budget);
                let offset = request.offset + request.moved;
                let rest = request.awaited() - wanted;
                let last = rest > 0 || request.is_sending();
                if !request.accepted {
                    let added = parts.bytes(request.status.spare());
                    added.map_err(LinkError::io(what))?;
                } else if parts.length() == 0 {
                    what = "receiving the payload";
                }
                parts
                    .range(&request.region, offset, wanted)
                    .map_err(LinkError::io(what))?;
                budget -= wanted;
                if last {
                    break;
                }
            }
            let wanted = parts.length();
            if wanted == 0 {
                return Ok(progress);
            }
            let count = match parts.receive(socket) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => count,
                Err(error) if is_wait_error(&error) => return Ok(progress),
                Err(error) => return Err(LinkError::io(what)(error)),
            };
            progress = true;
            self.count_received(count)?;
            if count < wanted {
                self.report(events);
                return Ok(progress);
            }
        }
    }

    /// Distributes received bytes among the requests, in the order of the answers.
    fn count_received(&mut self, mut count: usize) -> Result<(), LinkError> {
        for request in &mut self.requests {
            if count == 0 {
                break;
            }
            request.reply_seen = true;
            if !request.accepted {
                let of_status = count.min(request.status.spare().len());
                count -= of_status;
                let Some(status) = request.status.advance(of_status) else {
                    break;
                };
                match Status::decode(status) {
                    Ok(Status::Ok) if request.is_sending() => {
                        return Err(LinkError::Protocol(
                            "a status before the whole payload".to_owned(),
                        ));
                    }
                    Ok(Status::Ok) => request.accepted = true,
                    Ok(Status::AddressRejected) => return Err(LinkError::Rejected),
                    Err(error) => return Err(LinkError::Protocol(error.to_string())),
                }
            }
            let of_payload = request.awaited().min(count as u64);
            request.moved += of_payload;
            count -= usize::try_from(of_payload).unwrap_or(count);
        }
        Ok(())
    }

    /// Reports the requests that are complete.
    fn report(&mut self, events: &mut Vec<Event>) {
        while self.requests.front().is_some_and(Request::is_complete)
            && let Some(request) = self.requests.pop_front()
        {
            self.sent -= 1;
            self.bytes -= request.length;
            events.push(Event::Done(self.link, request.piece));
        }
    }

    /// Returns the failure of the link with its possible effect at the peer. Reports the complete requests first: one
    /// call may have received their statuses with the failure. Reports the requests behind the first one that is left
    /// and that have no effect: those of which the peer has nothing to carry out, and all behind a rejected one, because
    /// the peer reads nothing after it. The first one is never among them, so that each failure ends a request.
    fn failure(&mut self, cause: LinkError, events: &mut Vec<Event>) -> Failure<LinkError> {
        self.report(events);
        let rejected = matches!(cause, LinkError::Rejected);
        let mut effect = Effect::None;
        for (at, request) in self.requests.iter().enumerate() {
            let without_effect = rejected || request.is_unsent();
            if without_effect && at > 0 {
                events.push(Event::Returned(self.link, request.piece));
            } else if !without_effect && request.op == Op::Write {
                effect = Effect::Unknown;
            }
        }
        let first = self.requests.front();
        Failure {
            cause,
            effect,
            reply_seen: first.is_some_and(|request| request.reply_seen),
        }
    }
}

impl Request {
    /// Bytes of a write's payload that are left to send.
    fn unsent(&self) -> u64 {
        match self.op {
            Op::Write => self.length - self.moved,
            Op::Read => 0,
        }
    }

    /// Bytes of a read's payload that are left to receive.
    fn awaited(&self) -> u64 {
        match self.op {
            Op::Write => 0,
            Op::Read => self.length - self.moved,
        }
    }

    fn is_sending(&self) -> bool {
        self.header_sent < HEADER_LENGTH || self.unsent() > 0
    }

    /// Returns whether the peer has nothing to carry out: without payload it has nothing to write, and closing discards
    /// the rest of the request.
    fn is_unsent(&self) -> bool {
        match self.op {
            Op::Write => self.moved == 0,
            Op::Read => self.header_sent == 0,
        }
    }

    fn is_complete(&self) -> bool {
        self.accepted && !self.is_sending() && self.moved == self.length
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags};
    use slotmap::SlotMap;
    use sys::mem::{PageSize, memfd};

    use super::*;
    use crate::transport::reactor::EventFlags;
    use crate::transport::{EndpointId, RegionId};

    const LENGTH: u64 = 1 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A link with writes of equal length that together have [`LENGTH`] bytes.
    fn link(writes: u64, now: Instant) -> (Outgoing, Vec<PieceKey>) {
        link_of(Op::Write, writes, now)
    }

    fn link_of(op: Op, requests: u64, now: Instant) -> (Outgoing, Vec<PieceKey>) {
        let fd = memfd::create("outgoing", LENGTH, PageSize::Base).unwrap();
        let region = Arc::new(Region::map(fd, LENGTH, PageSize::Base).unwrap());
        let id = LinkId {
            endpoint: EndpointId(1),
            link: SlotMap::<_, ()>::with_key().insert(()),
        };
        let mut link = Outgoing::new(id, Version::V2, 99, now);
        let mut pieces = SlotMap::with_key();
        let length = LENGTH / requests;
        let posted = (0..requests).map(|at| {
            let slice = Slice {
                op,
                remote: at,
                memory: RegionId(2),
                offset: at * length,
                length,
            };
            let piece = pieces.insert(());
            link.begin(&Post { piece, slice }, Arc::clone(&region), now);
            piece
        });
        let posted = posted.collect();
        (link, posted)
    }

    fn returned(events: &[Event]) -> Vec<PieceKey> {
        let piece = |event: &Event| match event {
            Event::Returned(_, piece) => *piece,
            other => panic!("{other:?}"),
        };
        events.iter().map(piece).collect()
    }

    #[test]
    fn a_failed_link_returns_the_requests_of_which_no_payload_was_sent() {
        let now = Instant::now();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut link, posted) = link(4, now);
        let mut events = Vec::new();
        // The buffer of the socket ends within the payloads.
        for _ in 0..10 {
            let turn = link
                .turn(ours.as_fd(), Cause::Due, (TURN_BYTES, now), &mut events)
                .unwrap();
            assert!(matches!(turn, Turn::Both));
        }
        let begun = link.requests.iter().filter(|one| one.moved > 0).count();
        assert!((1..4).contains(&begun), "{begun}");
        drop(theirs);
        let failure = link
            .turn(ours.as_fd(), Cause::Due, (TURN_BYTES, now), &mut events)
            .unwrap_err();
        assert_eq!(failure.effect, Effect::Unknown);
        assert_eq!(returned(&events), posted[begun..]);
    }

    #[test]
    fn requests_with_a_status_are_complete_when_a_failure_arrives_behind_it() {
        let now = Instant::now();
        let answers: [(&[u8], _); 2] = [
            (&Status::AddressRejected.encode(), Effect::None),
            (b"HTTP/1.1", Effect::Unknown),
        ];
        for (answer, effect) in answers {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let (mut link, posted) = link(64, now);
            let mut events = Vec::new();
            let all = (u64::MAX, now);
            link.turn(ours.as_fd(), Cause::Posted, all, &mut events)
                .unwrap();
            assert!(link.sent > 3, "{}", link.sent);
            let ok = &Status::Ok.encode()[..];
            theirs.write_all(&[ok, ok, answer].concat()).unwrap();
            let cause = Cause::Ready(EventFlags::IN);
            let failure = link
                .turn(ours.as_fd(), cause, all, &mut events)
                .unwrap_err();
            assert_eq!((failure.effect, failure.reply_seen), (effect, true));
            let done = events.iter().map_while(|event| match event {
                Event::Done(_, piece) => Some(*piece),
                _ => None,
            });
            let done: Vec<_> = done.collect();
            assert_eq!(done, posted[..2]);
            // Behind a rejected request all, and else those of which nothing was sent.
            let begun = link.requests.iter().filter(|one| !one.is_unsent()).count();
            let first = if effect == Effect::None { 3 } else { 2 + begun };
            assert_eq!(returned(&events[2..]), posted[first..]);
        }
    }

    #[test]
    fn an_answer_is_received_when_epoll_reports_it_and_not_on_suspicion() {
        let now = Instant::now();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut link, posted) = link(64, now);
        let mut events = Vec::new();
        theirs.write_all(&Status::Ok.encode()).unwrap();
        let mut turn = |cause, events: &mut Vec<_>| {
            link.turn(ours.as_fd(), cause, (TURN_BYTES, now), events)
                .unwrap();
        };
        turn(Cause::Posted, &mut events);
        turn(Cause::Ready(EventFlags::OUT), &mut events);
        assert!(events.is_empty(), "{events:?}");
        turn(Cause::Ready(EventFlags::IN), &mut events);
        assert!(matches!(events[..], [Event::Done(_, piece)] if piece == posted[0]));
    }

    #[test]
    fn the_payload_of_a_large_read_wakes_the_thread_in_portions_and_its_end_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        let now = Instant::now();
        let (mut link, posted) = link_of(Op::Read, 1, now);
        let mut events = Vec::new();
        let [portion, length] = [TURN_BYTES, LENGTH].map(|bytes| usize::try_from(bytes).unwrap());
        let at_once = Duration::ZERO;
        let is_readable = |patience: Duration| {
            let mut polled = [PollFd::new(&ours, PollFlags::IN)];
            let patience = patience.try_into().unwrap();
            rustix::event::poll(&mut polled, Some(&patience)).unwrap() == 1
        };
        link.turn(ours.as_fd(), Cause::Posted, (TURN_BYTES, now), &mut events)
            .unwrap();
        let answer = [Status::Ok.encode().as_slice(), &vec![7; length]].concat();
        theirs.write_all(&answer[..portion - 1]).unwrap();
        let arrived = || rustix::io::ioctl_fionread(&ours).unwrap() == TURN_BYTES - 1;
        while now.elapsed() < PATIENCE && !arrived() {
            std::thread::yield_now();
        }
        assert!(arrived() && !is_readable(at_once), "less than a portion");
        theirs.write_all(&answer[portion - 1..portion]).unwrap();
        assert!(is_readable(PATIENCE));
        let sending = std::thread::spawn(move || {
            theirs.write_all(&answer[portion..]).unwrap();
            theirs
        });
        while events.is_empty() {
            assert!(is_readable(PATIENCE), "{link:?}");
            let cause = Cause::Ready(EventFlags::IN);
            link.turn(ours.as_fd(), cause, (TURN_BYTES, now), &mut events)
                .unwrap();
        }
        assert!(matches!(events[..], [Event::Done(_, piece)] if piece == posted[0]));
        assert_eq!(link.low_water, 1, "a later request may be short");
        drop(sending.join().unwrap());
    }

    #[test]
    fn a_link_without_progress_fails_after_its_bound() {
        let now = Instant::now();
        let (mut link, posted) = link(2, now);
        let stall = Duration::from_secs(3);
        let mut events = Vec::new();
        assert_eq!(link.arm_timer(stall), Some(now + stall));
        assert_eq!(link.arm_timer(stall), None, "it is set");
        let early = link.expire(now + stall / 2, stall, &mut events).unwrap();
        assert_eq!(early, Some(now + stall));
        let failure = link.expire(now + stall, stall, &mut events).unwrap_err();
        assert!(matches!(failure.cause, LinkError::TimedOut { .. }));
        assert_eq!(failure.effect, Effect::None, "nothing was sent");
        assert_eq!(returned(&events), posted[1..]);
    }

    #[test]
    fn the_requests_of_a_link_are_bounded_by_number_and_bytes() {
        let now = Instant::now();
        let (many, _) = link(u64::from(PIPELINE_DEPTH), now);
        assert!(!many.has_space(0));
        let (full, _) = link(2, now);
        assert!(full.has_space(0) && !full.has_space(1));
        let stock = Outgoing::new(full.link, Version::V2, 0, now);
        assert!(stock.window() == 1 && stock.has_space(u64::MAX));
        assert_eq!(Outgoing::new(full.link, Version::V1, 16, now).window(), 1);
    }
}

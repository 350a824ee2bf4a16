//! One served connection: `Header -> Taking -> Answering -> Header` for a write,
//! `Header -> Giving -> Header` for a read, for ever; version 1 has no answers.

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::frame::{HEADER_LENGTH, Header, Op, Partial, STATUS_LENGTH, Status, Version};
use rustix::net::{RecvFlags, SendFlags};
use sys::mem::Region;
use sys::net::socket::set_receive_low_water;

use super::{Bounds, HostId, HostSide, RegionId, SEND_BYTES, TURN_BYTES, Turn};
use crate::admission::Ticket;
use crate::stats::Ended;

/// Payloads of this size are not read piece by piece as they come, but by a turn's worth at once. A
/// stock peer sends pieces of 64 KiB; to be woken for each costs it its processor where those are
/// few. Smaller payloads come whole; the sender of a larger one would wait for room in the buffers.
const AT_ONCE: RangeInclusive<u64> = 128 << 10..=1 << 20;

#[derive(Debug)]
pub(super) struct Served {
    pub(super) host: HostId,
    pub(super) ticket: Ticket,
    phase: Phase,
    /// A whole valid header has come once; from then on idleness is no reason to close.
    proven: bool,
    /// When it was accepted, or when its payload last moved.
    since: Instant,
    /// An entry for it is among the timers.
    timed: bool,
    /// From how many bytes on the kernel calls the socket readable.
    low_water: u32,
}

#[derive(Debug)]
enum Phase {
    /// Between requests, or within a header.
    Header(Partial<HEADER_LENGTH>),
    /// Payload comes into the region.
    Taking { payload: Payload, version: Version },
    /// Status and payload go out of the region.
    Giving { payload: Payload, head: Head },
    /// A status goes out; then the next request, or the end.
    Answering { head: Head, last: bool },
}

/// What is left of a payload, in a region that it keeps alive.
#[derive(Debug)]
struct Payload {
    region: Arc<Region>,
    id: RegionId,
    offset: u64,
    left: u64,
    at_once: bool,
}

impl Payload {
    /// Missing bytes that it is worth to be woken for. Never more than are missing: what the peer
    /// does not owe does not come.
    fn worth_waking_for(&self) -> u32 {
        let least = if self.at_once {
            self.left.min(TURN_BYTES)
        } else {
            1
        };
        u32::try_from(least).unwrap_or(1)
    }
}

/// What is left of a status frame.
#[derive(Debug)]
struct Head {
    bytes: [u8; STATUS_LENGTH],
    sent: usize,
}

impl Head {
    fn new(status: Status) -> Self {
        Self {
            bytes: status.encode(),
            sent: 0,
        }
    }

    /// Version 1 reads have none.
    fn none() -> Self {
        Self {
            bytes: [0; STATUS_LENGTH],
            sent: STATUS_LENGTH,
        }
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }
}

/// What one attempt did.
enum Step {
    /// Something moved; more may.
    On(Phase),
    /// The socket has nothing, or no room.
    Stuck(Phase),
    /// The peer ended between requests, or was told that its address is bad.
    Finished,
}

impl Served {
    pub(super) fn new(host: HostId, ticket: Ticket, now: Instant) -> Self {
        let phase = Phase::Header(Partial::default());
        Self {
            host,
            ticket,
            phase,
            proven: false,
            since: now,
            timed: true,
            low_water: 1,
        }
    }

    /// Moves what the socket allows, up to a turn's worth.
    pub(super) fn turn(
        &mut self,
        socket: BorrowedFd<'_>,
        host: &HostSide,
        regions: &HashMap<RegionId, Arc<Region>>,
        now: Instant,
    ) -> Result<Turn, Ended> {
        let mut moved = 0;
        loop {
            let phase = std::mem::replace(&mut self.phase, Phase::Header(Partial::default()));
            let before = moved;
            let step = match phase {
                Phase::Header(partial) => self.header(socket, partial, host, regions)?,
                Phase::Taking { payload, version } => {
                    take(socket, payload, version, host, &mut moved)?
                }
                Phase::Giving { payload, head } => give(socket, payload, head, host, &mut moved)?,
                Phase::Answering { head, last } => answer(socket, head, last)?,
            };
            if moved != before {
                self.since = now;
            }
            match step {
                Step::On(phase) => {
                    let between = matches!(phase, Phase::Header(_));
                    // Its peer waits for it, and it is nothing to make others wait for.
                    let answers = matches!(phase, Phase::Answering { .. });
                    if matches!(phase, Phase::Taking { .. } | Phase::Giving { .. })
                        && moved == before
                    {
                        self.since = now;
                    }
                    self.phase = phase;
                    // Level-triggered: what is left in the socket comes back after the others.
                    if between || moved >= TURN_BYTES && !answers {
                        return self.wants(socket);
                    }
                }
                Step::Stuck(phase) => {
                    self.phase = phase;
                    return self.wants(socket);
                }
                Step::Finished => return Ok(Turn::Over),
            }
        }
    }

    /// Whether a request that is under way touches this region.
    pub(super) fn touches(&self, region: RegionId) -> bool {
        match &self.phase {
            Phase::Taking { payload, .. } | Phase::Giving { payload, .. } => payload.id == region,
            Phase::Header(_) | Phase::Answering { .. } => false,
        }
    }

    /// The due time of a timer to be set, if it needs one and has none.
    pub(super) fn arm_timer(&mut self, stall: Duration) -> Option<Instant> {
        if self.timed || !self.is_within_request() {
            return None;
        }
        self.timed = true;
        Some(self.since + stall)
    }

    /// Its timer is due: when to look again, or why it ends.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        bounds: Bounds,
    ) -> Result<Option<Instant>, Ended> {
        if !self.proven {
            let due = self.since + bounds.header;
            return if due <= now {
                Err(Ended::HeaderDeadline)
            } else {
                Ok(Some(due))
            };
        }
        if self.is_within_request() {
            let due = self.since + bounds.stall;
            return if due <= now {
                Err(Ended::Stalled)
            } else {
                Ok(Some(due))
            };
        }
        self.timed = false;
        Ok(None)
    }

    fn is_within_request(&self) -> bool {
        !matches!(self.phase, Phase::Header(_))
    }

    /// What the kernel is to wake us for.
    fn wants(&mut self, socket: BorrowedFd<'_>) -> Result<Turn, Ended> {
        let (turn, least) = match &self.phase {
            Phase::Header(_) => (Turn::Readable, 1),
            Phase::Taking { payload, .. } => (Turn::Readable, payload.worth_waking_for()),
            Phase::Giving { .. } | Phase::Answering { .. } => (Turn::Writable, 1),
        };
        if least != self.low_water {
            set_receive_low_water(socket, least).map_err(|_| Ended::Broken)?;
            self.low_water = least;
        }
        Ok(turn)
    }

    /// Reads a header and finds what it means.
    fn header(
        &mut self,
        socket: BorrowedFd<'_>,
        mut partial: Partial<HEADER_LENGTH>,
        host: &HostSide,
        regions: &HashMap<RegionId, Arc<Region>>,
    ) -> Result<Step, Ended> {
        let count = match rustix::net::recv(socket, partial.spare(), RecvFlags::DONTWAIT) {
            Ok((0, _)) if partial.is_empty() => return Ok(Step::Finished),
            Ok((0, _)) => return Err(Ended::Broken),
            Ok((count, _)) => count,
            Err(errno) if is_wait(errno) => return Ok(Step::Stuck(Phase::Header(partial))),
            Err(_) if partial.is_empty() => return Ok(Step::Finished),
            Err(_) => return Err(Ended::Broken),
        };
        let Some(bytes) = partial.advance(count) else {
            return Ok(Step::Stuck(Phase::Header(partial)));
        };
        let header = Header::decode(bytes);
        let found = host
            .extents
            .translate(header.address, header.size)
            .ok()
            .and_then(|(id, offset)| Some((id, offset, Arc::clone(regions.get(&id)?))));
        let Some((id, offset, region)) = found else {
            tracing::debug!(
                peer = %self.ticket.peer().address(), address = header.address, size = header.size,
                "address refused"
            );
            return match header.version {
                Version::V1 => Err(Ended::BadAddress),
                Version::V2 => {
                    host.counters.ended(self.ticket.peer(), Ended::BadAddress);
                    let head = Head::new(Status::AddressRejected);
                    Ok(Step::On(Phase::Answering { head, last: true }))
                }
            };
        };
        self.proven = true;
        let payload = Payload {
            region,
            id,
            offset,
            left: header.size,
            at_once: AT_ONCE.contains(&header.size),
        };
        Ok(Step::On(match (header.op, header.version) {
            (Op::Write, version) => Phase::Taking { payload, version },
            (Op::Read, Version::V1) => Phase::Giving {
                payload,
                head: Head::none(),
            },
            (Op::Read, Version::V2) => Phase::Giving {
                payload,
                head: Head::new(Status::Ok),
            },
        }))
    }
}

fn take(
    socket: BorrowedFd<'_>,
    mut payload: Payload,
    version: Version,
    host: &HostSide,
    moved: &mut u64,
) -> Result<Step, Ended> {
    let wanted = payload.left.min(TURN_BYTES);
    let count = match payload.region.recv_into(socket, payload.offset, wanted) {
        Ok(0) => return Err(Ended::Broken),
        Ok(count) => count as u64,
        Err(error) if is_wait_error(&error) => {
            return Ok(Step::Stuck(Phase::Taking { payload, version }));
        }
        Err(_) => return Err(Ended::Broken),
    };
    *moved += count;
    payload.offset += count;
    payload.left -= count;
    host.counters.moved(Op::Write, count);
    if payload.left == 0 {
        host.counters.served();
        return Ok(Step::On(match version {
            Version::V1 => Phase::Header(Partial::default()),
            Version::V2 => Phase::Answering {
                head: Head::new(Status::Ok),
                last: false,
            },
        }));
    }
    let next = Phase::Taking { payload, version };
    // Less than asked for: the socket is empty.
    Ok(if count < wanted {
        Step::Stuck(next)
    } else {
        Step::On(next)
    })
}

fn give(
    socket: BorrowedFd<'_>,
    mut payload: Payload,
    mut head: Head,
    host: &HostSide,
    moved: &mut u64,
) -> Result<Step, Ended> {
    let wanted = payload.left.min(SEND_BYTES);
    let before = head.left().len();
    let sent = payload
        .region
        .send_from(socket, head.left(), payload.offset, wanted, false);
    let count = match sent {
        Ok(count) => count,
        Err(error) if is_wait_error(&error) => {
            return Ok(Step::Stuck(Phase::Giving { payload, head }));
        }
        Err(_) => return Err(Ended::Broken),
    };
    let of_head = count.min(before);
    head.sent += of_head;
    let count = (count - of_head) as u64;
    *moved += count;
    payload.offset += count;
    payload.left -= count;
    host.counters.moved(Op::Read, count);
    if payload.left == 0 && head.left().is_empty() {
        host.counters.served();
        return Ok(Step::On(Phase::Header(Partial::default())));
    }
    let next = Phase::Giving { payload, head };
    Ok(if count < wanted {
        Step::Stuck(next)
    } else {
        Step::On(next)
    })
}

fn answer(socket: BorrowedFd<'_>, mut head: Head, last: bool) -> Result<Step, Ended> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(socket, head.left(), flags) {
        Ok(count) => head.sent += count,
        Err(errno) if is_wait(errno) => return Ok(Step::Stuck(Phase::Answering { head, last })),
        Err(_) => return Err(Ended::Broken),
    }
    Ok(match (head.left().is_empty(), last) {
        (false, last) => Step::On(Phase::Answering { head, last }),
        (true, true) => Step::Finished,
        (true, false) => Step::On(Phase::Header(Partial::default())),
    })
}

fn is_wait(errno: rustix::io::Errno) -> bool {
    errno == rustix::io::Errno::AGAIN || errno == rustix::io::Errno::INTR
}

pub(super) fn is_wait_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

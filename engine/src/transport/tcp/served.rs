//! A served connection: repeats `Header -> Receiving -> Answering` for a write and `Header -> Sending` for
//! a read. Version 1 has no answers.

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

use super::{Bounds, EndpointId, PeerEnd, RegionId, SEND_BYTES, ServedEndpoint, TURN_BYTES, Turn};
use crate::admission::ConnectionPermit;
use crate::ended::Ended;

/// Payload sizes that are received in portions of [`TURN_BYTES`] instead of as the bytes arrive. A stock
/// peer sends 64 KiB at a time; a wakeup for each would take processor time from it on a small machine.
/// Smaller payloads arrive whole; the sender of a larger one would wait for space in the buffers.
const AT_ONCE: RangeInclusive<u64> = 128 << 10..=1 << 20;

#[derive(Debug)]
pub(super) struct Served {
    pub(super) endpoint: EndpointId,
    pub(super) permit: ConnectionPermit,
    phase: Phase,
    /// A valid header has arrived; from then on the connection is not closed for being idle.
    proven: bool,
    /// Time of the accept, or of the last payload progress.
    since: Instant,
    /// A timer is set.
    timed: bool,
    /// The socket's receive low-water mark, in bytes.
    low_water: u32,
}

#[derive(Debug)]
enum Phase {
    /// Between requests, or within a header.
    Header(Partial<HEADER_LENGTH>),
    /// Payload is received into the region.
    Receiving { payload: Payload, version: Version },
    /// Status and payload are sent from the region.
    Sending { payload: Payload, head: Head },
    /// A status is sent; `last` closes the connection after it.
    Answering { head: Head, last: bool },
}

/// The rest of a payload. Keeps its region mapped.
#[derive(Debug)]
struct Payload {
    region: Arc<Region>,
    id: RegionId,
    offset: u64,
    left: u64,
    at_once: bool,
}

impl Payload {
    /// Returns whether the socket has all missing bytes.
    fn is_queued(&self, socket: BorrowedFd<'_>) -> bool {
        rustix::io::ioctl_fionread(socket).is_ok_and(|queued| queued >= self.left)
    }

    /// Returns the number of received bytes that wake the thread, at most the missing ones.
    fn low_water(&self) -> u32 {
        let least = if self.at_once {
            self.left.min(TURN_BYTES)
        } else {
            1
        };
        u32::try_from(least).unwrap_or(1)
    }
}

/// The rest of a status frame.
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

    /// The empty head of a version 1 read.
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

/// The result of one attempt.
enum Step {
    /// Progress was made; more may be possible.
    Progress(Phase),
    /// The socket has no bytes, or no space.
    Blocked(Phase),
    /// The peer closed between requests, or its address was rejected.
    Finished,
}

impl Served {
    pub(super) fn new(endpoint: EndpointId, permit: ConnectionPermit, now: Instant) -> Self {
        let phase = Phase::Header(Partial::default());
        Self {
            endpoint,
            permit,
            phase,
            proven: false,
            since: now,
            timed: true,
            low_water: 1,
        }
    }

    /// Moves what the socket allows, up to about [`TURN_BYTES`].
    ///
    /// After a reset nothing that is still queued is used: its sender has given up the request and may have
    /// written the range again over another connection. The same holds for an incomplete payload of a version 2
    /// write whose sender has finished. A sender that finishes after its last byte may only have closed its own
    /// direction; it gets its answer. Version 1 has no status; its senders may close after the last byte.
    pub(super) fn turn(
        &mut self,
        socket: BorrowedFd<'_>,
        peer: PeerEnd,
        endpoint: &ServedEndpoint,
        regions: &HashMap<RegionId, Arc<Region>>,
        now: Instant,
    ) -> Result<Turn, Ended> {
        if peer == PeerEnd::Reset {
            return match &self.phase {
                Phase::Header(partial) if partial.is_empty() => Ok(Turn::Over),
                _ => Err(Ended::Broken),
            };
        }
        let mut moved = 0;
        loop {
            let phase = std::mem::replace(&mut self.phase, Phase::Header(Partial::default()));
            let before = moved;
            let step = match phase {
                Phase::Header(partial) => self.header(socket, partial, endpoint, regions)?,
                Phase::Receiving {
                    version: Version::V2,
                    payload,
                } if peer == PeerEnd::Finished && !payload.is_queued(socket) => {
                    return Err(Ended::Broken);
                }
                Phase::Receiving { payload, version } => {
                    receive(socket, payload, version, endpoint, &mut moved)?
                }
                Phase::Sending { payload, head } => {
                    send(socket, payload, head, endpoint, &mut moved)?
                }
                Phase::Answering { head, last } => answer(socket, head, last)?,
            };
            if moved != before {
                self.since = now;
            }
            match step {
                Step::Progress(phase) => {
                    let between = matches!(phase, Phase::Header(_));
                    // An answer is short and the peer waits for it.
                    let answers = matches!(phase, Phase::Answering { .. });
                    if matches!(phase, Phase::Receiving { .. } | Phase::Sending { .. })
                        && moved == before
                    {
                        self.since = now;
                    }
                    self.phase = phase;
                    // Epoll is level-triggered: the rest is reported again after the other connections.
                    if between || moved >= TURN_BYTES && !answers {
                        return self.wants(socket);
                    }
                }
                Step::Blocked(phase) => {
                    self.phase = phase;
                    return self.wants(socket);
                }
                Step::Finished => return Ok(Turn::Over),
            }
        }
    }

    /// Returns whether the current request uses this region.
    pub(super) fn uses(&self, region: RegionId) -> bool {
        match &self.phase {
            Phase::Receiving { payload, .. } | Phase::Sending { payload, .. } => {
                payload.id == region
            }
            Phase::Header(_) | Phase::Answering { .. } => false,
        }
    }

    /// Returns the due time of a timer, if one is needed and none is set.
    pub(super) fn arm_timer(&mut self, stall: Duration) -> Option<Instant> {
        if self.timed || !self.is_within_request() {
            return None;
        }
        self.timed = true;
        Some(self.since + stall)
    }

    /// Handles its due timer: returns when to check again, or why the connection ends.
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

    /// Returns the socket event to wait for.
    fn wants(&mut self, socket: BorrowedFd<'_>) -> Result<Turn, Ended> {
        let (turn, least) = match &self.phase {
            Phase::Header(_) => (Turn::Readable, 1),
            Phase::Receiving { payload, .. } => (Turn::Readable, payload.low_water()),
            Phase::Sending { .. } | Phase::Answering { .. } => (Turn::Writable, 1),
        };
        if least != self.low_water {
            set_receive_low_water(socket, least).map_err(|_| Ended::Broken)?;
            self.low_water = least;
        }
        Ok(turn)
    }

    /// Reads a header and starts its request.
    fn header(
        &mut self,
        socket: BorrowedFd<'_>,
        mut partial: Partial<HEADER_LENGTH>,
        endpoint: &ServedEndpoint,
        regions: &HashMap<RegionId, Arc<Region>>,
    ) -> Result<Step, Ended> {
        let count = match rustix::net::recv(socket, partial.spare(), RecvFlags::DONTWAIT) {
            Ok((0, _)) if partial.is_empty() => return Ok(Step::Finished),
            Ok((0, _)) => return Err(Ended::Broken),
            Ok((count, _)) => count,
            Err(errno) if is_wait(errno) => return Ok(Step::Blocked(Phase::Header(partial))),
            Err(_) if partial.is_empty() => return Ok(Step::Finished),
            Err(_) => return Err(Ended::Broken),
        };
        let Some(bytes) = partial.advance(count) else {
            return Ok(Step::Blocked(Phase::Header(partial)));
        };
        let header = Header::decode(bytes);
        let found = endpoint
            .extents
            .translate(header.address, header.size)
            .ok()
            .and_then(|(id, offset)| Some((id, offset, Arc::clone(regions.get(&id)?))));
        let Some((id, offset, region)) = found else {
            tracing::debug!(
                peer = %self.permit.peer().address(), address = header.address, size = header.size,
                "address rejected"
            );
            return match header.version {
                Version::V1 => Err(Ended::BadAddress),
                Version::V2 => {
                    endpoint
                        .counters
                        .ended(self.permit.peer(), Ended::BadAddress);
                    let head = Head::new(Status::AddressRejected);
                    Ok(Step::Progress(Phase::Answering { head, last: true }))
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
        Ok(Step::Progress(match (header.op, header.version) {
            (Op::Write, version) => Phase::Receiving { payload, version },
            (Op::Read, Version::V1) => Phase::Sending {
                payload,
                head: Head::none(),
            },
            (Op::Read, Version::V2) => Phase::Sending {
                payload,
                head: Head::new(Status::Ok),
            },
        }))
    }
}

fn receive(
    socket: BorrowedFd<'_>,
    mut payload: Payload,
    version: Version,
    endpoint: &ServedEndpoint,
    moved: &mut u64,
) -> Result<Step, Ended> {
    let wanted = payload.left.min(TURN_BYTES);
    let count = match payload.region.recv_into(socket, payload.offset, wanted) {
        Ok(0) => return Err(Ended::Broken),
        Ok(count) => count as u64,
        Err(error) if is_wait_error(&error) => {
            return Ok(Step::Blocked(Phase::Receiving { payload, version }));
        }
        Err(_) => return Err(Ended::Broken),
    };
    *moved += count;
    payload.offset += count;
    payload.left -= count;
    endpoint.counters.moved(Op::Write, count);
    if payload.left == 0 {
        endpoint.counters.served();
        return Ok(Step::Progress(match version {
            Version::V1 => Phase::Header(Partial::default()),
            Version::V2 => Phase::Answering {
                head: Head::new(Status::Ok),
                last: false,
            },
        }));
    }
    let next = Phase::Receiving { payload, version };
    // A short read: the socket is empty.
    Ok(if count < wanted {
        Step::Blocked(next)
    } else {
        Step::Progress(next)
    })
}

fn send(
    socket: BorrowedFd<'_>,
    mut payload: Payload,
    mut head: Head,
    endpoint: &ServedEndpoint,
    moved: &mut u64,
) -> Result<Step, Ended> {
    let wanted = payload.left.min(SEND_BYTES);
    let before = head.left().len();
    let sent = payload
        .region
        .send_from(socket, head.left(), payload.offset, wanted);
    let count = match sent {
        Ok(count) => count,
        Err(error) if is_wait_error(&error) => {
            return Ok(Step::Blocked(Phase::Sending { payload, head }));
        }
        Err(_) => return Err(Ended::Broken),
    };
    let of_head = count.min(before);
    head.sent += of_head;
    let count = (count - of_head) as u64;
    *moved += count;
    payload.offset += count;
    payload.left -= count;
    endpoint.counters.moved(Op::Read, count);
    if payload.left == 0 && head.left().is_empty() {
        endpoint.counters.served();
        return Ok(Step::Progress(Phase::Header(Partial::default())));
    }
    let next = Phase::Sending { payload, head };
    Ok(if count < wanted {
        Step::Blocked(next)
    } else {
        Step::Progress(next)
    })
}

fn answer(socket: BorrowedFd<'_>, mut head: Head, last: bool) -> Result<Step, Ended> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(socket, head.left(), flags) {
        Ok(count) => head.sent += count,
        Err(errno) if is_wait(errno) => return Ok(Step::Blocked(Phase::Answering { head, last })),
        Err(_) => return Err(Ended::Broken),
    }
    Ok(match (head.left().is_empty(), last) {
        (false, last) => Step::Progress(Phase::Answering { head, last }),
        (true, true) => Step::Finished,
        (true, false) => Step::Progress(Phase::Header(Partial::default())),
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

//! A link: a few queue pairs to one peer, the requests on them, and their end.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use proto::frame::Op;
use proto::scheduler::{Effect, Failure, PieceKey};
use sys::verbs::{Completion, Direction, MemoryRange, QueuePair, Remote, RemoteKey, WorkRequest};

use super::Registered;
use super::lanes::Lane;
use crate::transport::{LinkError, Post, RegionId};

/// Queue pairs of a link, as in stock engines.
pub(super) const PAIRS: usize = 2;
/// Requests on a queue pair at a time.
pub(super) const DEPTH: usize = 64;
/// Requests with one doorbell, of which the last one signals its completion.
const CHAIN: usize = 16;
/// A healthy device ends the requests of a failed queue pair within this time.
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Link {
    state: State,
    /// The peer's memory: wire address, bytes, key.
    extents: Vec<(u64, u64, u32)>,
    /// Held because its number is in use as long as the queue pairs.
    _lane: Lane,
    /// Accepted, and not started by a flush. With the keys of their remote ranges.
    accepted: Vec<(Post, RemoteKey)>,
    pairs: Vec<Pair>,
}

#[derive(Debug)]
enum State {
    Opening {
        closed: bool,
    },
    Up(Vec<QueuePair>),
    /// On the control thread.
    Failing,
    /// In the error state, until the device has ended all requests.
    Draining {
        pairs: Vec<QueuePair>,
        until: Instant,
    },
    /// On the control thread.
    Destroying,
}

/// The requests of one queue pair.
#[derive(Debug)]
struct Pair {
    /// In the IDs of its work requests.
    number: u32,
    /// Of the next request.
    sequence: u32,
    /// At the device, in the order in which they were posted and complete.
    at_device: VecDeque<Request>,
}

/// A request at the device.
#[derive(Debug)]
struct Request {
    sequence: u32,
    piece: PieceKey,
    /// A rejection is one of all its bytes: they are read, or one packet has them. Of a longer write the first packets may
    /// have arrived before the peer ended the key.
    indivisible: bool,
}

/// Splits the ID of a work request into the number of its queue pair and its sequence number.
pub(super) fn parts(id: u64) -> (u32, u32) {
    let [high, low] = [id >> 32, id & u64::from(u32::MAX)];
    (
        u32::try_from(high).unwrap_or(u32::MAX),
        u32::try_from(low).unwrap_or(u32::MAX),
    )
}

impl Link {
    pub(super) fn new(extents: Vec<(u64, u64, u32)>, lane: Lane) -> Self {
        Self {
            state: State::Opening { closed: false },
            extents,
            _lane: lane,
            accepted: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// Takes over connected queue pairs. Returns true if the link was closed before.
    pub(super) fn up(&mut self, pairs: Vec<QueuePair>, first: u32) -> bool {
        let closed = self.is_closed();
        self.pairs = (0..pairs.len())
            .map(|at| Pair {
                number: first.wrapping_add(u32::try_from(at).unwrap_or(0)),
                sequence: 0,
                at_device: VecDeque::with_capacity(DEPTH),
            })
            .collect();
        self.state = State::Up(pairs);
        closed
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Opening { closed: true })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    pub(super) fn has_accepted(&self) -> bool {
        !self.accepted.is_empty()
    }

    /// Returns whether completions are to come.
    pub(super) fn is_working(&self) -> bool {
        self.pairs.iter().any(|pair| !pair.at_device.is_empty())
    }

    pub(super) fn window(&self) -> usize {
        self.pairs.len() * DEPTH
    }

    /// Returns true if the link is opening; it then ends with the rendezvous.
    pub(super) fn close_while_opening(&mut self) -> bool {
        let opening = matches!(self.state, State::Opening { .. });
        if opening {
            self.state = State::Opening { closed: true };
        }
        opening
    }

    fn carried(&self) -> usize {
        let at_device = self.pairs.iter().map(|pair| pair.at_device.len());
        at_device.sum::<usize>() + self.accepted.len()
    }

    /// Takes the first requests that fit into the window and whose memory is known. The peer may have published the
    /// memory of the others since this link was opened.
    ///
    /// # Errors
    /// The first request's memory is not known, and the link carries no other: the link fails, with nothing sent. The
    /// peer's descriptor is then requested again.
    pub(super) fn accept(
        &mut self,
        requests: &[Post],
        is_local: impl Fn(RegionId) -> bool,
    ) -> Result<usize, Failure<LinkError>> {
        let carried = self.carried();
        let space = self.window().saturating_sub(carried);
        for (taken, post) in requests.iter().take(space).enumerate() {
            match self.key(post, &is_local) {
                Some(key) => self.accepted.push((*post, key)),
                None if taken + carried == 0 => return Err(Failure::unsent(LinkError::Rejected)),
                None => return Ok(taken),
            }
        }
        Ok(requests.len().min(space))
    }

    /// Returns whether the memory of a request is known at both ends.
    pub(super) fn knows(&self, post: &Post, is_local: impl Fn(RegionId) -> bool) -> bool {
        self.key(post, &is_local).is_some()
    }

    /// Returns the key of the remote range of a request whose memory is known at both ends.
    fn key(&self, post: &Post, is_local: &impl Fn(RegionId) -> bool) -> Option<RemoteKey> {
        let slice = &post.slice;
        let holds = |(start, bytes, _): &&(u64, u64, u32)| {
            let offset = slice.remote.checked_sub(*start);
            let end = offset.and_then(|offset| offset.checked_add(slice.length));
            end.is_some_and(|end| end <= *bytes)
        };
        let extent = self.extents.iter().find(holds)?;
        is_local(slice.memory).then_some(RemoteKey(extent.2))
    }

    /// Posts the accepted requests, up to [`CHAIN`] at a time to the queue pair with the fewest.
    ///
    /// # Errors
    /// Fails the link if the device refuses a request.
    pub(super) fn flush(
        &mut self,
        regions: &HashMap<RegionId, Registered>,
    ) -> Result<(), Failure<LinkError>> {
        let State::Up(queue_pairs) = &self.state else {
            self.accepted.clear();
            return Ok(());
        };
        let mut posted = 0;
        while posted < self.accepted.len() {
            let fewest = (self.pairs.iter_mut().zip(queue_pairs))
                .min_by_key(|(pair, _)| pair.at_device.len());
            let Some((pair, queue_pair)) = fewest else {
                break;
            };
            let space = DEPTH.saturating_sub(pair.at_device.len()).min(CHAIN);
            let chain = self.accepted.iter().skip(posted).take(space);
            let mut requests: Vec<WorkRequest<'_>> = Vec::with_capacity(CHAIN);
            for (post, key) in chain {
                // Withdrawn since it was accepted.
                let registered = regions.get(&post.slice.memory);
                let memory = registered.and_then(|one| one.memory.as_deref());
                let length = u32::try_from(post.slice.length);
                let (Some(memory), Ok(length)) = (memory, length) else {
                    // The device does not have the requests of this chain.
                    for _ in &requests {
                        pair.at_device.pop_back();
                    }
                    return Err(failure(LinkError::Rejected));
                };
                let sequence = pair.sequence;
                pair.sequence = sequence.wrapping_add(1);
                pair.at_device.push_back(Request {
                    sequence,
                    piece: post.piece,
                    indivisible: post.slice.op == Op::Read || length <= queue_pair.packet_bytes(),
                });
                requests.push(WorkRequest {
                    id: (u64::from(pair.number) << 32) | u64::from(sequence),
                    direction: match post.slice.op {
                        Op::Write => Direction::Write,
                        Op::Read => Direction::Read,
                    },
                    local: MemoryRange {
                        memory,
                        offset: post.slice.offset,
                        length,
                    },
                    remote: Remote {
                        address: post.slice.remote,
                        key: *key,
                    },
                    signalled: false,
                });
            }
            if let Some(last) = requests.last_mut() {
                last.signalled = true;
            }
            let result = queue_pair.post(&requests);
            for _ in result.accepted..requests.len() {
                // The device does not have it.
                pair.at_device.pop_back();
            }
            if let Some(error) = result.refused {
                return Err(failure(LinkError::Device(error.to_string())));
            }
            if requests.is_empty() {
                // Accepted requests fit into the window, so one queue pair has space.
                break;
            }
            posted += requests.len();
        }
        self.accepted.drain(..posted);
        Ok(())
    }

    /// Handles the completion of a request, and of all earlier ones of its queue pair. Returns the failure of the link.
    pub(super) fn complete(
        &mut self,
        at: usize,
        sequence: u32,
        completion: &Completion,
        mut done: impl FnMut(PieceKey),
    ) -> Option<Failure<LinkError>> {
        let (up, alone) = (self.is_up(), self.carried() == 1);
        let pair = self.pairs.get_mut(at)?;
        let at = (pair.at_device.iter()).position(|one| one.sequence == sequence)?;
        let result = completion.result();
        let mut indivisible = false;
        for (place, request) in pair.at_device.drain(..=at).enumerate() {
            let is_it = place == at;
            // An error of a later request proves that this one has succeeded.
            if up && (!is_it || result.is_ok()) {
                done(request.piece);
            }
            indivisible = request.indivisible;
        }
        let error = result.err().filter(|_| up)?;
        let rejected = completion.is_rejected();
        Some(Failure {
            cause: if rejected {
                LinkError::Rejected
            } else {
                LinkError::Device(error.to_string())
            },
            effect: if rejected && alone && indivisible {
                Effect::None
            } else {
                Effect::Unknown
            },
            reply_seen: rejected,
        })
    }

    /// Begins the end of a link that is up. Returns the queue pairs, which the control thread fails.
    pub(super) fn fail(&mut self) -> Option<Vec<QueuePair>> {
        if !self.is_up() {
            return None;
        }
        self.accepted.clear();
        match std::mem::replace(&mut self.state, State::Failing) {
            State::Up(pairs) => Some(pairs),
            _ => None,
        }
    }

    pub(super) fn failed(&mut self, pairs: Vec<QueuePair>, now: Instant) {
        let until = now + DRAIN;
        self.state = State::Draining { pairs, until };
    }

    pub(super) fn is_drained(&self, now: Instant) -> bool {
        match &self.state {
            State::Draining { until, .. } => !self.is_working() || *until <= now,
            _ => false,
        }
    }

    pub(super) fn drain_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Draining { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Returns the queue pairs for the control thread, which destroys them.
    pub(super) fn take_drained(&mut self) -> Option<Vec<QueuePair>> {
        match std::mem::replace(&mut self.state, State::Destroying) {
            State::Draining { pairs, .. } => {
                // The device forgets what it has not ended.
                self.pairs.clear();
                Some(pairs)
            }
            other => {
                self.state = other;
                None
            }
        }
    }
}

/// The failure of requests of which some may be at the device.
fn failure(cause: LinkError) -> Failure<LinkError> {
    Failure {
        cause,
        effect: Effect::Unknown,
        reply_seen: false,
    }
}

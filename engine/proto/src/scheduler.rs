//! Schedules outgoing transfers: assigns slices to links, retries, and enforces deadlines. Takes events and
//! time, and returns [`Action`]s; nothing here waits or accesses memory.
//!
//! A transfer ends twice:
//! * its *outcome* is reported exactly once, by its deadline;
//! * its *release* is reported exactly once, after the outcome, when nothing can access its local memory
//!   any more. A slice is posted to another link only after the release of the earlier attempt.
//!
//! Inputs: [`Scheduler::submit`], [`Scheduler::resolved`], [`Scheduler::link_up`],
//! [`Scheduler::link_down`], [`Scheduler::link_released`], [`Scheduler::slice_done`],
//! [`Scheduler::not_accepted`], [`Scheduler::slice_returned`], [`Scheduler::withdraw`], [`Scheduler::cancel`],
//! [`Scheduler::time`]. After each of them call [`Scheduler::poll`] until it returns `None`; call `time` again at [`Scheduler::next_timeout`].

mod link;
mod model;
mod transfer;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use slotmap::{SlotMap, new_key_type};

use crate::frame::Op;

pub use model::{Action, Cause, Effect, Ending, Failure, Fault, Request, Slice, Stage};

use link::{Link, LinkState};
use model::Knowledge;
use transfer::{Phase, Piece, Transfer};

/// Time since an origin chosen by the driver.
pub type Time = Duration;
new_key_type! {
    /// Identifies a connection to a peer.
    pub struct LinkKey;
    /// Identifies a peer.
    pub struct PeerKey;
    /// Identifies a transfer until its release.
    struct TransferKey;
    /// Identifies a slice of a transfer until its release.
    pub struct PieceKey;
}

/// Settings of a scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Most bytes of one wire request.
    pub slice_bytes: u64,
    /// Most links to one peer.
    pub lanes: usize,
    /// An idle link is closed after this time.
    pub idle: Duration,
    /// First pause after a failure to resolve or to connect; doubles with each further one.
    pub backoff_least: Duration,
    /// Longest pause.
    pub backoff_most: Duration,
}

/// The state of one peer.
#[derive(Debug)]
struct Peer {
    name: Box<str>,
    knowledge: Knowledge,
    links: Vec<LinkKey>,
    /// Transfers with bytes that are in no slice yet.
    waiting: VecDeque<TransferKey>,
    /// Slices to retry on a new link.
    retries: VecDeque<PieceKey>,
    /// Slices that a full link did not accept.
    returned: VecDeque<PieceKey>,
    /// Failures to resolve or to connect since a link was up.
    failures: u32,
    /// Neither is tried before this time.
    not_before: Time,
    /// An entry of [`Scheduler::pauses`] will continue its work.
    pausing: bool,
}

/// The scheduler of one endpoint. `M` identifies local memory, `C` is a transport's error.
#[derive(Debug)]
pub struct Scheduler<M, C> {
    config: Config,
    names: BTreeMap<Box<str>, PeerKey>,
    peers: SlotMap<PeerKey, Peer>,
    links: SlotMap<LinkKey, Link>,
    transfers: SlotMap<TransferKey, Transfer<M>>,
    /// Number of transfers so far, without empty ones.
    submitted: u64,
    pieces: SlotMap<PieceKey, Piece<M>>,
    deadlines: BinaryHeap<Reverse<(Time, TransferKey)>>,
    /// Peers with work that waits for the end of a pause.
    pauses: BinaryHeap<Reverse<(Time, PeerKey)>>,
    next_sweep: Option<Time>,
    /// The latest time of an input.
    now: Time,
    actions: VecDeque<Action<M, C>>,
}

impl<M: Copy + PartialEq, C: Clone> Scheduler<M, C> {
    /// Creates a scheduler without peers.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            names: BTreeMap::new(),
            peers: SlotMap::with_key(),
            links: SlotMap::with_key(),
            transfers: SlotMap::with_key(),
            submitted: 0,
            pieces: SlotMap::with_key(),
            deadlines: BinaryHeap::new(),
            pauses: BinaryHeap::new(),
            next_sweep: None,
            now: Time::ZERO,
            actions: VecDeque::new(),
        }
    }

    /// Adds a transfer with the peer of that server name. An empty transfer succeeds at once, as in
    /// stock engines.
    pub fn submit(&mut self, peer: &str, request: Request<M>, now: Time) {
        self.advance(now);
        if request.length == 0 {
            self.actions.push_back(Action::Outcome {
                token: request.token,
                ending: Ending::Done,
            });
            self.actions.push_back(Action::Release {
                token: request.token,
            });
            return;
        }
        let peer = self.peer(peer);
        let deadline = request.deadline;
        let transfer = Transfer::new(peer, request, self.submitted);
        self.submitted += 1;
        let key = self.transfers.insert(transfer);
        self.deadlines.push(Reverse((deadline, key)));
        self.trim_deadlines();
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.waiting.push_back(key);
        }
        self.pump(peer);
    }

    /// Handles the answer to [`Action::Resolve`]: a number that changes when the peer publishes something
    /// else, or an error.
    pub fn resolved(&mut self, key: PeerKey, answer: Result<u64, C>, now: Time) {
        self.advance(now);
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        match answer {
            Ok(published) => {
                peer.knowledge = Knowledge::Known(published);
                let retries = peer.retries.clone();
                for piece in retries {
                    if self
                        .pieces
                        .get(piece)
                        .is_some_and(|piece| piece.known != published)
                    {
                        let fault = Fault::new(Stage::Resolve, Cause::PeerMoved);
                        self.fail_piece(piece, fault);
                    }
                }
                self.pump(key);
            }
            Err(cause) => {
                peer.knowledge = Knowledge::Unknown;
                self.back_off(key);
                // Otherwise other links continue with the work.
                if !self.has_live_link(key) {
                    let cause = Cause::Transport(cause);
                    self.fail_queued(key, &Fault::new(Stage::Resolve, cause));
                }
                self.pump(key);
            }
        }
    }

    /// Ends the transfers that use local memory. Returns the number of transfers submitted so far:
    /// [`Self::uses`] with it is false once the last one is released.
    pub fn withdraw(&mut self, memory: M, now: Time) -> u64 {
        let using: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, t)| t.memory == memory)
            .map(|(key, _)| key)
            .collect();
        for key in using {
            self.cut(key, Cause::Withdrawn);
        }
        self.time(now);
        self.submitted
    }

    /// Ends the transfers whose tokens `which` selects.
    pub fn cancel(&mut self, which: impl Fn(u64) -> bool) {
        let selected: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, transfer)| which(transfer.token))
            .map(|(key, _)| key)
            .collect();
        for key in selected {
            self.cut(key, Cause::Cancelled);
        }
    }

    /// Returns whether one of the first `submitted` transfers uses this memory and is not released yet.
    #[must_use]
    pub fn uses(&self, memory: M, submitted: u64) -> bool {
        self.transfers
            .values()
            .any(|transfer| transfer.memory == memory && transfer.number < submitted)
    }

    /// Advances time: ends transfers at their deadline and closes idle links.
    pub fn time(&mut self, now: Time) {
        self.advance(now);
        while let Some(Reverse((due, key))) = self.deadlines.peek().copied() {
            if !self.transfers.contains_key(key) {
                self.deadlines.pop();
                continue;
            }
            if due > now {
                break;
            }
            self.deadlines.pop();
            self.cut(key, Cause::Deadline);
        }
        while let Some(Reverse((due, key))) = self.pauses.peek().copied()
            && due <= now
        {
            self.pauses.pop();
            if let Some(peer) = self.peers.get_mut(key) {
                peer.pausing = false;
            }
            self.pump(key);
        }
        if self.next_sweep.is_some_and(|due| due <= now) {
            self.sweep(now);
        }
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Returns the time at which [`Self::time`] has work next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.peek().map(|Reverse((due, _))| *due);
        let pause = self.pauses.peek().map(|Reverse((due, _))| *due);
        [deadline, pause, self.next_sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes the next action.
    pub fn poll(&mut self) -> Option<Action<M, C>> {
        self.actions.pop_front()
    }

    /// Returns the server name of a peer.
    #[must_use]
    pub fn peer_name(&self, key: PeerKey) -> Option<&str> {
        self.peers.get(key).map(|peer| &*peer.name)
    }

    fn peer(&mut self, name: &str) -> PeerKey {
        if let Some(key) = self.names.get(name) {
            return *key;
        }
        let key = self.peers.insert(Peer {
            name: name.into(),
            knowledge: Knowledge::Unknown,
            links: Vec::new(),
            waiting: VecDeque::new(),
            retries: VecDeque::new(),
            returned: VecDeque::new(),
            failures: 0,
            not_before: Time::ZERO,
            pausing: false,
        });
        // Also a peer that never gets a link is removed.
        self.next_sweep.get_or_insert(self.now + self.config.idle);
        self.names.insert(name.into(), key);
        key
    }

    /// Assigns a peer's queued work to its free links; resolves the peer or opens a link if needed.
    fn pump(&mut self, key: PeerKey) {
        while let Some(new_only) = self.has_work(key) {
            let Some(peer) = self.peers.get(key) else {
                return;
            };
            let knowledge = peer.knowledge;
            // A retry needs to know first whether the peer is still the same engine.
            let usable = !new_only || matches!(knowledge, Knowledge::Known(_));
            if usable && let Some(link) = self.free_link(key, new_only) {
                self.assign(key, link);
                continue;
            }
            if !self.may_open(key) || self.pauses(key) {
                return;
            }
            match knowledge {
                Knowledge::Resolving => {}
                Knowledge::Unknown => {
                    if let Some(peer) = self.peers.get_mut(key) {
                        peer.knowledge = Knowledge::Resolving;
                    }
                    self.actions.push_back(Action::Resolve { peer: key });
                }
                Knowledge::Known(published) => self.open_link(key, published),
            }
            return;
        }
    }

    /// Returns whether a peer's work waits for the end of a pause after failures.
    fn pauses(&mut self, key: PeerKey) -> bool {
        let Some(peer) = self.peers.get_mut(key) else {
            return false;
        };
        if peer.not_before <= self.now {
            return false;
        }
        if !peer.pausing {
            peer.pausing = true;
            self.pauses.push(Reverse((peer.not_before, key)));
        }
        true
    }

    /// Handles a failure to resolve or to connect: the next attempt is made after a pause.
    fn back_off(&mut self, key: PeerKey) {
        let Config {
            backoff_least,
            backoff_most,
            ..
        } = self.config;
        if let Some(peer) = self.peers.get_mut(key) {
            let pause = backoff_least.saturating_mul(1 << peer.failures.min(16));
            peer.failures = peer.failures.saturating_add(1);
            peer.not_before = self.now + pause.min(backoff_most);
        }
    }

    /// Drops finished work from a peer's queues. Returns whether the next work needs a new link, `None` if
    /// there is no work.
    fn has_work(&mut self, key: PeerKey) -> Option<bool> {
        let peer = self.peers.get_mut(key)?;
        while let Some(piece) = peer.retries.front() {
            if self.pieces.contains_key(*piece) {
                return Some(true);
            }
            peer.retries.pop_front();
        }
        while let Some(piece) = peer.returned.front() {
            if self.pieces.contains_key(*piece) {
                return Some(false);
            }
            peer.returned.pop_front();
        }
        while let Some(key) = peer.waiting.front() {
            let transfer = self.transfers.get(*key);
            if transfer.is_some_and(|transfer| !transfer.ended && transfer.unsliced() > 0) {
                return Some(false);
            }
            peer.waiting.pop_front();
        }
        None
    }

    /// Posts the next slice of a peer's queue to a free link.
    fn assign(&mut self, peer: PeerKey, link: LinkKey) {
        let (Some(queues), Some(link_state)) = (self.peers.get_mut(peer), self.links.get_mut(link))
        else {
            return;
        };
        let published = link_state.published;
        let key = if let Some(piece) = queues.retries.pop_front() {
            piece
        } else if let Some(piece) = queues.returned.pop_front() {
            // The link may lead to another engine than the one that it was for.
            if self
                .pieces
                .get(piece)
                .is_some_and(|piece| piece.known != published)
            {
                let fault = Fault::new(Stage::Queue, Cause::PeerMoved);
                self.fail_piece(piece, fault);
                return;
            }
            piece
        } else {
            let Some(transfer_key) = queues.waiting.front().copied() else {
                return;
            };
            let Some(transfer) = self.transfers.get_mut(transfer_key) else {
                return;
            };
            // The peer may be another engine than the one that has the first slices.
            if *transfer.published.get_or_insert(published) != published {
                let fault = Fault::new(Stage::Queue, Cause::PeerMoved);
                self.end_failed(transfer_key, fault);
                return;
            }
            let slice = transfer.next_slice(self.config.slice_bytes);
            self.pieces
                .insert(Piece::new(transfer_key, slice, published))
        };
        let Some(piece) = self.pieces.get_mut(key) else {
            return;
        };
        piece.phase = Phase::Posted;
        link_state.state = LinkState::Busy;
        link_state.pieces.push(key);
        self.actions.push_back(Action::Post {
            link,
            piece: key,
            slice: piece.slice,
        });
    }

    /// Fails all work of a peer that is on no link.
    fn fail_queued(&mut self, key: PeerKey, fault: &Fault<C>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let waiting = core::mem::take(&mut peer.waiting);
        let retries = core::mem::take(&mut peer.retries);
        let returned = core::mem::take(&mut peer.returned);
        for piece in retries.into_iter().chain(returned) {
            self.fail_piece(piece, fault.clone());
        }
        for transfer in waiting {
            self.end_failed(transfer, fault.clone());
        }
    }

    /// Removes deadlines of transfers that ended early, if there are many.
    fn trim_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.transfers.len() + 64 {
            let transfers = &self.transfers;
            self.deadlines
                .retain(|Reverse((_, key))| transfers.contains_key(*key));
        }
    }
}

#[cfg(test)]
mod tests;

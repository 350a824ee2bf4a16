//! Decides what an initiator does next: which transfer gets which link, what is tried again, what
//! is too late. Events and time come in, [`Action`]s go out; nothing here waits or touches memory.
//!
//! A transfer ends twice:
//! * its *outcome* comes exactly once, by its deadline;
//! * its *release* comes exactly once, after the outcome, when nothing can touch its local memory
//!   any more. A slice goes to another link only after the earlier attempt's release.
//!
//! Inputs: [`Scheduler::submit`], [`Scheduler::resolved`], [`Scheduler::link_up`],
//! [`Scheduler::link_down`], [`Scheduler::link_released`], [`Scheduler::slice_done`],
//! [`Scheduler::withdraw`], [`Scheduler::time`]. After any of them take [`Scheduler::poll`] until
//! it is empty; call `time` again at [`Scheduler::next_timeout`].

use alloc::vec::Vec;
mod link;
mod model;
mod transfer;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Reverse;
use core::time::Duration;

use crate::arena::{Arena, Key};
use crate::frame::Op;

pub use model::{Action, Cause, Effect, Ending, Failure, Fault, Request, Slice, Stage};

use link::{Link, LinkState};
use model::Knowledge;
use transfer::{Phase, Piece, Transfer};

/// Time since an origin of the driver's choice.
pub type Time = Duration;
/// Names a connection to a peer.
pub type LinkKey = Key<Link>;
/// Names a peer.
pub type PeerKey = Key<Peer>;

/// What does not depend on the transfer.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Most bytes of one wire request.
    pub slice_bytes: u64,
    /// Most links to one peer.
    pub lanes: usize,
    /// An unused link is closed after this long.
    pub idle: Duration,
}

/// What is known of one peer.
#[derive(Debug)]
pub struct Peer {
    name: Box<str>,
    knowledge: Knowledge,
    links: Vec<LinkKey>,
    /// Transfers with bytes that are in no slice yet.
    waiting: VecDeque<u64>,
    /// Slices to be tried again on a fresh link.
    again: VecDeque<u64>,
}

/// See the module's description. `M` names local memory, `C` is a transport's cause of failure.
#[derive(Debug)]
pub struct Scheduler<M, C> {
    config: Config,
    names: BTreeMap<Box<str>, PeerKey>,
    peers: Arena<Peer>,
    links: Arena<Link>,
    transfers: Arena<Transfer<M>>,
    pieces: Arena<Piece<M>>,
    deadlines: BinaryHeap<Reverse<(Time, u64)>>,
    next_sweep: Option<Time>,
    actions: VecDeque<Action<M, C>>,
}

type TransferKey<M> = Key<Transfer<M>>;
type PieceKey<M> = Key<Piece<M>>;

impl<M: Copy + PartialEq, C: Clone> Scheduler<M, C> {
    /// A scheduler that knows nobody.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            names: BTreeMap::new(),
            peers: Arena::default(),
            links: Arena::default(),
            transfers: Arena::default(),
            pieces: Arena::default(),
            deadlines: BinaryHeap::new(),
            next_sweep: None,
            actions: VecDeque::new(),
        }
    }

    /// Takes a transfer to the peer of that server name. One of no bytes is done at once, as
    /// stock engines have it.
    pub fn submit(&mut self, peer: &str, request: Request<M>) {
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
        let key = self.transfers.insert(Transfer::new(peer, request));
        self.deadlines.push(Reverse((deadline, key.to_bits())));
        self.trim_deadlines();
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.waiting.push_back(key.to_bits());
        }
        self.pump(peer);
    }

    /// The answer to [`Action::Resolve`]: a number that is the same as long as the peer publishes
    /// the same, or why it could not be asked.
    pub fn resolved(&mut self, key: PeerKey, answer: Result<u64, C>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        match answer {
            Ok(published) => {
                peer.knowledge = Knowledge::Known(published);
                let again = peer.again.clone();
                for bits in again {
                    let piece = PieceKey::<M>::from_bits(bits);
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
                self.fail_queued(key, &Fault::new(Stage::Resolve, Cause::Transport(cause)));
            }
        }
    }

    /// Local memory is going away: transfers that use it end now, and [`Self::uses`] says when
    /// the last is released.
    pub fn withdraw(&mut self, memory: M, now: Time) {
        let using: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, t)| t.memory == memory)
            .map(|(key, _)| key)
            .collect();
        for key in using {
            self.cut(key, &Fault::new(Stage::Transfer, Cause::Withdrawn));
        }
        self.time(now);
    }

    /// Whether some transfer that uses this memory is not released yet.
    #[must_use]
    pub fn uses(&self, memory: M) -> bool {
        self.transfers
            .iter()
            .any(|(_, transfer)| transfer.memory == memory)
    }

    /// Time has passed: what is due ends, links that nobody uses are closed.
    pub fn time(&mut self, now: Time) {
        while let Some(Reverse((due, bits))) = self.deadlines.peek().copied() {
            let key = TransferKey::from_bits(bits);
            if self.transfers.get(key).is_none() {
                self.deadlines.pop();
                continue;
            }
            if due > now {
                break;
            }
            self.deadlines.pop();
            let stage = self.stage(key);
            self.cut(key, &Fault::new(stage, Cause::Deadline));
        }
        if self.next_sweep.is_some_and(|due| due <= now) {
            self.sweep(now);
        }
    }

    /// When [`Self::time`] has work next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let deadline = self.deadlines.peek().map(|Reverse((due, _))| *due);
        [deadline, self.next_sweep].into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action<M, C>> {
        self.actions.pop_front()
    }

    /// Server name of a peer.
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
            again: VecDeque::new(),
        });
        self.names.insert(name.into(), key);
        key
    }

    /// Gives waiting work of one peer to its free links, and asks for what is missing.
    fn pump(&mut self, key: PeerKey) {
        while let Some(fresh_only) = self.has_work(key) {
            let Some(peer) = self.peers.get_mut(key) else {
                return;
            };
            match peer.knowledge {
                Knowledge::Resolving => return,
                Knowledge::Unknown => {
                    peer.knowledge = Knowledge::Resolving;
                    self.actions.push_back(Action::Resolve { peer: key });
                    return;
                }
                Knowledge::Known(published) => {
                    let Some(link) = self.free_link(key, fresh_only) else {
                        self.open_link(key);
                        return;
                    };
                    self.assign(key, link, published);
                }
            }
        }
    }

    /// Whether a peer's queue has live work at its head; `Some(true)` if that needs a fresh link.
    fn has_work(&mut self, key: PeerKey) -> Option<bool> {
        let peer = self.peers.get_mut(key)?;
        while let Some(bits) = peer.again.front() {
            if self.pieces.get(PieceKey::from_bits(*bits)).is_some() {
                return Some(true);
            }
            peer.again.pop_front();
        }
        while let Some(bits) = peer.waiting.front() {
            let transfer = self.transfers.get(TransferKey::from_bits(*bits));
            if transfer.is_some_and(|transfer| !transfer.ended && transfer.unsliced() > 0) {
                return Some(false);
            }
            peer.waiting.pop_front();
        }
        None
    }

    /// Puts the next slice of a peer's queue on a free link.
    fn assign(&mut self, peer: PeerKey, link: LinkKey, published: u64) {
        let Some(queues) = self.peers.get_mut(peer) else {
            return;
        };
        let key = if let Some(bits) = queues.again.pop_front() {
            PieceKey::from_bits(bits)
        } else {
            let Some(bits) = queues.waiting.front().copied() else {
                return;
            };
            let transfer_key = TransferKey::from_bits(bits);
            let Some(transfer) = self.transfers.get_mut(transfer_key) else {
                return;
            };
            let slice = transfer.next_slice(self.config.slice_bytes);
            self.pieces
                .insert(Piece::new(transfer_key, slice, published))
        };
        let (Some(piece), Some(link_state)) = (self.pieces.get_mut(key), self.links.get_mut(link))
        else {
            return;
        };
        piece.phase = Phase::Flying;
        link_state.state = LinkState::Busy;
        link_state.piece = Some(key.to_bits());
        self.actions.push_back(Action::Post {
            link,
            slice: piece.slice,
        });
    }

    /// Fails everything of a peer that is on no link.
    fn fail_queued(&mut self, key: PeerKey, fault: &Fault<C>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let waiting = core::mem::take(&mut peer.waiting);
        let again = core::mem::take(&mut peer.again);
        for bits in again {
            self.fail_piece(PieceKey::from_bits(bits), fault.clone());
        }
        for bits in waiting {
            self.end_failed(TransferKey::from_bits(bits), fault.clone());
        }
    }

    /// Deadlines of transfers that ended early would otherwise stay until they are due.
    fn trim_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.transfers.len() + 64 {
            let transfers = &self.transfers;
            self.deadlines
                .retain(|Reverse((_, bits))| transfers.get(Key::from_bits(*bits)).is_some());
        }
    }
}

#[cfg(test)]
mod tests;

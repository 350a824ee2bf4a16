//! Transfers and their pieces: slicing, the one outcome, the one release.

use super::{
    Action, Cause, Ending, Fault, Key, LinkState, Op, PeerKey, PieceKey, Request, Scheduler, Slice,
    Stage, TransferKey,
};

/// A transfer until its release.
#[derive(Debug)]
pub(super) struct Transfer<M> {
    pub(super) peer: PeerKey,
    pub(super) op: Op,
    pub(super) memory: M,
    remote: u64,
    offset: u64,
    length: u64,
    token: u64,
    /// Bytes that are in slices.
    sliced: u64,
    /// Slices that are not known to have succeeded.
    open: u32,
    /// Slices that may still touch memory, or will again.
    pub(super) unreleased: u32,
    /// The outcome was given.
    pub(super) ended: bool,
    /// The peer has taken some of it, or may have.
    pub(super) touched: bool,
}

/// One slice until its release.
#[derive(Debug)]
pub(super) struct Piece<M> {
    pub(super) transfer: TransferKey<M>,
    pub(super) slice: Slice<M>,
    pub(super) phase: Phase,
    /// It had its second chance.
    pub(super) retried: bool,
    /// What the peer published when it was first posted.
    pub(super) known: u64,
}

/// `Queued -> Flying -> Dying -> gone`, and from `Dying` once back to `Queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// On no link; nothing touches its memory.
    Queued,
    /// On a link.
    Flying,
    /// Its link failed or was given up; its memory may still be touched.
    Dying {
        /// Whether it shall be tried again.
        again: bool,
    },
}

impl<M: Copy> Transfer<M> {
    pub(super) fn new(peer: PeerKey, request: Request<M>) -> Self {
        let Request {
            op,
            remote,
            memory,
            offset,
            length,
            deadline: _,
            token,
        } = request;
        Self {
            peer,
            op,
            memory,
            remote,
            offset,
            length,
            token,
            sliced: 0,
            open: 0,
            unreleased: 0,
            ended: false,
            touched: false,
        }
    }

    pub(super) fn unsliced(&self) -> u64 {
        self.length - self.sliced
    }

    pub(super) fn next_slice(&mut self, most: u64) -> Slice<M> {
        let length = self.unsliced().min(most.max(1));
        let slice = Slice {
            op: self.op,
            remote: self.remote.wrapping_add(self.sliced),
            memory: self.memory,
            offset: self.offset + self.sliced,
            length,
        };
        self.sliced += length;
        self.open += 1;
        self.unreleased += 1;
        slice
    }
}

impl<M> Piece<M> {
    pub(super) fn new(transfer: TransferKey<M>, slice: Slice<M>, known: u64) -> Self {
        Self {
            transfer,
            slice,
            phase: Phase::Queued,
            retried: false,
            known,
        }
    }
}

impl<M: Copy + PartialEq, C: Clone> Scheduler<M, C> {
    /// What a transfer was doing, for the error that its deadline makes.
    pub(super) fn stage(&self, key: TransferKey<M>) -> Stage {
        let Some(transfer) = self.transfers.get(key) else {
            return Stage::Queue;
        };
        let Some(peer) = self.peers.get(transfer.peer) else {
            return Stage::Queue;
        };
        if transfer.unreleased > 0 {
            return Stage::Transfer;
        }
        match peer.knowledge {
            super::Knowledge::Known(_) => {
                let state = |link: &super::LinkKey| self.links.get(*link).map(|link| link.state);
                let up = |link| matches!(state(link), Some(LinkState::Busy | LinkState::Idle));
                if peer.links.iter().any(up) {
                    Stage::Queue
                } else {
                    Stage::Connect
                }
            }
            _ => Stage::Resolve,
        }
    }

    /// Ends a transfer now and gives up the links that carry it.
    pub(super) fn cut(&mut self, key: TransferKey<M>, fault: &Fault<C>) {
        let Some(peer) = self.transfers.get(key).map(|transfer| transfer.peer) else {
            return;
        };
        let links = self
            .peers
            .get(peer)
            .map(|peer| peer.links.clone())
            .unwrap_or_default();
        for link_key in links {
            let Some(link) = self.links.get_mut(link_key) else {
                continue;
            };
            let Some(bits) = link.piece else { continue };
            let Some(piece) = self.pieces.get_mut(PieceKey::from_bits(bits)) else {
                continue;
            };
            if piece.transfer != key {
                continue;
            }
            if piece.phase == Phase::Flying {
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.touched = true;
                }
                link.state = LinkState::Closing;
                self.actions.push_back(Action::Close { link: link_key });
            }
            piece.phase = Phase::Dying { again: false };
        }
        self.end_failed(key, fault.clone());
        self.forget_if_unlinked(peer);
        self.pump(peer);
    }

    /// A slice will not succeed: its transfer fails. The slice itself must be on no link.
    pub(super) fn fail_piece(&mut self, key: PieceKey<M>, fault: Fault<C>) {
        let Some(piece) = self.pieces.remove(key) else {
            return;
        };
        self.end_failed(piece.transfer, fault);
        self.release_one(piece.transfer);
    }

    /// A slice arrived.
    pub(super) fn finish_piece(&mut self, key: PieceKey<M>) {
        let Some(piece) = self.pieces.remove(key) else {
            return;
        };
        let Some(transfer) = self.transfers.get_mut(piece.transfer) else {
            return;
        };
        transfer.open -= 1;
        transfer.touched = true;
        if transfer.open == 0 && transfer.unsliced() == 0 && !transfer.ended {
            transfer.ended = true;
            let token = transfer.token;
            self.actions.push_back(Action::Outcome {
                token,
                ending: Ending::Done,
            });
        }
        self.release_one(piece.transfer);
    }

    /// Gives the outcome if there was none yet, and frees the transfer if nothing flies.
    pub(super) fn end_failed(&mut self, key: TransferKey<M>, mut fault: Fault<C>) {
        let flying = self.flies(key);
        let Some(transfer) = self
            .transfers
            .get_mut(key)
            .filter(|transfer| !transfer.ended)
        else {
            return;
        };
        transfer.ended = true;
        fault.indeterminate = transfer.op == Op::Write && (transfer.touched || flying);
        let (token, peer) = (transfer.token, transfer.peer);
        let ending = Ending::Failed(fault);
        self.actions.push_back(Action::Outcome { token, ending });
        self.drop_queued(peer, key);
        self.free_if_released(key);
    }

    /// One slice of a transfer can touch nothing any more.
    pub(super) fn release_one(&mut self, key: TransferKey<M>) {
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.unreleased -= 1;
        }
        self.free_if_released(key);
    }

    fn free_if_released(&mut self, key: TransferKey<M>) {
        let free = |t: &Transfer<M>| t.ended && t.unreleased == 0;
        if self.transfers.get(key).is_some_and(free)
            && let Some(transfer) = self.transfers.remove(key)
        {
            self.actions.push_back(Action::Release {
                token: transfer.token,
            });
        }
    }

    /// Slices of an ended transfer that wait for a second chance have none.
    fn drop_queued(&mut self, peer: PeerKey, key: TransferKey<M>) {
        let Some(peer) = self.peers.get_mut(peer) else {
            return;
        };
        let mut dropped = 0;
        let pieces = &mut self.pieces;
        peer.again.retain(|bits| {
            let piece = PieceKey::from_bits(*bits);
            let ours = pieces.get(piece).is_some_and(|piece| piece.transfer == key);
            if ours {
                pieces.remove(piece);
                dropped += 1;
            }
            !ours
        });
        for _ in 0..dropped {
            self.release_one(key);
        }
    }

    fn flies(&self, key: TransferKey<M>) -> bool {
        let Some(peer) = self.transfers.get(key).and_then(|t| self.peers.get(t.peer)) else {
            return false;
        };
        peer.links.iter().any(|link| {
            let bits = self.links.get(*link).and_then(|link| link.piece);
            let piece = bits.and_then(|bits| self.pieces.get(Key::from_bits(bits)));
            piece.is_some_and(|piece| piece.transfer == key && piece.phase == Phase::Flying)
        })
    }

    /// The fault of a link's failure for the slice on it.
    pub(super) fn transfer_fault(cause: C) -> Fault<C> {
        Fault::new(Stage::Transfer, Cause::Transport(cause))
    }
}

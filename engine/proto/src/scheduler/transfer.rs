//! Transfers and their slices: slicing, outcome and release.

use super::{
    Action, Cause, Ending, Fault, LinkState, Op, PeerKey, PieceKey, Request, Scheduler, Slice,
    Stage, TransferKey,
};

/// A transfer until its release.
#[derive(Debug)]
pub(super) struct Transfer<M> {
    /// Number of transfers that were submitted before it.
    pub(super) number: u64,
    pub(super) peer: PeerKey,
    pub(super) op: Op,
    pub(super) memory: M,
    remote: u64,
    offset: u64,
    length: u64,
    pub(super) token: u64,
    /// What the peer had published when the link of the first slice was opened.
    pub(super) published: Option<u64>,
    /// Bytes that were sliced.
    sliced: u64,
    /// Slices without success.
    open: u32,
    /// Slices that are not released.
    pub(super) unreleased: u32,
    /// The outcome was reported.
    pub(super) ended: bool,
    /// The peer has or may have received some of it.
    pub(super) touched: bool,
}

/// A slice until its release.
#[derive(Debug)]
pub(super) struct Piece<M> {
    pub(super) transfer: TransferKey,
    pub(super) slice: Slice<M>,
    pub(super) phase: Phase,
    /// It was retried.
    pub(super) retried: bool,
    /// What the peer had published when the slice's first link was opened.
    pub(super) known: u64,
}

/// `Queued -> Posted -> Ending -> removed`, or once from `Ending` back to `Queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// On no link; nothing accesses its memory.
    Queued,
    /// On a link.
    Posted,
    /// Its link failed or was closed; its memory may still be accessed.
    Ending { retry: bool },
}

impl<M: Copy> Transfer<M> {
    pub(super) fn new(peer: PeerKey, request: Request<M>, number: u64) -> Self {
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
            number,
            peer,
            op,
            memory,
            remote,
            offset,
            length,
            token,
            published: None,
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
    pub(super) fn new(transfer: TransferKey, slice: Slice<M>, known: u64) -> Self {
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
    /// Returns the current step of a transfer, for the error at its deadline.
    pub(super) fn stage(&self, key: TransferKey) -> Stage {
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

    /// Ends a transfer and closes the links that carry it.
    pub(super) fn cut(&mut self, key: TransferKey, cause: Cause<C>) {
        let Some(peer) = self.transfers.get(key).map(|transfer| transfer.peer) else {
            return;
        };
        self.take_back(key);
        let fault = Fault::new(self.stage(key), cause);
        let links = self
            .peers
            .get(peer)
            .map(|peer| peer.links.clone())
            .unwrap_or_default();
        for link_key in links {
            let carried = self
                .links
                .get(link_key)
                .map_or(&[][..], |link| &link.pieces);
            let mut posted = false;
            for carried in carried {
                let Some(piece) = self.pieces.get_mut(*carried) else {
                    continue;
                };
                if piece.transfer != key {
                    continue;
                }
                posted |= piece.phase == Phase::Posted;
                piece.phase = Phase::Ending { retry: false };
            }
            if posted {
                // Otherwise a peer that has stopped would get new slices for ever, and the ended one no release.
                if let Some(link) = self.links.get_mut(link_key) {
                    link.full = true;
                }
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.touched = true;
                }
                self.close_if_unwanted(link_key);
            }
        }
        self.end_failed(key, fault);
        self.forget_if_unlinked(peer);
        self.pump(peer);
    }

    /// Removes a transfer's slices from the links whose driver has not started them: no byte was sent, so these
    /// links stay open for other transfers.
    fn take_back(&mut self, key: TransferKey) {
        let pieces = &mut self.pieces;
        let links = &mut self.links;
        let mut taken = 0;
        self.actions.retain(|action| {
            let Action::Post { link, piece, .. } = action else {
                return true;
            };
            let ours = pieces.get(*piece).is_some_and(|one| one.transfer == key);
            let Some(link) = links.get_mut(*link).filter(|_| ours) else {
                return true;
            };
            if link.state != LinkState::Busy || !link.take(*piece) {
                return true;
            }
            pieces.remove(*piece);
            taken += 1;
            false
        });
        for _ in 0..taken {
            self.release_one(key);
        }
    }

    /// Fails the transfer of a slice. The slice must be on no link.
    pub(super) fn fail_piece(&mut self, key: PieceKey, fault: Fault<C>) {
        let Some(piece) = self.pieces.remove(key) else {
            return;
        };
        self.end_failed(piece.transfer, fault);
        self.release_one(piece.transfer);
    }

    /// Handles the success of a slice.
    pub(super) fn finish_piece(&mut self, key: PieceKey) {
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

    /// Reports the outcome, unless it was reported before, and removes the transfer if it is released.
    pub(super) fn end_failed(&mut self, key: TransferKey, mut fault: Fault<C>) {
        let posted = self.is_posted(key);
        let Some(transfer) = self
            .transfers
            .get_mut(key)
            .filter(|transfer| !transfer.ended)
        else {
            return;
        };
        transfer.ended = true;
        fault.indeterminate = transfer.op == Op::Write && (transfer.touched || posted);
        let (token, peer) = (transfer.token, transfer.peer);
        let ending = Ending::Failed(fault);
        self.actions.push_back(Action::Outcome { token, ending });
        self.drop_queued(peer, key);
        self.free_if_released(key);
    }

    /// Records the release of one slice.
    pub(super) fn release_one(&mut self, key: TransferKey) {
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.unreleased -= 1;
        }
        self.free_if_released(key);
    }

    fn free_if_released(&mut self, key: TransferKey) {
        let free = |t: &Transfer<M>| t.ended && t.unreleased == 0;
        if self.transfers.get(key).is_some_and(free)
            && let Some(transfer) = self.transfers.remove(key)
        {
            self.actions.push_back(Action::Release {
                token: transfer.token,
            });
        }
    }

    /// Removes the slices of an ended transfer that wait for a link.
    fn drop_queued(&mut self, peer: PeerKey, key: TransferKey) {
        let Some(peer) = self.peers.get_mut(peer) else {
            return;
        };
        let mut dropped = 0;
        let pieces = &mut self.pieces;
        let mut keep = |queued: &PieceKey| {
            let ours = pieces
                .get(*queued)
                .is_some_and(|piece| piece.transfer == key);
            if ours {
                pieces.remove(*queued);
                dropped += 1;
            }
            !ours
        };
        peer.retries.retain(&mut keep);
        peer.returned.retain(&mut keep);
        for _ in 0..dropped {
            self.release_one(key);
        }
    }

    fn is_posted(&self, key: TransferKey) -> bool {
        let Some(peer) = self.transfers.get(key).and_then(|t| self.peers.get(t.peer)) else {
            return false;
        };
        peer.links.iter().any(|link| {
            let carried = self.links.get(*link).map_or(&[][..], |link| &link.pieces);
            carried.iter().any(|carried| {
                self.pieces
                    .get(*carried)
                    .is_some_and(|piece| piece.transfer == key && piece.phase == Phase::Posted)
            })
        })
    }
}

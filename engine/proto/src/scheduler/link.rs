//! Links: they only go forward, `Connecting -> Idle <-> Busy -> Closing -> gone`. A bad link is
//! replaced, never repaired.

use super::model::Knowledge;
use super::{
    Action, Cause, Effect, Failure, Fault, LinkKey, PeerKey, Phase, PieceKey, Scheduler, Stage,
    Time,
};
use alloc::vec::Vec;

/// One connection to a peer.
#[derive(Debug)]
pub struct Link {
    peer: PeerKey,
    pub(super) state: LinkState,
    /// The slice on it, also while it closes.
    pub(super) piece: Option<u64>,
    /// It has carried a request, so it may be stale when it is used again.
    used: bool,
    /// Since when nothing was on it.
    idle_since: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    Connecting,
    Idle,
    Busy,
    /// Failed or given up, not yet released.
    Closing,
}

impl<M: Copy + PartialEq, C: Clone> Scheduler<M, C> {
    /// A link can carry requests.
    pub fn link_up(&mut self, key: LinkKey, now: Time) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Connecting {
            return;
        }
        link.state = LinkState::Idle;
        link.idle_since = now;
        let peer = link.peer;
        self.next_sweep.get_or_insert(now + self.config.idle);
        self.pump(peer);
    }

    /// The request on a link is done. Too late if the link was given up before.
    pub fn slice_done(&mut self, key: LinkKey, now: Time) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Busy {
            return;
        }
        let Some(bits) = link.piece.take() else {
            return;
        };
        link.state = LinkState::Idle;
        link.used = true;
        link.idle_since = now;
        let peer = link.peer;
        self.finish_piece(PieceKey::from_bits(bits));
        self.pump(peer);
    }

    /// A link failed, or could not be made. What was on it is not released yet.
    pub fn link_down(&mut self, key: LinkKey, failure: Failure<C>) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let before = link.state;
        link.state = LinkState::Closing;
        let (peer, stale, bits) = (link.peer, link.used, link.piece);
        match before {
            LinkState::Closing => return,
            LinkState::Idle => {}
            LinkState::Busy => {
                let Some(bits) = bits else { return };
                self.piece_failed(PieceKey::from_bits(bits), failure, stale);
                if stale {
                    // Its neighbours are of the same age and as likely dead.
                    self.close_idle(peer, |_| true);
                }
            }
            LinkState::Connecting => {
                if !self.has_live_link(peer) {
                    let cause = Cause::Transport(failure.cause);
                    self.fail_queued(peer, &Fault::new(Stage::Connect, cause));
                }
            }
        }
        self.forget_if_unlinked(peer);
        self.pump(peer);
    }

    /// Nothing of a link can touch memory any more.
    pub fn link_released(&mut self, key: LinkKey) {
        let Some(link) = self.links.remove(key) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(link.peer) {
            peer.links.retain(|other| *other != key);
        }
        if let Some(bits) = link.piece {
            self.piece_released(PieceKey::from_bits(bits), link.peer);
        }
        self.forget_if_unlinked(link.peer);
        self.pump(link.peer);
    }

    /// A slice's attempt failed; a stale link and no answer at all give it a second chance.
    fn piece_failed(&mut self, key: PieceKey<M>, failure: Failure<C>, stale: bool) {
        let Failure {
            cause,
            effect,
            reply_seen,
        } = failure;
        let Some(piece) = self.pieces.get_mut(key) else {
            return;
        };
        let again = stale && !reply_seen && !piece.retried;
        piece.phase = Phase::Dying { again };
        let transfer = piece.transfer;
        if effect == Effect::Unknown
            && let Some(transfer) = self.transfers.get_mut(transfer)
        {
            transfer.touched = true;
        }
        if !again {
            self.end_failed(transfer, Self::transfer_fault(cause));
        }
    }

    fn piece_released(&mut self, key: PieceKey<M>, peer: PeerKey) {
        let Some(piece) = self.pieces.get_mut(key) else {
            return;
        };
        let transfer = piece.transfer;
        let wanted = self
            .transfers
            .get(transfer)
            .is_some_and(|transfer| !transfer.ended);
        if piece.phase == (Phase::Dying { again: true }) && wanted {
            piece.phase = Phase::Queued;
            piece.retried = true;
            if let Some(peer) = self.peers.get_mut(peer) {
                peer.again.push_back(key.to_bits());
            }
            return;
        }
        self.pieces.remove(key);
        self.release_one(transfer);
    }

    pub(super) fn free_link(&self, peer: PeerKey, fresh_only: bool) -> Option<LinkKey> {
        let links = &self.peers.get(peer)?.links;
        links.iter().copied().find(|key| {
            self.links
                .get(*key)
                .is_some_and(|link| link.state == LinkState::Idle && !(fresh_only && link.used))
        })
    }

    /// Opens one more link, unless one is on its way or there are enough.
    pub(super) fn open_link(&mut self, key: PeerKey) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        let mut live = 0;
        for link in peer.links.iter().filter_map(|link| self.links.get(*link)) {
            match link.state {
                LinkState::Connecting => return,
                LinkState::Idle | LinkState::Busy => live += 1,
                LinkState::Closing => {}
            }
        }
        if live >= self.config.lanes.max(1) {
            return;
        }
        let link = self.links.insert(Link {
            peer: key,
            state: LinkState::Connecting,
            piece: None,
            used: false,
            idle_since: Time::ZERO,
        });
        if let Some(peer) = self.peers.get_mut(key) {
            peer.links.push(link);
        }
        self.actions.push_back(Action::Open { link, peer: key });
    }

    /// A peer with no connection left may be another when it comes back: ask it again first.
    pub(super) fn forget_if_unlinked(&mut self, key: PeerKey) {
        if !self.has_live_link(key)
            && let Some(peer) = self.peers.get_mut(key)
            && matches!(peer.knowledge, Knowledge::Known(_))
        {
            peer.knowledge = Knowledge::Unknown;
        }
    }

    /// Closes links that nobody used for long and forgets peers that have none.
    pub(super) fn sweep(&mut self, now: Time) {
        let idle = self.config.idle;
        let peers: Vec<_> = self.peers.iter().map(|(key, _)| key).collect();
        for key in peers {
            self.close_idle(key, |link| link.idle_since + idle <= now);
            self.forget_if_unlinked(key);
            let gone = self.peers.get(key).is_some_and(|peer| {
                peer.links.is_empty()
                    && peer.waiting.is_empty()
                    && peer.again.is_empty()
                    && peer.knowledge == Knowledge::Unknown
            });
            if gone && let Some(peer) = self.peers.remove(key) {
                self.names.remove(&peer.name);
            }
        }
        self.next_sweep = (!self.peers.is_empty()).then(|| now + idle);
    }

    fn close_idle(&mut self, peer: PeerKey, which: impl Fn(&Link) -> bool) {
        let links = self
            .peers
            .get(peer)
            .map(|peer| peer.links.clone())
            .unwrap_or_default();
        for key in links {
            let Some(link) = self.links.get_mut(key) else {
                continue;
            };
            if link.state == LinkState::Idle && which(link) {
                link.state = LinkState::Closing;
                self.actions.push_back(Action::Close { link: key });
            }
        }
    }

    fn has_live_link(&self, peer: PeerKey) -> bool {
        self.peers.get(peer).is_some_and(|peer| {
            peer.links.iter().any(|link| {
                self.links
                    .get(*link)
                    .is_some_and(|link| link.state != LinkState::Closing)
            })
        })
    }
}

//! Links: `Connecting -> Idle <-> Busy -> Closing -> removed`. A failed link is replaced, never reused.

use super::model::Knowledge;
use super::{
    Action, Cause, Effect, Failure, Fault, LinkKey, Op, PeerKey, Phase, PieceKey, Scheduler, Stage,
    Time,
};
use alloc::vec::Vec;

/// One connection to a peer.
#[derive(Debug)]
pub(super) struct Link {
    peer: PeerKey,
    /// What the peer had published when it was opened.
    pub(super) published: u64,
    pub(super) state: LinkState,
    /// The slice on the link, also while it closes.
    pub(super) piece: Option<PieceKey>,
    /// It has carried a request, so the peer may have closed it since.
    used: bool,
    /// Start of its idle time.
    idle_since: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    Connecting,
    Idle,
    Busy,
    /// Failed or closed, not yet released.
    Closing,
}

impl<M: Copy + PartialEq, C: Clone> Scheduler<M, C> {
    /// Handles a link that can carry requests.
    pub fn link_up(&mut self, key: LinkKey, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Connecting {
            return;
        }
        link.state = LinkState::Idle;
        link.idle_since = now;
        let key = link.peer;
        if let Some(peer) = self.peers.get_mut(key) {
            peer.failures = 0;
        }
        self.pump(key);
    }

    /// Handles the completion of a link's request. Ignored if the link was closed before.
    pub fn slice_done(&mut self, key: LinkKey, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Busy {
            return;
        }
        let Some(piece) = link.piece.take() else {
            return;
        };
        link.state = LinkState::Idle;
        link.used = true;
        link.idle_since = now;
        let peer = link.peer;
        self.finish_piece(piece);
        self.pump(peer);
    }

    /// Handles a link that failed or could not connect. Its slice is not released yet.
    pub fn link_down(&mut self, key: LinkKey, failure: Failure<C>, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let before = link.state;
        link.state = LinkState::Closing;
        let (peer, stale, piece) = (link.peer, link.used, link.piece);
        match before {
            LinkState::Closing => return,
            LinkState::Idle => {}
            LinkState::Busy => {
                let Some(piece) = piece else { return };
                self.piece_failed(piece, failure, stale);
                if stale {
                    // The peer's other idle links are probably dead too.
                    self.close_idle(peer, |_| true);
                }
            }
            LinkState::Connecting => {
                self.back_off(peer);
                if !self.has_live_link(peer) {
                    let cause = Cause::Transport(failure.cause);
                    self.fail_queued(peer, &Fault::new(Stage::Connect, cause));
                }
            }
        }
        // The peer may be another engine by now, also if another link has not noticed it yet.
        self.forget_address(peer);
        self.pump(peer);
    }

    /// Handles the release of a link: it cannot access memory any more.
    pub fn link_released(&mut self, key: LinkKey) {
        let Some(link) = self.links.remove(key) else {
            return;
        };
        if let Some(peer) = self.peers.get_mut(link.peer) {
            peer.links.retain(|other| *other != key);
        }
        if let Some(piece) = link.piece {
            self.piece_released(piece, link.peer);
        }
        self.forget_if_unlinked(link.peer);
        self.pump(link.peer);
    }

    /// Handles a failed attempt. The slice is retried once if the link had been used before and the peer
    /// sent no reply. A write is not retried if its payload may have reached the peer: a late copy of it
    /// could land after a later write to the same range.
    fn piece_failed(&mut self, key: PieceKey, failure: Failure<C>, stale: bool) {
        let Failure {
            cause,
            effect,
            reply_seen,
        } = failure;
        let Some(piece) = self.pieces.get_mut(key) else {
            return;
        };
        let may_land = piece.slice.op == Op::Write && effect == Effect::Unknown;
        let retry = stale && !reply_seen && !piece.retried && !may_land;
        piece.phase = Phase::Ending { retry };
        let transfer = piece.transfer;
        if effect == Effect::Unknown
            && let Some(transfer) = self.transfers.get_mut(transfer)
        {
            transfer.touched = true;
        }
        if !retry {
            self.end_failed(
                transfer,
                Fault::new(Stage::Transfer, Cause::Transport(cause)),
            );
        }
    }

    fn piece_released(&mut self, key: PieceKey, peer: PeerKey) {
        let Some(piece) = self.pieces.get_mut(key) else {
            return;
        };
        let transfer = piece.transfer;
        let wanted = self
            .transfers
            .get(transfer)
            .is_some_and(|transfer| !transfer.ended);
        if piece.phase == (Phase::Ending { retry: true }) && wanted {
            piece.phase = Phase::Queued;
            piece.retried = true;
            if let Some(peer) = self.peers.get_mut(peer) {
                peer.retries.push_back(key);
            }
            return;
        }
        self.pieces.remove(key);
        self.release_one(transfer);
    }

    pub(super) fn free_link(&self, peer: PeerKey, new_only: bool) -> Option<LinkKey> {
        let links = &self.peers.get(peer)?.links;
        links.iter().copied().find(|key| {
            self.links
                .get(*key)
                .is_some_and(|link| link.state == LinkState::Idle && !(new_only && link.used))
        })
    }

    /// Returns whether a link may be opened: none is connecting, and the limit is not reached.
    pub(super) fn may_open(&self, key: PeerKey) -> bool {
        let Some(peer) = self.peers.get(key) else {
            return false;
        };
        let mut live = 0;
        for link in peer.links.iter().filter_map(|link| self.links.get(*link)) {
            match link.state {
                LinkState::Connecting => return false,
                LinkState::Idle | LinkState::Busy => live += 1,
                LinkState::Closing => {}
            }
        }
        live < self.config.lanes.max(1)
    }

    pub(super) fn open_link(&mut self, key: PeerKey, published: u64) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let link = self.links.insert(Link {
            peer: key,
            published,
            state: LinkState::Connecting,
            piece: None,
            used: false,
            idle_since: Time::ZERO,
        });
        peer.links.push(link);
        self.actions.push_back(Action::Open { link, peer: key });
    }

    /// Marks a peer without links as unresolved: it may be another engine when it is back.
    pub(super) fn forget_if_unlinked(&mut self, key: PeerKey) {
        if !self.has_live_link(key) {
            self.forget_address(key);
        }
    }

    /// Marks a peer as unresolved: it is resolved again before its next link is opened.
    fn forget_address(&mut self, key: PeerKey) {
        if let Some(peer) = self.peers.get_mut(key)
            && matches!(peer.knowledge, Knowledge::Known(_))
        {
            peer.knowledge = Knowledge::Unknown;
        }
    }

    /// Closes links after their idle time, and removes peers without links and work.
    pub(super) fn sweep(&mut self, now: Time) {
        let idle = self.config.idle;
        let peers: Vec<_> = self.peers.keys().collect();
        for key in peers {
            self.close_idle(key, |link| link.idle_since + idle <= now);
            self.forget_if_unlinked(key);
            let gone = self.peers.get(key).is_some_and(|peer| {
                peer.links.is_empty()
                    && peer.waiting.is_empty()
                    && peer.retries.is_empty()
                    && peer.knowledge == Knowledge::Unknown
                    && peer.not_before <= now
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

    pub(super) fn has_live_link(&self, peer: PeerKey) -> bool {
        self.peers.get(peer).is_some_and(|peer| {
            peer.links.iter().any(|link| {
                self.links
                    .get(*link)
                    .is_some_and(|link| link.state != LinkState::Closing)
            })
        })
    }
}

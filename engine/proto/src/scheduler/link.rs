//! Links: `Connecting -> Idle <-> Busy -> Closing -> removed`. A failed link is replaced, never reused. A busy link
//! takes further slices up to its window.

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
    /// The slices on the link, also while it closes.
    pub(super) pieces: Vec<PieceKey>,
    /// Most slices at a time.
    window: usize,
    /// It has refused a slice, or carries one of an ended transfer; it may take another one after a completion.
    pub(super) full: bool,
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

impl Link {
    /// Takes a slice off the link. Returns false if it does not carry it.
    pub(super) fn take(&mut self, piece: PieceKey) -> bool {
        let Some(at) = self.pieces.iter().position(|carried| *carried == piece) else {
            return false;
        };
        self.pieces.swap_remove(at);
        if self.pieces.is_empty() {
            self.state = LinkState::Idle;
        }
        true
    }

    fn has_space(&self) -> bool {
        match self.state {
            LinkState::Idle => true,
            LinkState::Busy => !self.full && self.pieces.len() < self.window,
            LinkState::Connecting | LinkState::Closing => false,
        }
    }
}

impl<M: Copy + PartialEq, C: Clone> Scheduler<M, C> {
    /// Handles a link that can carry so many requests at a time, at least one.
    pub fn link_up(&mut self, key: LinkKey, window: usize, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Connecting {
            return;
        }
        link.state = LinkState::Idle;
        link.window = window.max(1);
        link.idle_since = now;
        let key = link.peer;
        if let Some(peer) = self.peers.get_mut(key) {
            peer.failures = 0;
        }
        self.pump(key);
    }

    /// Handles the completion of one of a link's requests, in any order. Ignored if the link was closed before.
    pub fn slice_done(&mut self, key: LinkKey, piece: PieceKey, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Busy {
            return;
        }
        if !link.take(piece) {
            return;
        }
        link.used = true;
        link.full = false;
        link.idle_since = now;
        let peer = link.peer;
        self.finish_piece(piece);
        // The slices that are left may be of ended transfers only.
        self.close_if_unwanted(key);
        self.pump(peer);
    }

    /// Handles a request that a link has not begun, because it is full. The slice is posted again, here after a
    /// completion or on another link. A link that refuses a slice while it carries none is closed.
    pub fn not_accepted(&mut self, key: LinkKey, piece: PieceKey, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state != LinkState::Busy || !link.take(piece) {
            return;
        }
        link.full = true;
        let peer = link.peer;
        if link.state == LinkState::Idle {
            link.state = LinkState::Closing;
            self.actions.push_back(Action::Close { link: key });
        }
        self.queue_again(piece, peer);
        self.close_if_unwanted(key);
        self.pump(peer);
    }

    /// Handles a request without any effect, neither now nor later, of a link that has failed: the slice is posted
    /// again, on another link. [`Self::link_down`] follows.
    pub fn slice_returned(&mut self, key: LinkKey, piece: PieceKey) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        if link.state == LinkState::Busy && link.take(piece) {
            let peer = link.peer;
            self.queue_again(piece, peer);
        }
    }

    /// Queues a slice that is on no link any more, unless its transfer has ended.
    fn queue_again(&mut self, piece: PieceKey, peer: PeerKey) {
        if !self.is_wanted(piece) {
            self.drop_piece(piece);
        } else if let (Some(state), Some(peer)) =
            (self.pieces.get_mut(piece), self.peers.get_mut(peer))
        {
            state.phase = Phase::Queued;
            peer.returned.push_back(piece);
        }
    }

    /// Handles a link that failed or could not connect. Its slices are not released yet.
    pub fn link_down(&mut self, key: LinkKey, failure: Failure<C>, now: Time) {
        self.advance(now);
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let before = link.state;
        link.state = LinkState::Closing;
        let (peer, stale, pieces) = (link.peer, link.used, link.pieces.clone());
        match before {
            LinkState::Closing => return,
            LinkState::Idle => {}
            LinkState::Busy => {
                for piece in pieces {
                    self.piece_failed(piece, failure.clone(), stale);
                }
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
        for piece in link.pieces {
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
        let wanted = self.is_wanted(key);
        let Some(piece) = self.pieces.get_mut(key) else {
            return;
        };
        if piece.phase == (Phase::Ending { retry: true }) && wanted {
            piece.phase = Phase::Queued;
            piece.retried = true;
            if let Some(peer) = self.peers.get_mut(peer) {
                peer.retries.push_back(key);
            }
            return;
        }
        self.drop_piece(key);
    }

    /// Returns whether the transfer of a slice has no outcome yet.
    fn is_wanted(&self, key: PieceKey) -> bool {
        let piece = self.pieces.get(key);
        piece
            .and_then(|piece| self.transfers.get(piece.transfer))
            .is_some_and(|transfer| !transfer.ended)
    }

    /// Removes a slice that nothing accesses any more.
    fn drop_piece(&mut self, key: PieceKey) {
        if let Some(piece) = self.pieces.remove(key) {
            self.release_one(piece.transfer);
        }
    }

    pub(super) fn free_link(&self, peer: PeerKey, new_only: bool) -> Option<LinkKey> {
        let links = self.peers.get(peer)?.links.iter();
        let open = links.filter_map(|key| {
            let link = self.links.get(*key)?;
            (link.has_space() && !(new_only && link.used)).then_some((link.pieces.len(), *key))
        });
        open.min_by_key(|(carried, _)| *carried).map(|(_, key)| key)
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
            pieces: Vec::new(),
            window: 1,
            full: false,
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
                    && peer.returned.is_empty()
                    && peer.knowledge == Knowledge::Unknown
                    && peer.not_before <= now
            });
            if gone && let Some(peer) = self.peers.remove(key) {
                self.names.remove(&peer.name);
            }
        }
        self.next_sweep = (!self.peers.is_empty()).then(|| now + idle);
    }

    /// Closes a busy link if no transfer waits for its slices any more. A link with slices of other transfers
    /// stays: the transport ends each slice within its own bound, and the release waits for that.
    pub(super) fn close_if_unwanted(&mut self, key: LinkKey) {
        let Some(link) = self.links.get_mut(key) else {
            return;
        };
        let unwanted = link.pieces.iter().all(|piece| {
            self.pieces
                .get(*piece)
                .is_none_or(|piece| matches!(piece.phase, Phase::Ending { .. }))
        });
        if link.state == LinkState::Busy && unwanted {
            link.state = LinkState::Closing;
            self.actions.push_back(Action::Close { link: key });
        }
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

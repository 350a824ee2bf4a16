//! The outgoing transfers of one endpoint on one data thread: a scheduler, and the calls that carry out
//! its decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proto::frame::Op;
use proto::scheduler::{Action, Config, Ending, PeerKey, Request, Scheduler, Time};
use slotmap::{DefaultKey, Key as _, KeyData, SlotMap};

use crate::batch::{Completion, Submission};
use crate::command::{Command, CommandSender};
use crate::error::TransferError;
use crate::outstanding::Share;
use crate::resolve::Resolver;
use crate::settings::Settings;
use crate::transport::{EndpointId, LinkError, LinkId, PeerAddress, Post, RegionId, Transport};

/// An own connection that was idle for this long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// First and longest pause after a failure to reach a peer.
const BACKOFF_LEAST: Duration = Duration::from_millis(50);
const BACKOFF_MOST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Initiator {
    pub(super) scheduler: Scheduler<RegionId, LinkError>,
    resolver: Arc<Resolver>,
    addresses: HashMap<PeerKey, PeerAddress>,
    /// Transfers that are not released, by the token that the scheduler carries.
    transfers: SlotMap<DefaultKey, Pending>,
    /// Requests for one link, which are posted together.
    posts: Vec<Post>,
}

#[derive(Debug)]
struct Pending {
    share: Share,
    op: Op,
    completion: Arc<Completion>,
    ended: bool,
}

impl Pending {
    fn release(self) {
        // First: whoever waits for the release may submit again.
        drop(self.share);
        self.completion.release();
    }
}

impl Initiator {
    pub(super) fn new(resolver: Arc<Resolver>, settings: Settings) -> Self {
        let config = Config {
            slice_bytes: settings.slice_bytes,
            lanes: settings.lanes_per_peer,
            idle: IDLE,
            backoff_least: BACKOFF_LEAST,
            backoff_most: BACKOFF_MOST,
        };
        Self {
            scheduler: Scheduler::new(config),
            resolver,
            addresses: HashMap::new(),
            transfers: SlotMap::new(),
            posts: Vec::new(),
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.scheduler.next_timeout()
    }

    /// Starts the transfers of a batch that are for this thread.
    pub(super) fn submit(
        &mut self,
        batch: &Arc<Completion>,
        thread: usize,
        deadline: Time,
        now: Time,
    ) {
        batch.take(thread, |submission| {
            let Submission { share, request, .. } = submission;
            let key = self.transfers.insert(Pending {
                share,
                op: request.op,
                completion: Arc::clone(batch),
                ended: false,
            });
            let request = Request {
                deadline,
                token: key.data().as_ffi(),
                ..request
            };
            if let Some(pending) = self.transfers.get(key) {
                self.scheduler.submit(pending.share.peer(), request, now);
            }
        });
    }

    /// Ends the transfers of a batch that was dropped.
    pub(super) fn cancel(&mut self, batch: &Arc<Completion>) {
        let of_batch = |pending: &Pending| Arc::ptr_eq(&pending.completion, batch);
        let mut tokens: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, pending)| of_batch(pending))
            .map(|(key, _)| key.data().as_ffi())
            .collect();
        tokens.sort_unstable();
        self.scheduler
            .cancel(|token| tokens.binary_search(&token).is_ok());
    }

    pub(super) fn resolved(
        &mut self,
        peer: PeerKey,
        answer: Result<(u64, PeerAddress), LinkError>,
        now: Time,
    ) {
        let answer = answer.map(|(published, address)| {
            self.addresses.insert(peer, address);
            published
        });
        self.scheduler.resolved(peer, answer, now);
    }

    /// Fails all transfers. Called after the transport has released everything of the endpoint.
    pub(super) fn abandon(&mut self) {
        for (_, pending) in self.transfers.drain() {
            if !pending.ended {
                pending.completion.end(Err(TransferError::Closed {
                    peer: pending.share.peer().to_owned(),
                }));
            }
            pending.release();
        }
    }

    /// Advances the scheduler's time and carries out what it decides.
    pub(super) fn act(
        &mut self,
        endpoint: EndpointId,
        now: Time,
        transport: &mut dyn Transport,
        commands: &CommandSender,
    ) {
        self.scheduler.time(now);
        let mut target = None;
        loop {
            let action = self.scheduler.poll();
            let next = match &action {
                Some(Action::Post { link, .. }) => Some(*link),
                _ => None,
            };
            let complete = target.filter(|link| next != Some(*link));
            if let Some(link) = complete {
                target = None;
                self.post(LinkId { endpoint, link }, now, transport);
            }
            let Some(action) = action else {
                if complete.is_some() {
                    // What was not accepted may be for another link.
                    continue;
                }
                break;
            };
            match action {
                Action::Resolve { peer } => self.resolve(endpoint, peer, commands.clone()),
                Action::Open { link, peer } => {
                    if let Some(address) = self.addresses.get(&peer) {
                        transport.open(LinkId { endpoint, link }, address);
                    }
                }
                Action::Post { link, piece, slice } => {
                    target = Some(link);
                    self.posts.push(Post { piece, slice });
                }
                Action::Close { link } => transport.close(LinkId { endpoint, link }),
                Action::Outcome { token, ending } => self.end(token, ending),
                Action::Release { token } => {
                    if let Some(pending) = self.transfers.remove(key(token)) {
                        pending.release();
                    }
                }
            }
        }
        let scheduler = &self.scheduler;
        if self.addresses.len() > 64 {
            self.addresses
                .retain(|peer, _| scheduler.peer_name(*peer).is_some());
        }
    }

    /// Posts the collected requests for a link.
    fn post(&mut self, link: LinkId, now: Time, transport: &mut dyn Transport) {
        let accepted = transport.post(link, &self.posts);
        for refused in self.posts.drain(..).skip(accepted) {
            self.scheduler.not_accepted(link.link, refused.piece, now);
        }
    }

    fn resolve(&self, endpoint: EndpointId, peer: PeerKey, commands: CommandSender) {
        let Some(name) = self.scheduler.peer_name(peer).map(Arc::from) else {
            return;
        };
        let resolver = Arc::clone(&self.resolver);
        self.resolver.runtime.spawn(async move {
            let answer = resolver.resolve(name).await;
            // Fails only after the engine has stopped.
            let _stopped = commands.send(Command::Resolved {
                endpoint,
                peer,
                answer,
            });
        });
    }

    fn end(&mut self, token: u64, ending: Ending<LinkError>) {
        let Some(pending) = self.transfers.get_mut(key(token)) else {
            return;
        };
        pending.ended = true;
        pending.share.end(matches!(ending, Ending::Done));
        pending.completion.end(match ending {
            Ending::Done => Ok(()),
            Ending::Failed(fault) => {
                let peer = pending.share.peer();
                Err(TransferError::from_fault(peer, pending.op, fault))
            }
        });
    }
}

fn key(token: u64) -> DefaultKey {
    KeyData::from_ffi(token).into()
}

//! The initiator's half of one host on one data thread: its scheduler, and the turning of its
//! decisions into calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::arena::{Arena, Key};
use proto::frame::Op;
use proto::scheduler::{Action, Config, Ending, PeerKey, Request, Scheduler, Time};

use crate::batch::Cell;
use crate::command::{Lane, Submission};
use crate::control::Outbound;
use crate::error::TransferError;
use crate::settings::Settings;
use crate::transport::{HostId, LinkError, LinkId, PeerCard, RegionId, Transport};

/// An own connection that nobody used for this long is closed.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Initiator {
    scheduler: Scheduler<RegionId, LinkError>,
    outbound: Arc<Outbound>,
    cards: HashMap<PeerKey, PeerCard>,
    waiting: Arena<Waiting>,
}

/// Who waits for a transfer.
#[derive(Debug)]
struct Waiting {
    peer: Arc<str>,
    op: Op,
    cell: Arc<Cell>,
    ended: bool,
}

impl Initiator {
    pub(super) fn new(outbound: Arc<Outbound>, settings: Settings) -> Self {
        let config = Config {
            slice_bytes: settings.slice_bytes,
            lanes: settings.lanes_per_peer,
            idle: IDLE,
        };
        Self {
            scheduler: Scheduler::new(config),
            outbound,
            cards: HashMap::new(),
            waiting: Arena::default(),
        }
    }

    pub(super) fn scheduler(&mut self) -> &mut Scheduler<RegionId, LinkError> {
        &mut self.scheduler
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.scheduler.next_timeout()
    }

    pub(super) fn uses(&self, region: RegionId) -> bool {
        self.scheduler.uses(region)
    }

    pub(super) fn withdraw(&mut self, region: RegionId, now: Time) {
        self.scheduler.withdraw(region, now);
    }

    pub(super) fn submit(&mut self, submission: Submission, origin: Instant) {
        let Submission {
            peer,
            request,
            deadline,
            cell,
        } = submission;
        let op = request.op;
        let waiting = Waiting {
            peer: Arc::clone(&peer),
            op,
            cell,
            ended: false,
        };
        let token = self.waiting.insert(waiting).to_bits();
        let deadline = deadline.saturating_duration_since(origin);
        self.scheduler.submit(
            &peer,
            Request {
                deadline,
                token,
                ..request
            },
        );
    }

    /// Answers a submission to a host that is gone.
    pub(super) fn refuse(submission: &Submission) {
        let peer = submission.peer.to_string();
        submission.cell.end(Err(TransferError::Closed { peer }));
        submission.cell.release();
    }

    pub(super) fn resolved(&mut self, peer: PeerKey, answer: Result<(u64, PeerCard), LinkError>) {
        let answer = answer.map(|(published, card)| {
            self.cards.insert(peer, card);
            published
        });
        self.scheduler.resolved(peer, answer);
    }

    /// The host is gone and the transport has let go of everything of it.
    pub(super) fn abandon(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for (_, one) in waiting.iter() {
            if !one.ended {
                one.cell.end(Err(TransferError::Closed {
                    peer: one.peer.to_string(),
                }));
            }
            one.cell.release();
        }
    }

    /// Lets time pass and carries out what the scheduler decides.
    pub(super) fn act(
        &mut self,
        host: HostId,
        now: Time,
        transport: &mut dyn Transport,
        lane: &Lane,
    ) {
        self.scheduler.time(now);
        while let Some(action) = self.scheduler.poll() {
            match action {
                Action::Resolve { peer } => {
                    let name = self.scheduler.peer_name(peer).map(Arc::from);
                    if let Some(name) = name {
                        self.outbound.resolve(host, peer, name, lane.clone());
                    }
                }
                Action::Open { link, peer } => {
                    if let Some(card) = self.cards.get(&peer) {
                        transport.open(LinkId { host, link }, card);
                    }
                }
                Action::Post { link, slice } => transport.post(LinkId { host, link }, &slice),
                Action::Close { link } => transport.close(LinkId { host, link }),
                Action::Outcome { token, ending } => self.end(token, ending),
                Action::Release { token } => {
                    if let Some(one) = self.waiting.remove(Key::from_bits(token)) {
                        one.cell.release();
                    }
                }
            }
        }
        let scheduler = &self.scheduler;
        if self.cards.len() > 64 {
            self.cards
                .retain(|peer, _| scheduler.peer_name(*peer).is_some());
        }
    }

    fn end(&mut self, token: u64, ending: Ending<LinkError>) {
        let Some(one) = self.waiting.get_mut(Key::from_bits(token)) else {
            return;
        };
        one.ended = true;
        one.cell.end(match ending {
            Ending::Done => Ok(()),
            Ending::Failed(fault) => Err(TransferError::from_fault(&one.peer, one.op, fault)),
        });
    }
}

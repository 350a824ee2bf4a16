//! The RDMA transport of one data thread: links of reliable queue pairs, whose one-sided requests the device carries
//! out. Serving peers needs no data thread: their devices access the memory.

mod card;
mod cards;
mod connect;
#[cfg(test)]
#[path = "../../tests/fixture/verbs.rs"]
pub(super) mod device;
mod failures;
mod health;
mod inbox;
mod lanes;
mod link;
mod served;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::rdma::nic_path;
use proto::scheduler::Failure;
use sys::mem::Region;
use sys::verbs::{Completion, CompletionChannel, CompletionQueue, MemoryRegion, QueuePair};
use tokio::sync::mpsc;

use super::reactor::{Attention, EventFlags, Ready, Token, Watcher};
use super::{
    EndpointId, Event, IdleConnection, LinkError, LinkId, NewSocket, PeerAddress, Post, RegionId,
    Transport,
};
use crate::admission::Admission;
use crate::connect::Dialer;
use crate::stats::Counters;

pub use card::{Card, OpenedDevice, Port};
pub(crate) use cards::Cards;
pub(crate) use connect::{Connector, RdmaConnector};
pub(crate) use served::Served;
pub use worker::CardError;

use connect::Joining;
use inbox::{Inbox, Message, Received};
use link::{DEPTH, Link, PAIRS};

/// Most bytes of one request: a window of them keeps a port busy, and none delays the others for long.
pub(crate) const SLICE_BYTES: u64 = 256 << 10;
/// Entries of a data thread's completion queue, if the device has so many.
const ENTRIES: u16 = u16::MAX;
/// After its last work a thread polls for so long before it waits for an event.
const SPIN: Duration = Duration::from_micros(50);

const COMPLETIONS: Token = Token(1);
const MESSAGES: Token = Token(2);

/// How to reach a peer over RDMA.
#[derive(Debug, Clone)]
pub struct RdmaPeer {
    /// Our server name in NIC paths.
    pub own: Arc<str>,
    /// The peer's server name in NIC paths.
    pub server: Arc<str>,
    /// The peer's devices; at least one.
    pub devices: Vec<String>,
    /// Its memory: wire address, bytes, and a key for each device.
    pub extents: Vec<(u64, u64, Vec<u32>)>,
    /// Host and port of its handshake listener.
    pub handshake: (String, u16),
    /// Opens connections to it; `None` in tests without sockets.
    pub(crate) dialer: Option<Arc<Dialer>>,
}

impl RdmaPeer {
    /// Chooses the peer's device for a device of ours: that of the same name, which is on the same rail where hosts are
    /// equal, or else the first. Returns its index.
    fn device_for(&self, own: &str) -> usize {
        let same = self.devices.iter().position(|device| device == own);
        same.unwrap_or(0)
    }

    /// Its memory as one of its devices serves it: wire address, bytes, key.
    fn extents_at(&self, device: usize) -> Vec<(u64, u64, u32)> {
        let extents = self.extents.iter();
        extents
            .filter_map(|(address, length, keys)| Some((*address, *length, *keys.get(device)?)))
            .collect()
    }
}

/// A registered region of an endpoint.
#[derive(Debug)]
struct Registered {
    endpoint: EndpointId,
    base: u64,
    /// With the device of this data thread, if it has registered the region.
    memory: Option<Arc<MemoryRegion>>,
    /// With all devices that have.
    memories: Vec<(Arc<Card>, Arc<MemoryRegion>)>,
}

/// The RDMA transport of one data thread.
#[derive(Debug)]
pub struct Rdma {
    /// All devices of the engine.
    cards: Cards,
    /// The one over which this thread opens links.
    card: Arc<Card>,
    connector: Box<dyn Connector>,
    inbox: Inbox,
    received: Received,
    channel: CompletionChannel,
    queue: CompletionQueue,
    /// Queue pairs whose requests all fit into the completion queue.
    room: usize,
    links: HashMap<LinkId, Link>,
    /// By the number in the IDs of their work requests.
    pairs: HashMap<u32, (LinkId, usize)>,
    next_pair: u32,
    regions: HashMap<RegionId, Registered>,
    /// Number of withdrawals that the device has not confirmed.
    withdrawing: HashMap<EndpointId, usize>,
    completions: Vec<Completion>,
    events: Vec<Event>,
    /// The device will signal the next completion.
    armed: bool,
    /// Requests were posted or completed since the last call of `progress`.
    worked: bool,
    busy_until: Option<Instant>,
}

impl Rdma {
    /// Creates a transport that opens links over `card`, one of `cards`. Blocks for 10 s at most.
    ///
    /// # Errors
    /// [`CardError::Verbs`]; [`CardError::Hung`]; [`CardError::Thread`] without descriptors.
    pub(crate) fn new(
        cards: &Cards,
        card: &Arc<Card>,
        connector: Box<dyn Connector>,
        watcher: &Watcher,
    ) -> Result<Self, CardError> {
        let failed = |source| CardError::Thread {
            device: card.device().to_owned(),
            source,
        };
        let context = card.context().clone();
        let most = card.limits().max_cqe;
        let entries = u16::try_from(most).unwrap_or(ENTRIES);
        let made = card
            .worker()
            .call_blocking("creating a completion queue", None, move || {
                let channel = CompletionChannel::new(&context)?;
                let queue = CompletionQueue::signalled(&context, entries, &channel)?;
                Ok((channel, queue))
            })?;
        let (channel, queue) = made.map_err(CardError::verbs(card.device()))?;
        let (inbox, received) = inbox::new().map_err(failed)?;
        let readable = EventFlags::IN;
        watcher
            .add(&channel, COMPLETIONS, readable)
            .and_then(|()| watcher.add(&received, MESSAGES, readable))
            .map_err(failed)?;
        Ok(Self {
            cards: cards.clone(),
            card: Arc::clone(card),
            connector,
            inbox,
            received,
            channel,
            queue,
            room: usize::from(entries) / DEPTH,
            links: HashMap::new(),
            pairs: HashMap::new(),
            next_pair: 0,
            regions: HashMap::new(),
            withdrawing: HashMap::new(),
            completions: Vec::with_capacity(256),
            events: Vec::new(),
            armed: false,
            worked: false,
            busy_until: None,
        })
    }

    fn receive(&mut self, now: Instant) {
        while let Some(message) = self.received.next() {
            match message {
                Message::Connected { link, result } => self.connected(link, result),
                Message::Failed { link, pairs } => {
                    if let Some(link) = self.links.get_mut(&link) {
                        link.failed(pairs, now);
                    }
                }
                Message::Destroyed { link, result } => match result {
                    Ok(()) => self.remove(link),
                    // The link keeps its place, and its memory stays in use.
                    Err(error) => self.card.refusals().add(error),
                },
                Message::Withdrawn { endpoint, region } => {
                    if let Some(left) = self.withdrawing.get_mut(&endpoint) {
                        *left -= 1;
                        if *left == 0 {
                            self.withdrawing.remove(&endpoint);
                        }
                    }
                    self.events.push(Event::Withdrawn(endpoint, region));
                }
            }
        }
    }

    /// Fails if the completion queue has no room for so many more queue pairs: it must not overflow when all fail at once.
    fn fitting(&self, pairs: usize) -> Result<(), LinkError> {
        if self.pairs.len() + pairs <= self.room {
            return Ok(());
        }
        Err(LinkError::Device(format!(
            "{} queue pairs fill the completion queue of RDMA device {}",
            self.room,
            self.card.device()
        )))
    }

    fn connected(&mut self, id: LinkId, result: Result<Joining, LinkError>) {
        // A peer may have more for each link than was assumed at its start.
        let result = result.and_then(|pairs| self.fitting(pairs.len()).map(|()| pairs));
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        match result {
            Ok(pairs) => {
                let first = self.next_pair;
                for at in 0..pairs.len() {
                    self.pairs.insert(self.next_pair, (id, at));
                    self.next_pair = self.next_pair.wrapping_add(1);
                }
                let closed = link.up(pairs.take(), first);
                if closed {
                    self.fail(id, None);
                } else {
                    self.events.push(Event::Up(id, link.window()));
                }
            }
            Err(cause) => {
                if !link.is_closed() {
                    self.events.push(Event::Down(id, Failure::unsent(cause)));
                }
                self.remove(id);
            }
        }
    }

    /// Ends a link: its queue pairs go to the error state, are drained, and are destroyed.
    fn fail(&mut self, id: LinkId, failure: Option<Failure<LinkError>>) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(pairs) = link.fail() else {
            return;
        };
        if let Some(failure) = failure {
            self.events.push(Event::Down(id, failure));
        }
        let inbox = self.inbox.clone();
        self.card.worker().start_call("ending a link", move || {
            for pair in &pairs {
                if let Err(error) = pair.fail() {
                    // Destroying them ends their requests too.
                    tracing::warn!(%error, "queue pair not failed");
                }
            }
            inbox.send(Message::Failed { link: id, pairs });
        });
    }

    /// Destroys the queue pairs of a link that has no requests left, or whose device did not end them in time.
    fn destroy(&mut self, id: LinkId) {
        let Some(pairs) = self.links.get_mut(&id).and_then(Link::take_drained) else {
            return;
        };
        let inbox = self.inbox.clone();
        self.card
            .worker()
            .start_call("destroying queue pairs", move || {
                let ended = pairs.into_iter().map(QueuePair::destroy);
                let result = ended.fold(Ok(()), Result::and);
                inbox.send(Message::Destroyed { link: id, result });
            });
    }

    /// Forgets a link that cannot access memory any more.
    fn remove(&mut self, id: LinkId) {
        if self.links.remove(&id).is_none() {
            return;
        }
        self.pairs.retain(|_, (of, _)| *of != id);
        self.events.push(Event::Released(id));
    }

    fn poll(&mut self) {
        loop {
            self.completions.clear();
            let count = match self.queue.poll(&mut self.completions) {
                Ok(count) => count,
                Err(error) => {
                    tracing::error!(device = self.card.device(), %error, "completions not read");
                    return;
                }
            };
            if count == 0 {
                return;
            }
            self.worked = true;
            for at in 0..count {
                let Some(completion) = self.completions.get(at).copied() else {
                    break;
                };
                self.complete(&completion);
            }
        }
    }

    fn complete(&mut self, completion: &Completion) {
        let (pair, sequence) = link::parts(completion.id);
        let Some((id, at)) = self.pairs.get(&pair).copied() else {
            return;
        };
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let events = &mut self.events;
        let failure = link.complete(at, sequence, completion, |piece| {
            events.push(Event::Done(id, piece));
        });
        if let Some(failure) = failure {
            self.fail(id, Some(failure));
        }
    }

    /// Requests an event if requests are at the device and polling has found nothing for a time.
    fn arm(&mut self, now: Instant) {
        if std::mem::take(&mut self.worked) {
            self.busy_until = Some(now + SPIN);
        }
        let spins = self.busy_until.is_some_and(|until| now < until);
        if self.armed || spins || !self.links.values().any(Link::is_working) {
            return;
        }
        match self.queue.notify() {
            Ok(()) => {
                self.armed = true;
                // What has completed before makes no event.
                self.poll();
            }
            Err(error) => {
                tracing::error!(device = self.card.device(), %error, "no completion events")
            }
        }
    }
}

impl Transport for Rdma {
    fn add_endpoint(&mut self, _: EndpointId, _: Admission, _: Arc<Counters>) {}

    fn remove_endpoint(&mut self, endpoint: EndpointId) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for id in links.into_iter().filter(|id| id.endpoint == endpoint) {
            self.close(id);
        }
        let regions = self.regions.iter();
        let own: Vec<_> = regions
            .filter(|(_, one)| one.endpoint == endpoint)
            .map(|(region, _)| *region)
            .collect();
        for region in own {
            self.withdraw(endpoint, region, true);
        }
    }

    fn is_removing(&self, endpoint: EndpointId) -> bool {
        self.withdrawing.contains_key(&endpoint)
            || self.links.keys().any(|id| id.endpoint == endpoint)
    }

    // Peers are admitted at the handshake listener.
    fn set_admission(&mut self, _: EndpointId, _: Admission) {}

    fn add_region(&mut self, endpoint: EndpointId, region: RegionId, _: &Arc<Region>, base: u64) {
        let memories = self.cards.memories(region, base);
        if memories.is_empty() {
            // A bug: it is registered before it is published.
            tracing::error!(?region, "region not registered");
            return;
        }
        let registered = Registered {
            endpoint,
            base,
            memory: self.card.memory(region, base),
            memories,
        };
        self.regions.insert(region, registered);
    }

    fn withdraw(&mut self, endpoint: EndpointId, region: RegionId, _: bool) {
        *self.withdrawing.entry(endpoint).or_default() += 1;
        let inbox = self.inbox.clone();
        let withdrawn = Box::new(move || inbox.send(Message::Withdrawn { endpoint, region }));
        match self.regions.remove(&region) {
            Some(one) => {
                // The last one that this thread has of each device is counted below.
                drop(one.memory);
                Cards::give_back(region, one.base, one.memories, withdrawn);
            }
            None => withdrawn(),
        }
    }

    fn open(&mut self, id: LinkId, to: &PeerAddress) {
        let PeerAddress::Rdma(to) = to else {
            let cause = LinkError::Protocol("the peer is not reached over RDMA".to_owned());
            self.events.push(Event::Down(id, Failure::unsent(cause)));
            self.events.push(Event::Released(id));
            return;
        };
        if let Err(cause) = self.fitting(PAIRS) {
            self.events.push(Event::Down(id, Failure::unsent(cause)));
            self.events.push(Event::Released(id));
            return;
        }
        let device = to.device_for(self.card.device());
        let name = to.devices.get(device).map_or("", String::as_str);
        let peer = nic_path(&to.server, name);
        let own = nic_path(&to.own, self.card.device());
        let lane = self.cards.lanes().take(own, peer.clone());
        let ends = (lane.path(), peer);
        self.links
            .insert(id, Link::new(to.extents_at(device), lane));
        self.connector
            .connect(id, ends, to, self.queue.clone(), self.inbox.clone());
    }

    // It has no data connections, so those of other transports end here.
    fn add_socket(&mut self, _: NewSocket, _: Instant) {}

    fn post(&mut self, id: LinkId, requests: &[Post]) -> usize {
        let Some(link) = self.links.get_mut(&id) else {
            return requests.len();
        };
        if !link.is_up() {
            // Its events are still to come.
            return requests.len();
        }
        let regions = &self.regions;
        // The endpoint gives transfers of other regions to other data threads.
        let is_local = |region| regions.get(&region).is_some_and(|one| one.memory.is_some());
        match link.accept(requests, is_local) {
            Ok(accepted) => accepted,
            Err(failure) => {
                // Other transfers may have posted the rest: the next link carries what it can.
                let known = requests.iter().filter(|post| link.knows(post, is_local));
                let returned = known.map(|post| Event::Returned(id, post.piece));
                self.events.extend(returned);
                self.fail(id, Some(failure));
                requests.len()
            }
        }
    }

    // A queue pair belongs to its process.
    fn pass_on(&mut self, _: EndpointId, _: mpsc::UnboundedSender<IdleConnection>) {}

    fn flush(&mut self) {
        let mut failures = Vec::new();
        for (id, link) in &mut self.links {
            if !link.has_accepted() {
                continue;
            }
            self.worked = true;
            if let Err(failure) = link.flush(&self.regions) {
                failures.push((*id, failure));
            }
        }
        for (id, failure) in failures {
            self.fail(id, Some(failure));
        }
    }

    fn close(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else {
            self.events.push(Event::Released(id));
            return;
        };
        if !link.close_while_opening() {
            self.fail(id, None);
        }
    }

    fn ready(&mut self, ready: &[Ready], _: Instant) {
        for one in ready {
            match one.token {
                COMPLETIONS => {
                    self.channel.clear();
                    self.armed = false;
                }
                MESSAGES => self.received.clear(),
                _ => {}
            }
        }
    }

    fn attention(&self) -> Attention {
        if !self.armed && self.links.values().any(Link::is_working) {
            Attention::Poll
        } else {
            Attention::Signalled
        }
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.receive(now);
        self.poll();
        self.arm(now);
        let drained: Vec<_> = self
            .links
            .iter()
            .filter(|(_, link)| link.is_drained(now))
            .map(|(id, _)| *id)
            .collect();
        for id in drained {
            self.destroy(id);
        }
        events.append(&mut self.events);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let draining = self.links.values().filter_map(Link::drain_deadline).min();
        let reported = (!self.events.is_empty()).then(Instant::now);
        draining.into_iter().chain(reported).min()
    }
}

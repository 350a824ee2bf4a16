//! A transport inside one process that behaves like RDMA, for tests of everything above a transport: the initiator
//! alone moves the bytes, requests complete in any order and later than their bytes move, a failed request takes
//! the others of its link with it, and a closed link accesses memory until it is drained.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use proto::frame::Op;
use proto::scheduler::{Effect, Failure};
use sys::mem::Region;
use tokio::sync::mpsc;

use super::reactor::{Attention, Ready};
use super::{
    EndpointId, Event, IdleConnection, LinkError, LinkId, NewSocket, PeerAddress, Post, RegionId,
    Transport,
};
use crate::admission::Admission;
use crate::stats::Counters;

/// Bytes that one step of a copy moves.
const CHUNK: u64 = 64 << 10;

/// What all transports of a test can reach: the memory that they serve, by wire address.
#[derive(Debug, Clone, Default)]
pub struct Fabric(Arc<Mutex<Served>>);

#[derive(Debug, Default)]
struct Served {
    instances: u64,
    extents: Vec<Extent>,
}

#[derive(Debug)]
struct Extent {
    /// The instance of [`Memory`] that serves it.
    instance: u64,
    endpoint: EndpointId,
    region: RegionId,
    base: u64,
    memory: Arc<Region>,
}

/// How a transport behaves.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Requests of one link at a time, as announced.
    pub window: usize,
    /// Requests that a link accepts at a time, at least one.
    pub depth: usize,
    /// Most calls of [`Transport::progress`] between a step of a request and the next one.
    pub delay: u64,
    /// Of the random numbers that decide the order.
    pub seed: u64,
}

/// A transport of one data thread.
#[derive(Debug)]
pub struct Memory {
    fabric: Fabric,
    instance: u64,
    shape: Shape,
    random: u64,
    regions: HashMap<RegionId, Arc<Region>>,
    links: HashMap<LinkId, Link>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Link {
    state: State,
    /// Accepted, and not started by a flush.
    accepted: Vec<Work>,
    /// At the device.
    running: Vec<Work>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Up,
    /// Down or closed. What is at the device goes on.
    Draining,
}

#[derive(Debug)]
struct Work {
    post: Post,
    local: Arc<Region>,
    /// Its bytes have moved.
    moved: bool,
    /// Calls until its next step.
    left: u64,
}

impl Memory {
    /// Creates a transport that reaches `fabric`.
    #[must_use]
    pub fn new(fabric: &Fabric, shape: Shape) -> Self {
        let mut served = fabric.0.lock();
        served.instances += 1;
        Self {
            fabric: fabric.clone(),
            instance: served.instances,
            shape,
            random: shape.seed ^ served.instances,
            regions: HashMap::new(),
            links: HashMap::new(),
            events: Vec::new(),
        }
    }

    /// Returns the next random number (`SplitMix64`), below `bound`.
    fn draw(random: &mut u64, bound: u64) -> u64 {
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn unserve(&self, which: impl Fn(&Extent) -> bool) {
        let mut served = self.fabric.0.lock();
        let own = |extent: &Extent| extent.instance == self.instance;
        served
            .extents
            .retain(|extent| !(own(extent) && which(extent)));
    }

    /// Moves the requests of one link by one step. Returns true when the link is released.
    fn step(&mut self, id: LinkId) -> bool {
        let Some(link) = self.links.get_mut(&id) else {
            return false;
        };
        if link.state == State::Opening {
            link.state = State::Up;
            self.events.push(Event::Up(id, self.shape.window));
        }
        let alone = link.running.len() + link.accepted.len() == 1;
        let mut failed = None;
        let mut at = 0;
        while at < link.running.len() {
            let work = &mut link.running[at];
            if work.left > 0 {
                work.left -= 1;
                at += 1;
            } else if work.moved || failed.is_some() {
                let ended = link.running.swap_remove(at);
                if ended.moved && failed.is_none() && link.state == State::Up {
                    self.events.push(Event::Done(id, ended.post.piece));
                }
            } else if let Err(cause) = self.fabric.copy(work) {
                link.running.swap_remove(at);
                failed = Some(cause);
            } else {
                work.moved = true;
                work.left = Self::draw(&mut self.random, self.shape.delay + 1);
                at += 1;
            }
        }
        if let Some(cause) = failed
            && link.state == State::Up
        {
            let effect = if alone { Effect::None } else { Effect::Unknown };
            link.state = State::Draining;
            link.accepted.clear();
            let failure = Failure {
                cause,
                effect,
                reply_seen: true,
            };
            self.events.push(Event::Down(id, failure));
        }
        link.state == State::Draining && link.running.is_empty()
    }
}

impl Fabric {
    /// Moves the bytes of a request, if its range is served now.
    fn copy(&self, work: &Work) -> Result<(), LinkError> {
        let slice = &work.post.slice;
        let served = self.0.lock();
        let holds = |extent: &&Extent| {
            let start = slice.remote.checked_sub(extent.base);
            let end = start.and_then(|start| start.checked_add(slice.length));
            end.is_some_and(|end| end <= extent.memory.length())
        };
        let extent = served.extents.iter().find(holds);
        let extent = extent.ok_or(LinkError::Rejected)?;
        let remote = slice.remote - extent.base;
        let mut chunk = vec![0; usize::try_from(slice.length.min(CHUNK)).unwrap_or(0)];
        let mut moved = 0;
        while moved < slice.length {
            let count = (slice.length - moved).min(CHUNK);
            chunk.truncate(usize::try_from(count).unwrap_or(0));
            let (local, remote) = (slice.offset + moved, remote + moved);
            let copied = match slice.op {
                Op::Write => (work.local.copy_out(local, &mut chunk))
                    .and_then(|()| extent.memory.copy_in(remote, &chunk)),
                Op::Read => (extent.memory.copy_out(remote, &mut chunk))
                    .and_then(|()| work.local.copy_in(local, &chunk)),
            };
            copied.map_err(|error| LinkError::Protocol(error.to_string()))?;
            moved += count;
        }
        Ok(())
    }
}

impl Transport for Memory {
    fn add_endpoint(&mut self, _: EndpointId, _: Admission, _: Arc<Counters>) {}

    fn remove_endpoint(&mut self, endpoint: EndpointId) {
        self.unserve(|extent| extent.endpoint == endpoint);
        self.links.retain(|link, _| link.endpoint != endpoint);
    }

    fn is_removing(&self, _: EndpointId) -> bool {
        false
    }

    fn set_admission(&mut self, _: EndpointId, _: Admission) {}

    fn add_region(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
    ) {
        self.regions.insert(region, Arc::clone(memory));
        self.fabric.0.lock().extents.push(Extent {
            instance: self.instance,
            endpoint,
            region,
            base,
            memory: Arc::clone(memory),
        });
    }

    fn withdraw(&mut self, endpoint: EndpointId, region: RegionId, forget: bool) {
        self.unserve(|extent| extent.region == region);
        if forget {
            self.regions.remove(&region);
        }
        self.events.push(Event::Withdrawn(endpoint, region));
    }

    fn open(&mut self, link: LinkId, _: &PeerAddress) {
        let opened = Link {
            state: State::Opening,
            accepted: Vec::new(),
            running: Vec::new(),
        };
        self.links.insert(link, opened);
    }

    // It has no data connections, so those of other transports end here.
    fn add_socket(&mut self, _: NewSocket, _: Instant) {}

    fn post(&mut self, id: LinkId, requests: &[Post]) -> usize {
        let Some(link) = self.links.get_mut(&id) else {
            return requests.len();
        };
        let carried = link.accepted.len() + link.running.len();
        let space = self.shape.depth.max(1).saturating_sub(carried);
        let accepted = requests.len().min(space);
        if link.state == State::Draining {
            // Its events are on their way.
            return requests.len();
        }
        for post in &requests[..accepted] {
            let Some(local) = self.regions.get(&post.slice.memory) else {
                link.state = State::Draining;
                link.accepted.clear();
                let failure = Failure {
                    cause: LinkError::Rejected,
                    effect: Effect::Unknown,
                    reply_seen: false,
                };
                self.events.push(Event::Down(id, failure));
                break;
            };
            link.accepted.push(Work {
                post: *post,
                local: Arc::clone(local),
                moved: false,
                left: Self::draw(&mut self.random, self.shape.delay + 1),
            });
        }
        accepted
    }

    // It has no served connections.
    fn pass_on(&mut self, _: EndpointId, _: mpsc::UnboundedSender<IdleConnection>) {}

    fn flush(&mut self) {
        for link in self.links.values_mut() {
            link.running.append(&mut link.accepted);
        }
    }

    fn close(&mut self, link: LinkId) {
        match self.links.get_mut(&link) {
            Some(link) => {
                link.state = State::Draining;
                link.accepted.clear();
            }
            None => self.events.push(Event::Released(link)),
        }
    }

    fn ready(&mut self, _: &[Ready], _: Instant) {}

    fn attention(&self) -> Attention {
        let quiet = |link: &Link| link.state == State::Up && link.running.is_empty();
        if self.links.values().all(quiet) {
            Attention::Signalled
        } else {
            Attention::Poll
        }
    }

    fn progress(&mut self, _: Instant, events: &mut Vec<Event>) {
        let links: Vec<_> = self.links.keys().copied().collect();
        for link in links {
            if self.step(link) {
                self.links.remove(&link);
                self.events.push(Event::Released(link));
            }
        }
        events.append(&mut self.events);
    }

    fn next_deadline(&self) -> Option<Instant> {
        (!self.events.is_empty()).then(Instant::now)
    }
}

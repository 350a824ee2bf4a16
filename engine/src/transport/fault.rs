//! A transport with injected failures, for tests of retry and release.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// Which failures are injected.
#[derive(Debug, Clone, Copy, Default)]
pub struct Policy {
    /// Every n-th request fails after it may have reached the peer.
    pub fail_every: Option<u64>,
    /// Delay of each release.
    pub release_delay: Duration,
    /// Every n-th request on a used link fails as if the peer had closed it before.
    pub stale_every: Option<u64>,
    /// Pause at the end of each turn: all that a peer does at about the same time then arrives together.
    pub pause: Duration,
}

/// Wraps a transport and injects failures.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    policy: Policy,
    posts: u64,
    reuses: u64,
    used: HashSet<LinkId>,
    /// Events for the next `progress`.
    injected: Vec<Event>,
    /// Links that were failed here; events of the inner transport about them are dropped.
    downed: HashSet<LinkId>,
    /// Delayed releases.
    late: HashMap<LinkId, Instant>,
}

impl<T: Transport> Faulty<T> {
    /// Wraps `inner`.
    pub fn new(inner: T, policy: Policy) -> Self {
        Self {
            inner,
            policy,
            posts: 0,
            reuses: 0,
            used: HashSet::new(),
            injected: Vec::new(),
            downed: HashSet::new(),
            late: HashMap::new(),
        }
    }

    fn bring_down(&mut self, link: LinkId, effect: Effect) {
        self.downed.insert(link);
        let failure = Failure {
            cause: LinkError::Injected,
            effect,
            reply_seen: false,
        };
        self.injected.push(Event::Down(link, failure));
        self.inner.close(link);
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn add_endpoint(
        &mut self,
        endpoint: EndpointId,
        admission: Admission,
        counters: Arc<Counters>,
    ) {
        self.inner.add_endpoint(endpoint, admission, counters);
    }

    fn remove_endpoint(&mut self, endpoint: EndpointId) {
        self.used.retain(|link| link.endpoint != endpoint);
        self.inner.remove_endpoint(endpoint);
    }

    fn is_removing(&self, endpoint: EndpointId) -> bool {
        self.inner.is_removing(endpoint)
    }

    fn set_admission(&mut self, endpoint: EndpointId, admission: Admission) {
        self.inner.set_admission(endpoint, admission);
    }

    fn add_region(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    ) {
        self.inner.add_region(endpoint, region, memory, wire_base);
    }

    fn withdraw(&mut self, endpoint: EndpointId, region: RegionId, forget: bool) {
        self.inner.withdraw(endpoint, region, forget);
    }

    fn open(&mut self, link: LinkId, to: &PeerAddress) {
        self.inner.open(link, to);
    }

    fn add_socket(&mut self, socket: NewSocket, now: Instant) {
        self.inner.add_socket(socket, now);
    }

    fn post(&mut self, link: LinkId, requests: &[Post]) -> usize {
        let before = self.posts;
        self.posts += requests.len() as u64;
        let reused = !self.used.insert(link);
        self.reuses += u64::from(reused);
        if reused
            && self
                .policy
                .stale_every
                .is_some_and(|n| self.reuses.is_multiple_of(n))
        {
            self.bring_down(link, Effect::None);
            return requests.len();
        }
        let accepted = self.inner.post(link, requests);
        if self
            .policy
            .fail_every
            .is_some_and(|n| self.posts / n > before / n)
        {
            self.bring_down(link, Effect::Unknown);
        }
        accepted
    }

    fn pass_on(&mut self, endpoint: EndpointId, to: mpsc::UnboundedSender<IdleConnection>) {
        self.inner.pass_on(endpoint, to);
    }

    fn flush(&mut self) {
        self.inner.flush();
        if !self.policy.pause.is_zero() {
            std::thread::park_timeout(self.policy.pause);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.inner.close(link);
    }

    fn ready(&mut self, ready: &[Ready], now: Instant) {
        self.inner.ready(ready, now);
    }

    fn attention(&self) -> Attention {
        self.inner.attention()
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        let start = events.len();
        self.inner.progress(now, events);
        let inner: Vec<_> = events.drain(start..).collect();
        events.append(&mut self.injected);
        for event in inner {
            match event {
                Event::Released(link) => {
                    self.downed.remove(&link);
                    self.used.remove(&link);
                    self.late.insert(link, now + self.policy.release_delay);
                }
                Event::Done(link, _)
                | Event::Returned(link, _)
                | Event::Up(link, _)
                | Event::Down(link, _)
                    if self.downed.contains(&link) => {}
                other => events.push(other),
            }
        }
        let due: Vec<_> = self
            .late
            .iter()
            .filter(|(_, due)| **due <= now)
            .map(|(link, _)| *link)
            .collect();
        for link in due {
            self.late.remove(&link);
            events.push(Event::Released(link));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let late = self.late.values().min().copied();
        let injected = (!self.injected.is_empty()).then(Instant::now);
        [self.inner.next_deadline(), late, injected]
            .into_iter()
            .flatten()
            .min()
    }
}

//! A transport that fails on purpose, to drive the real retry and release code without broken
//! hardware.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::scheduler::{Effect, Failure, Slice};
use sys::mem::Region;

use super::{Event, HostId, Incoming, LinkError, LinkId, PeerCard, RegionId, Transport};
use crate::admission::Admission;
use crate::stats::Counters;

/// What goes wrong, and when.
#[derive(Debug, Clone, Copy, Default)]
pub struct Policy {
    /// Every n-th posted request fails, after it may have reached the peer.
    pub fail_every: Option<u64>,
    /// Releases of links come this much later.
    pub release_delay: Duration,
    /// Every n-th request on a link that was used before fails as if the peer had gone unseen.
    pub stale_every: Option<u64>,
}

/// The inner transport, with failures put in between.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    policy: Policy,
    posts: u64,
    reuses: u64,
    used: HashSet<LinkId>,
    /// Events to give out with the next `progress`.
    made: Vec<Event>,
    /// Links that this decorator brought down; the inner transport's words on them are dropped.
    downed: HashSet<LinkId>,
    late: HashMap<LinkId, Instant>,
}

impl<T: Transport> Faulty<T> {
    /// Puts `policy` before `inner`.
    pub fn new(inner: T, policy: Policy) -> Self {
        Self {
            inner,
            policy,
            posts: 0,
            reuses: 0,
            used: HashSet::new(),
            made: Vec::new(),
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
        self.made.push(Event::Down(link, failure));
        self.inner.close(link);
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn host(&mut self, host: HostId, admission: Admission, counters: Arc<Counters>) {
        self.inner.host(host, admission, counters);
    }

    fn forget(&mut self, host: HostId) {
        self.used.retain(|link| link.host != host);
        self.inner.forget(host);
    }

    fn admit(&mut self, host: HostId, admission: Admission) {
        self.inner.admit(host, admission);
    }

    fn export(&mut self, host: HostId, region: RegionId, memory: &Arc<Region>, wire_base: u64) {
        self.inner.export(host, region, memory, wire_base);
    }

    fn withdraw(&mut self, host: HostId, region: RegionId, forget: bool) {
        self.inner.withdraw(host, region, forget);
    }

    fn open(&mut self, link: LinkId, to: &PeerCard) {
        self.inner.open(link, to);
    }

    fn adopt(&mut self, incoming: Incoming, now: Instant) {
        self.inner.adopt(incoming, now);
    }

    fn post(&mut self, link: LinkId, slice: &Slice<RegionId>) {
        self.posts += 1;
        let reused = !self.used.insert(link);
        self.reuses += u64::from(reused);
        if reused
            && self
                .policy
                .stale_every
                .is_some_and(|n| self.reuses.is_multiple_of(n))
        {
            self.bring_down(link, Effect::None);
            return;
        }
        self.inner.post(link, slice);
        if self
            .policy
            .fail_every
            .is_some_and(|n| self.posts.is_multiple_of(n))
        {
            self.bring_down(link, Effect::Unknown);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.inner.close(link);
    }

    fn answer_to(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        self.inner.answer_to(bell)
    }

    fn wait(&mut self, longest: Option<Duration>) -> io::Result<bool> {
        self.inner.wait(longest)
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        let start = events.len();
        self.inner.progress(now, events);
        let inner: Vec<_> = events.drain(start..).collect();
        events.append(&mut self.made);
        for event in inner {
            match event {
                Event::Released(link) => {
                    self.downed.remove(&link);
                    self.used.remove(&link);
                    self.late.insert(link, now + self.policy.release_delay);
                }
                Event::Done(link) | Event::Up(link) | Event::Down(link, _)
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
        let made = (!self.made.is_empty()).then(Instant::now);
        [self.inner.next_deadline(), late, made]
            .into_iter()
            .flatten()
            .min()
    }
}

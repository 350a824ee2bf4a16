//! RDMA and TCP in one data thread: each link and each served connection belongs to one of them, and both serve the same
//! regions.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use sys::mem::Region;
use tokio::sync::mpsc;

use super::rdma::Rdma;
use super::reactor::{Attention, Ready};
use super::tcp::{self, Tcp};
use super::{
    EndpointId, Event, IdleConnection, LinkId, NewSocket, PeerAddress, Post, RegionId, Transport,
};
use crate::admission::Admission;
use crate::stats::Counters;

/// Both transports of a data thread of an engine over RDMA.
#[derive(Debug)]
pub(crate) struct RdmaAndTcp {
    rdma: Rdma,
    tcp: Tcp,
    endpoints: HashSet<EndpointId>,
    /// The links over TCP that are not released.
    tcp_links: HashSet<LinkId>,
    withdrawn: Withdrawn,
    /// What is ready of TCP; kept for its capacity.
    tcp_ready: Vec<Ready>,
    /// What one transport has reported, before it is passed on; kept for its capacity.
    events: Vec<Event>,
}

/// How many withdrawals of a region only one of the two transports has finished: above zero RDMA, below zero TCP. Each finishes
/// those of a region in order.
#[derive(Debug, Default)]
struct Withdrawn(HashMap<(EndpointId, RegionId), i64>);

impl Withdrawn {
    /// Counts one that a transport has finished. Returns whether the other one had finished it before.
    fn finish(&mut self, at: (EndpointId, RegionId), by_rdma: bool) -> bool {
        let ahead = self.0.entry(at).or_default();
        let both = if by_rdma { *ahead < 0 } else { *ahead > 0 };
        *ahead += if by_rdma { 1 } else { -1 };
        if *ahead == 0 {
            self.0.remove(&at);
        }
        both
    }

    fn forget(&mut self, endpoint: EndpointId) {
        self.0.retain(|(of, _), _| *of != endpoint);
    }
}

impl RdmaAndTcp {
    pub(crate) fn new(rdma: Rdma, tcp: Tcp) -> Self {
        Self {
            rdma,
            tcp,
            endpoints: HashSet::new(),
            tcp_links: HashSet::new(),
            withdrawn: Withdrawn::default(),
            tcp_ready: Vec::with_capacity(128),
            events: Vec::with_capacity(256),
        }
    }

    fn carrier(&mut self, link: LinkId) -> &mut dyn Transport {
        if self.tcp_links.contains(&link) {
            &mut self.tcp
        } else {
            &mut self.rdma
        }
    }

    /// Passes on what one transport has reported; a withdrawal when both have finished it.
    fn pass_events(&mut self, by_rdma: bool, events: &mut Vec<Event>) {
        for event in self.events.drain(..) {
            match event {
                // Nothing waits for those of an endpoint that was removed.
                Event::Withdrawn(endpoint, region) => {
                    if !self.endpoints.contains(&endpoint)
                        || !self.withdrawn.finish((endpoint, region), by_rdma)
                    {
                        continue;
                    }
                }
                Event::Released(link) => {
                    self.tcp_links.remove(&link);
                }
                Event::Up(..) | Event::Returned(..) | Event::Down(..) | Event::Done(..) => {}
            }
            events.push(event);
        }
    }
}

impl Transport for RdmaAndTcp {
    fn add_endpoint(
        &mut self,
        endpoint: EndpointId,
        admission: Admission,
        counters: Arc<Counters>,
    ) {
        self.endpoints.insert(endpoint);
        self.rdma
            .add_endpoint(endpoint, admission.clone(), Arc::clone(&counters));
        self.tcp.add_endpoint(endpoint, admission, counters);
    }

    fn remove_endpoint(&mut self, endpoint: EndpointId) {
        self.rdma.remove_endpoint(endpoint);
        self.tcp.remove_endpoint(endpoint);
        self.endpoints.remove(&endpoint);
        self.tcp_links.retain(|link| link.endpoint != endpoint);
        self.withdrawn.forget(endpoint);
    }

    fn is_removing(&self, endpoint: EndpointId) -> bool {
        self.rdma.is_removing(endpoint) || self.tcp.is_removing(endpoint)
    }

    fn set_admission(&mut self, endpoint: EndpointId, admission: Admission) {
        self.rdma.set_admission(endpoint, admission.clone());
        self.tcp.set_admission(endpoint, admission);
    }

    fn add_region(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    ) {
        self.rdma.add_region(endpoint, region, memory, wire_base);
        self.tcp.add_region(endpoint, region, memory, wire_base);
    }

    fn add_unregistered(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    ) {
        self.tcp.add_region(endpoint, region, memory, wire_base);
    }

    fn registered(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    ) {
        self.rdma.add_region(endpoint, region, memory, wire_base);
    }

    fn withdraw(&mut self, endpoint: EndpointId, region: RegionId, forget: bool) {
        self.rdma.withdraw(endpoint, region, forget);
        self.tcp.withdraw(endpoint, region, forget);
    }

    fn open(&mut self, link: LinkId, to: &PeerAddress) {
        match to {
            PeerAddress::Tcp(_) => {
                self.tcp_links.insert(link);
                self.tcp.open(link, to);
            }
            PeerAddress::Rdma(_) => self.rdma.open(link, to),
        }
    }

    fn add_socket(&mut self, socket: NewSocket, now: Instant) {
        self.tcp.add_socket(socket, now);
    }

    fn post(&mut self, link: LinkId, requests: &[Post]) -> usize {
        self.carrier(link).post(link, requests)
    }

    // Queue pairs belong to their process, so only connections over TCP are passed on.
    fn pass_on(&mut self, endpoint: EndpointId, to: mpsc::UnboundedSender<IdleConnection>) {
        self.tcp.pass_on(endpoint, to);
    }

    fn flush(&mut self) {
        self.rdma.flush();
        self.tcp.flush();
    }

    fn close(&mut self, link: LinkId) {
        self.carrier(link).close(link);
    }

    fn ready(&mut self, ready: &[Ready], now: Instant) {
        // RDMA ignores the tokens of TCP. A token of RDMA could be one of TCP.
        self.rdma.ready(ready, now);
        let of_tcp = ready.iter().filter(|one| tcp::is_token(one.token));
        self.tcp_ready.extend(of_tcp);
        self.tcp.ready(&self.tcp_ready, now);
        self.tcp_ready.clear();
    }

    fn attention(&self) -> Attention {
        match self.rdma.attention() {
            Attention::Poll => Attention::Poll,
            Attention::Signalled => self.tcp.attention(),
        }
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.rdma.progress(now, &mut self.events);
        self.pass_events(true, events);
        self.tcp.progress(now, &mut self.events);
        self.pass_events(false, events);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let (rdma, tcp) = (self.rdma.next_deadline(), self.tcp.next_deadline());
        rdma.into_iter().chain(tcp).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawal_is_finished_when_both_transports_have_finished_it() {
        let mut withdrawn = Withdrawn::default();
        let [one, other] = [1, 2].map(|region| (EndpointId(0), RegionId(region)));
        assert!(!withdrawn.finish(one, true));
        assert!(!withdrawn.finish(one, true), "a second one of RDMA");
        assert!(!withdrawn.finish(other, false));
        assert!(withdrawn.finish(one, false));
        assert!(withdrawn.finish(one, false));
        assert!(withdrawn.finish(other, true));
        assert!(withdrawn.0.is_empty());
        assert!(!withdrawn.finish(one, false), "a third one of TCP");
    }
}

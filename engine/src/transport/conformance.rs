//! What every transport must do, as tests that run over each of them. A test drives two transports without data
//! threads: one opens links, the other one serves memory.

mod beds;
#[cfg(feature = "rdma")]
mod rendezvous;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::frame::Op;
use proto::scheduler::{Effect, Failure, LinkKey, PieceKey, Slice};
use slotmap::SlotMap;
use sys::mem::Region;

use super::fault::Policy;
use super::reactor::{Attention, Reactor, Ready};
use super::{EndpointId, Event, LinkError, LinkId, PeerAddress, Post, RegionId, Transport};
use crate::admission::Admission;
use crate::stats::Counters;

use beds::region;

/// Longest wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of each side's memory.
const LENGTH: u64 = 1 << 20;
/// Wire address of the served memory.
const BASE: u64 = 1 << 58;
/// Turns in which nothing may happen any more.
const QUIET_TURNS: usize = 200;

/// One end: a transport with one endpoint and one region.
struct Side {
    reactor: Reactor,
    transport: Box<dyn Transport>,
    endpoint: EndpointId,
    region: RegionId,
    memory: Arc<Region>,
    ready: Vec<Ready>,
    events: Vec<Event>,
    /// What the control side does before memory is served at a wire base.
    register: Box<Register>,
}

type Register = dyn Fn(RegionId, &Arc<Region>, u64);

/// Passes sockets between the initiator and the target.
type Control = dyn FnMut(&mut Side, &mut Side);

/// Two ends, and what the control side does between them.
struct Bed {
    initiator: Side,
    target: Side,
    /// The target's current address.
    peer: Box<dyn Fn() -> PeerAddress>,
    control: Box<Control>,
    /// Ends what serves the target's memory, beside its transport.
    end_target: Box<dyn Fn()>,
    links: SlotMap<LinkKey, ()>,
    pieces: SlotMap<PieceKey, ()>,
}

impl Side {
    fn new(
        (reactor, mut transport): (Reactor, Box<dyn Transport>),
        number: u64,
        base: u64,
        register: Box<Register>,
    ) -> Self {
        let (endpoint, region_id) = (EndpointId(number), RegionId(number + 100));
        let memory = region(LENGTH);
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let counters = Arc::new(Counters::default());
        transport.add_endpoint(endpoint, Admission::only([address]), counters);
        register(region_id, &memory, base);
        transport.add_region(endpoint, region_id, &memory, base);
        Self {
            reactor,
            transport,
            endpoint,
            region: region_id,
            memory,
            ready: Vec::new(),
            events: Vec::new(),
            register,
        }
    }

    /// Serves the memory at another wire base.
    fn serve(&mut self, base: u64) {
        (self.register)(self.region, &self.memory, base);
        self.transport
            .add_region(self.endpoint, self.region, &self.memory, base);
    }

    /// What a data thread does in one turn.
    fn turn(&mut self) {
        self.transport.flush();
        let wait = match self.transport.attention() {
            Attention::Poll => Duration::ZERO,
            Attention::Signalled => Duration::from_micros(100),
        };
        self.reactor.wait(Some(wait), &mut self.ready).unwrap();
        let now = Instant::now();
        self.transport.ready(&self.ready, now);
        self.ready.clear();
        self.transport.progress(now, &mut self.events);
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(LENGTH).unwrap()];
        self.memory.copy_out(0, &mut bytes).unwrap();
        bytes
    }

    /// Fills the memory with bytes that differ by place and by `salt`.
    fn fill(&self, salt: u64) -> Vec<u8> {
        let mixed = |at: u64| (at ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let bytes: Vec<u8> = (0..LENGTH).map(|at| mixed(at).to_le_bytes()[0]).collect();
        self.memory.copy_in(0, &bytes).unwrap();
        bytes
    }
}

impl Bed {
    fn turn(&mut self) {
        self.initiator.turn();
        self.target.turn();
        (self.control)(&mut self.initiator, &mut self.target);
    }

    /// Turns until the initiator reports an event that `which` accepts; returns what it makes of it.
    fn until<T>(&mut self, mut which: impl FnMut(&Event) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            for at in 0..self.initiator.events.len() {
                if let Some(found) = which(&self.initiator.events[at]) {
                    self.initiator.events.remove(at);
                    return found;
                }
            }
            assert!(
                Instant::now() < end,
                "no such event: {:?}",
                self.initiator.events
            );
            self.turn();
        }
    }

    /// Begins to open a link.
    fn begin(&mut self) -> LinkId {
        let link = LinkId {
            endpoint: self.initiator.endpoint,
            link: self.links.insert(()),
        };
        self.initiator.transport.open(link, &(self.peer)());
        link
    }

    /// Opens a link; returns it with its window.
    fn open(&mut self) -> (LinkId, usize) {
        let link = self.begin();
        let window = self.until(|event| match event {
            Event::Up(up, window) if *up == link => Some(*window),
            Event::Down(_, failure) => panic!("{failure:?}"),
            _ => None,
        });
        assert!(window >= 1);
        (link, window)
    }

    fn request(&mut self, op: Op, remote: u64, offset: u64, length: u64) -> Post {
        let slice = Slice {
            op,
            remote,
            memory: self.initiator.region,
            offset,
            length,
        };
        let piece = self.pieces.insert(());
        Post { piece, slice }
    }

    /// Posts requests, as many at a time as the link takes, and waits for all of them.
    fn carry_out(&mut self, (link, window): (LinkId, usize), requests: &[Post]) {
        let (mut next, mut done) = (0, HashSet::new());
        while done.len() < requests.len() {
            let open = next - done.len();
            let batch = &requests[next..(next + window - open).min(requests.len())];
            if !batch.is_empty() {
                let accepted = self.initiator.transport.post(link, batch);
                assert!(accepted <= batch.len());
                assert!(accepted > 0 || open > 0, "an idle link refuses a request");
                next += accepted;
            }
            let piece = self.done(link);
            assert!(requests[..next].iter().any(|post| post.piece == piece));
            assert!(done.insert(piece), "completed twice");
        }
    }

    fn done(&mut self, link: LinkId) -> PieceKey {
        self.until(|event| match event {
            Event::Done(id, piece) if *id == link => Some(*piece),
            Event::Down(_, failure) => panic!("{failure:?}"),
            _ => None,
        })
    }

    /// Waits until a link is down and released, without an event of it after that.
    fn ended(&mut self, link: LinkId) -> Failure<LinkError> {
        let failure = self.until(|event| match event {
            Event::Down(id, failure) if *id == link => Some(failure.clone()),
            _ => None,
        });
        self.released(link);
        failure
    }

    fn released(&mut self, link: LinkId) {
        self.until(|event| match event {
            Event::Released(id) if *id == link => Some(()),
            _ => None,
        });
        for event in &self.initiator.events {
            assert!(
                !matches!(event, Event::Released(id) | Event::Down(id, _) if *id == link),
                "{event:?}"
            );
        }
        self.initiator.events.clear();
    }

    /// Lets the transports do what they still want to.
    fn settle(&mut self) {
        for _ in 0..QUIET_TURNS {
            self.turn();
        }
    }

    fn withdraw_at_target(&mut self) {
        let (endpoint, region) = (self.target.endpoint, self.target.region);
        self.target.transport.withdraw(endpoint, region, false);
        let end = Instant::now() + PATIENCE;
        let answered = |side: &Side| {
            let mut events = side.events.iter();
            events.any(|event| matches!(event, Event::Withdrawn(_, id) if *id == region))
        };
        while !answered(&self.target) {
            assert!(Instant::now() < end, "no answer to a withdrawal");
            self.turn();
        }
        self.target.events.clear();
    }
}

fn bytes_move_within_their_ranges_only(mut bed: Bed) {
    let source = bed.initiator.fill(1);
    let mut expected = bed.target.fill(2);
    let link = bed.open();
    let (from, to, length) = (12_345_usize, 54_321_usize, 600_001_usize);
    let write = bed.request(Op::Write, BASE + to as u64, from as u64, length as u64);
    bed.carry_out(link, &[write]);
    expected[to..to + length].copy_from_slice(&source[from..from + length]);
    assert!(bed.target.bytes() == expected, "the write");

    let remote = bed.target.fill(3);
    let mut expected = source;
    let read = bed.request(Op::Read, BASE + to as u64, from as u64, length as u64);
    bed.carry_out(link, &[read]);
    expected[from..from + length].copy_from_slice(&remote[to..to + length]);
    assert!(bed.initiator.bytes() == expected, "the read");
    assert!(bed.target.bytes() == remote);
}

fn each_request_of_full_windows_completes_once(mut bed: Bed) {
    const SLICE: u64 = 4096;
    let source = bed.initiator.fill(1);
    bed.target.fill(2);
    let link = bed.open();
    let requests: Vec<_> = (0..LENGTH / SLICE)
        .map(|at| bed.request(Op::Write, BASE + at * SLICE, at * SLICE, SLICE))
        .collect();
    bed.carry_out(link, &requests);
    assert!(bed.target.bytes() == source);
    assert!(bed.initiator.events.is_empty());
}

fn an_address_that_is_not_served_fails_the_link_and_changes_nothing(mut bed: Bed) {
    bed.initiator.fill(1);
    let before = bed.target.fill(2);
    let outside = [
        BASE - 1,
        BASE + LENGTH - 99,
        BASE + LENGTH,
        1,
        u64::MAX - 10,
    ];
    for (remote, op) in outside
        .into_iter()
        .flat_map(|at| [(at, Op::Read), (at, Op::Write)])
    {
        let (link, _) = bed.open();
        let request = bed.request(op, remote, 0, 100);
        assert_eq!(bed.initiator.transport.post(link, &[request]), 1);
        let failure = bed.ended(link);
        // The answer to a write may be lost with the connection.
        if op == Op::Read {
            assert!(matches!(failure.cause, LinkError::Rejected), "{failure:?}");
            assert_eq!(failure.effect, Effect::None);
        }
    }
    assert!(bed.target.bytes() == before);
}

fn nothing_is_accessed_after_a_withdrawal(mut bed: Bed) {
    bed.initiator.fill(1);
    bed.target.fill(2);
    let (link, window) = bed.open();
    let length = LENGTH / window as u64;
    let requests: Vec<_> = (0..window as u64)
        .map(|at| bed.request(Op::Write, BASE + at * length, at * length, length))
        .collect();
    bed.initiator.transport.post(link, &requests);
    bed.turn();
    bed.withdraw_at_target();
    let before = bed.target.fill(3);
    bed.settle();
    assert!(bed.target.bytes() == before, "a write of an ended epoch");

    // Under a new address it is served again.
    bed.initiator.events.clear();
    bed.target.serve(2 * BASE);
    let (old, _) = bed.open();
    let write = bed.request(Op::Write, BASE, 0, 100);
    assert_eq!(bed.initiator.transport.post(old, &[write]), 1);
    bed.ended(old);
    assert!(bed.target.bytes() == before);
    let new = bed.open();
    let write = bed.request(Op::Write, 2 * BASE, 0, LENGTH);
    bed.carry_out(new, &[write]);
    assert!(bed.target.bytes() == bed.initiator.bytes());
}

fn nothing_of_a_link_accesses_memory_after_its_release(mut bed: Bed) {
    for (round, op) in [Op::Read, Op::Write, Op::Read, Op::Write]
        .into_iter()
        .enumerate()
    {
        bed.initiator.fill(1);
        bed.target.fill(2);
        let (link, window) = bed.open();
        let length = LENGTH / window as u64;
        let requests: Vec<_> = (0..window as u64)
            .map(|at| bed.request(op, BASE + at * length, at * length, length))
            .collect();
        let accepted = bed.initiator.transport.post(link, &requests);
        assert!((1..=window).contains(&accepted));
        for _ in 0..round {
            bed.turn();
        }
        bed.initiator.transport.close(link);
        bed.released(link);
        let secret = bed.initiator.fill(9);
        bed.settle();
        assert!(bed.initiator.bytes() == secret, "a late read");
        // The link cannot send what was written to its memory afterwards.
        let target = bed.target.bytes();
        let fresh = |at: usize| target[at] == secret[at];
        let longest = (0..target.len())
            .fold((0, 0), |(longest, run), at| {
                let run = if fresh(at) { run + 1 } else { 0 };
                (longest.max(run), run)
            })
            .0;
        assert!(longest < 8, "{longest} bytes were sent after the release");
        assert!(
            bed.initiator.events.is_empty(),
            "{:?}",
            bed.initiator.events
        );
    }
}

fn a_link_takes_at_most_its_window(mut bed: Bed) {
    let (link, window) = bed.open();
    let many = window as u64 + 3;
    let length = LENGTH / many;
    let requests: Vec<_> = (0..many)
        .map(|at| bed.request(Op::Read, BASE + at * length, at * length, length))
        .collect();
    let accepted = bed.initiator.transport.post(link, &requests);
    assert!((1..=window).contains(&accepted), "{accepted} of {window}");
    for _ in 0..accepted {
        bed.done(link);
    }
    bed.carry_out((link, window), &requests[accepted..]);
}

fn requests_end_when_the_peer_ends(mut bed: Bed) {
    bed.initiator.fill(1);
    let (link, window) = bed.open();
    let length = LENGTH / window as u64;
    let requests: Vec<_> = (0..window as u64)
        .map(|at| bed.request(Op::Write, BASE + at * length, at * length, length))
        .collect();
    let accepted = bed.initiator.transport.post(link, &requests);
    let endpoint = bed.target.endpoint;
    bed.target.transport.remove_endpoint(endpoint);
    (bed.end_target)();
    let mut done = 0;
    while done < accepted {
        let ended = bed.until(|event| match event {
            Event::Done(..) => Some(false),
            Event::Down(..) => Some(true),
            _ => None,
        });
        if ended {
            bed.released(link);
            return;
        }
        done += 1;
    }
}

fn links_are_independent(mut bed: Bed) {
    let source = bed.initiator.fill(1);
    bed.target.fill(2);
    let (good, (bad, _)) = (bed.open(), bed.open());
    let wrong = bed.request(Op::Write, 1, 0, 100);
    assert_eq!(bed.initiator.transport.post(bad, &[wrong]), 1);
    let write = bed.request(Op::Write, BASE, 0, LENGTH);
    assert_eq!(bed.initiator.transport.post(good.0, &[write]), 1);
    let (mut released, mut done) = (false, false);
    while !(released && done) {
        let of_bad = bed.until(|event| match event {
            Event::Released(id) if *id == bad => Some(true),
            Event::Done(id, _) if *id == good.0 => Some(false),
            Event::Down(id, failure) if *id == good.0 => panic!("{failure:?}"),
            _ => None,
        });
        released |= of_bad;
        done |= !of_bad;
    }
    assert!(bed.target.bytes() == source);
}

/// Every case over one bed.
macro_rules! conformance {
    ($name:ident, $bed:expr) => {
        mod $name {
            use super::*;

            conformance!(@case $bed,
                bytes_move_within_their_ranges_only,
                each_request_of_full_windows_completes_once,
                an_address_that_is_not_served_fails_the_link_and_changes_nothing,
                nothing_is_accessed_after_a_withdrawal,
                nothing_of_a_link_accesses_memory_after_its_release,
                a_link_takes_at_most_its_window,
                requests_end_when_the_peer_ends,
                links_are_independent,
            );
        }
    };
    (@case $bed:expr, $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                beds::run(concat!(module_path!(), "::", stringify!($case)), || super::$case($bed));
            }
        )*
    };
}

conformance!(tcp, beds::tcp(0));
conformance!(tcp_pipelined, beds::tcp(16));
conformance!(memory, beds::memory(8, 8));
conformance!(memory_that_accepts_less_than_its_window, beds::memory(8, 3));
#[cfg(feature = "rdma")]
conformance!(rdma, beds::rdma::bed());
#[cfg(feature = "rdma")]
conformance!(infiniband, beds::rdma::bed());

#[test]
fn injected_failures_end_each_request_of_a_window() {
    let policy = Policy {
        fail_every: Some(20),
        release_delay: Duration::from_millis(1),
        ..Policy::default()
    };
    let mut bed = beds::faulty(policy);
    let (mut done, mut down) = (0, 0);
    while down < 5 {
        let (link, window) = bed.open();
        let mut open = 0;
        loop {
            while open < window {
                let request = bed.request(Op::Write, BASE, 0, 4096);
                open += bed.initiator.transport.post(link, &[request]);
            }
            let ended = bed.until(|event| match event {
                Event::Done(id, _) if *id == link => Some(false),
                Event::Down(id, _) if *id == link => Some(true),
                _ => None,
            });
            if ended {
                down += 1;
                bed.released(link);
                break;
            }
            (open, done) = (open - 1, done + 1);
        }
    }
    assert!(done > 0, "nothing completed between the failures");
}

//! Properties of every permitted sequence of events: outcomes, releases, and the peer's memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What the driver in the property does next.
#[derive(Debug, Clone)]
enum Move {
    Submit {
        peer: u8,
        write: bool,
        memory: u8,
        length: u64,
        within: u64,
        /// It is cancelled before the driver carries out any action for it.
        dropped: bool,
    },
    Advance {
        by: u64,
    },
    /// One of the transport's pending events, chosen by number.
    Owed {
        which: usize,
        how: u8,
    },
    Withdraw {
        memory: u8,
    },
    /// The caller cancels a transfer.
    Cancel {
        which: u64,
    },
    /// A completion of a closing or unknown link.
    Late {
        which: usize,
    },
    /// Bytes that an aborted attempt left in the network arrive, perhaps again later.
    Land {
        which: usize,
        again: bool,
    },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => (0u8..3, any::<bool>(), 0u8..3, 0u64..500, 1u64..200, prop::bool::weighted(0.2)).prop_map(
            |(peer, write, memory, length, within, dropped)| Move::Submit {
                peer, write, memory, length, within, dropped
            }
        ),
        2 => (0u64..60).prop_map(|by| Move::Advance { by }),
        12 => (0usize..64, any::<u8>()).prop_map(|(which, how)| Move::Owed { which, how }),
        1 => (0u8..3).prop_map(|memory| Move::Withdraw { memory }),
        1 => (0u64..20).prop_map(|which| Move::Cancel { which }),
        1 => (0usize..64).prop_map(|which| Move::Late { which }),
        2 => (0usize..64, any::<bool>()).prop_map(|(which, again)| Move::Land { which, again }),
    ];
    prop::collection::vec(one, 0..200)
}

#[derive(Debug, Clone, PartialEq)]
enum LinkView {
    Connecting,
    /// With the slices that it carries, and its window.
    Up(Vec<(PieceKey, Slice<u8>)>, usize),
    /// Down or closed; the memory of the slices may still be accessed.
    Dying(Vec<(PieceKey, Slice<u8>)>),
}

#[derive(Debug)]
struct View {
    deadline: Time,
    memory: u8,
    outcome: bool,
    write: bool,
    /// The peer has or may have received a slice.
    touched: bool,
}

/// Records what the scheduler may do.
struct Driver {
    scheduler: Scheduled,
    now: Time,
    resolving: Vec<PeerKey>,
    links: BTreeMap<LinkKey, LinkView>,
    transfers: BTreeMap<u64, View>,
    /// Tokens of the writes of which bytes are in the network after their link has ended.
    in_flight: Vec<u64>,
    /// Tokens of the writes that may still change the peer's memory, as far as their callers know.
    unsure: BTreeSet<u64>,
    /// The peer's memory: the last writer of each range.
    remote: [Option<u64>; RANGES],
    released: u64,
    next: u64,
}

/// Ranges of the peer's memory; a transfer's token decides which one it uses.
const RANGES: usize = 2;

fn range(token: u64) -> usize {
    usize::from(!token.is_multiple_of(2))
}

impl Driver {
    fn new() -> Self {
        Self {
            scheduler: Scheduled::new(CONFIG),
            now: Time::ZERO,
            resolving: Vec::new(),
            links: BTreeMap::new(),
            transfers: BTreeMap::new(),
            in_flight: Vec::new(),
            unsure: BTreeSet::new(),
            remote: [None; RANGES],
            released: 0,
            next: 0,
        }
    }

    fn touchable(&self) -> impl Iterator<Item = Slice<u8>> {
        let carried = self.links.values().flat_map(|link| match link {
            LinkView::Up(carried, _) | LinkView::Dying(carried) => &carried[..],
            LinkView::Connecting => &[],
        });
        carried.map(|(_, slice)| *slice)
    }

    fn settle(&mut self) {
        while let Some(action) = self.scheduler.poll() {
            match action {
                Action::Resolve { peer } => self.resolving.push(peer),
                Action::Open { link, .. } => {
                    assert!(self.links.insert(link, LinkView::Connecting).is_none());
                }
                Action::Post { link, piece, slice } => {
                    let token = slice.remote >> 20;
                    assert!(!self.transfers[&token].outcome, "posted after its outcome");
                    assert!(
                        self.touchable().all(|other| other.remote != slice.remote),
                        "a second attempt while the first may still be touched"
                    );
                    let Some(LinkView::Up(carried, window)) = self.links.get_mut(&link) else {
                        panic!("posted to a link that is not up");
                    };
                    assert!(carried.len() < *window, "more than the window");
                    carried.push((piece, slice));
                }
                Action::Close { link } => {
                    let carried = match self.links.remove(&link) {
                        Some(LinkView::Up(carried, _)) => carried,
                        Some(LinkView::Connecting) => Vec::new(),
                        other => panic!("closed twice: {other:?}"),
                    };
                    for (_, slice) in &carried {
                        self.leave_in_flight(*slice);
                    }
                    self.links.insert(link, LinkView::Dying(carried));
                }
                Action::Outcome { token, ending } => {
                    let flying = self.links.values().any(|view| match view {
                        LinkView::Up(carried, _) => {
                            carried.iter().any(|(_, slice)| slice.remote >> 20 == token)
                        }
                        _ => false,
                    });
                    let view = self
                        .transfers
                        .get_mut(&token)
                        .expect("an outcome is before");
                    assert!(!view.outcome, "two outcomes");
                    assert!(self.now <= view.deadline, "an outcome after the deadline");
                    view.outcome = true;
                    if !matches!(&ending, Ending::Failed(fault) if fault.indeterminate) {
                        self.unsure.remove(&token);
                    }
                    if let Ending::Failed(fault) = ending {
                        let unknown = view.write && (view.touched || flying);
                        assert!(
                            fault.indeterminate || !unknown,
                            "a write that may have arrived is not reported as indeterminate"
                        );
                        assert!(view.write || !fault.indeterminate);
                    }
                }
                Action::Release { token } => {
                    let view = self.transfers.remove(&token).expect("one release");
                    assert!(view.outcome, "a release before the outcome");
                    assert!(
                        self.touchable().all(|slice| slice.remote >> 20 != token),
                        "released while its memory may be touched"
                    );
                    self.released += 1;
                }
            }
        }
        for memory in 0..3 {
            let held = self.transfers.values().any(|view| view.memory == memory);
            assert_eq!(self.scheduler.uses(memory, u64::MAX), held);
        }
    }

    /// An attempt ends, and its bytes may reach the peer later.
    fn leave_in_flight(&mut self, slice: Slice<u8>) {
        self.touch(slice);
        if slice.op == Op::Write {
            self.in_flight.push(slice.remote >> 20);
        }
    }

    /// Bytes of an earlier attempt reach the peer's memory.
    fn land(&mut self, token: u64) {
        let there = &mut self.remote[range(token)];
        // A caller that knows of the unknown outcome writes nothing else there.
        if !self.unsure.contains(&token) {
            assert!(
                there.is_none_or(|confirmed| confirmed == token),
                "bytes of {token} land after {there:?} was confirmed"
            );
        }
        *there = Some(token);
    }

    fn touch(&mut self, slice: Slice<u8>) {
        if let Some(view) = self.transfers.get_mut(&(slice.remote >> 20)) {
            view.touched = true;
        }
    }

    /// Advances time, with a stop at every timeout of the scheduler.
    fn advance(&mut self, by: u64) {
        let end = self.now + at(by);
        while let Some(due) = self.scheduler.next_timeout().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.scheduler.time(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// Delivers one of the pending events.
    fn deliver(&mut self, which: usize, how: u8) -> bool {
        let owed: Vec<_> = self
            .links
            .iter()
            .filter(|(_, view)| {
                !matches!(view, LinkView::Up(carried, _) if carried.is_empty())
                    || how.is_multiple_of(16)
            })
            .map(|(link, view)| (*link, view.clone()))
            .collect();
        let count = self.resolving.len() + owed.len();
        if count == 0 {
            return false;
        }
        let which = which % count;
        if which < self.resolving.len() {
            let peer = self.resolving.swap_remove(which);
            let answer = if how < 40 {
                Err("no answer")
            } else {
                Ok(u64::from(how > 200))
            };
            self.scheduler.resolved(peer, answer, self.now);
            return true;
        }
        let (link, view) = owed[which - self.resolving.len()].clone();
        let effect = if how.is_multiple_of(2) {
            Effect::None
        } else {
            Effect::Unknown
        };
        let broken = failure(effect, how.is_multiple_of(3));
        match view {
            LinkView::Connecting if how > 60 => {
                let window = 1 + usize::from(how % 4);
                self.links.insert(link, LinkView::Up(Vec::new(), window));
                self.scheduler.link_up(link, window, self.now);
            }
            LinkView::Up(mut carried, window) if how > 90 && !carried.is_empty() => {
                let (piece, slice) = carried.swap_remove(which % carried.len());
                let last = carried.is_empty();
                self.links.insert(link, LinkView::Up(carried, window));
                if how.is_multiple_of(5) && !last {
                    self.scheduler.not_accepted(link, piece, self.now);
                    return true;
                }
                self.touch(slice);
                if slice.op == Op::Write {
                    let token = slice.remote >> 20;
                    self.remote[range(token)] = Some(token);
                }
                self.scheduler.slice_done(link, piece, self.now);
            }
            LinkView::Connecting => {
                self.links.insert(link, LinkView::Dying(Vec::new()));
                self.scheduler.link_down(link, broken, self.now);
            }
            LinkView::Up(mut carried, _) => {
                // Without an effect, as the requests that a link has not begun.
                if how.is_multiple_of(7)
                    && carried.len() > 1
                    && let Some((piece, _)) = carried.pop()
                {
                    self.scheduler.slice_returned(link, piece);
                }
                if effect == Effect::Unknown {
                    for (_, slice) in &carried {
                        self.leave_in_flight(*slice);
                    }
                }
                self.links.insert(link, LinkView::Dying(carried));
                self.scheduler.link_down(link, broken, self.now);
            }
            LinkView::Dying(_) => {
                self.links.remove(&link);
                self.scheduler.link_released(link);
            }
        }
        true
    }

    fn step(&mut self, step: &Move) {
        match *step {
            Move::Submit {
                peer,
                write,
                memory,
                length,
                within,
                dropped,
            } => {
                let token = self.next;
                self.next += 1;
                let deadline = self.now + at(within);
                self.transfers.insert(
                    token,
                    View {
                        deadline,
                        memory,
                        outcome: false,
                        write,
                        touched: false,
                    },
                );
                let op = if write { Op::Write } else { Op::Read };
                if write {
                    self.unsure.insert(token);
                }
                // The address identifies the transfer of a slice.
                let remote = token << 20;
                let request = Request {
                    op,
                    remote,
                    memory,
                    offset: 0,
                    length,
                    deadline,
                    token,
                };
                let peer = ["a", "b", "c"][usize::from(peer)];
                self.scheduler.submit(peer, request, self.now);
                if dropped {
                    let closing = |links: &BTreeMap<LinkKey, LinkView>| {
                        let dying = |view: &&LinkView| matches!(view, LinkView::Dying(_));
                        links.values().filter(dying).count()
                    };
                    let before = closing(&self.links);
                    self.scheduler.cancel(|one| one == token);
                    self.settle();
                    assert!(!self.transfers.contains_key(&token), "not released at once");
                    assert_eq!(
                        closing(&self.links),
                        before,
                        "a link without a byte is closed"
                    );
                }
            }
            Move::Advance { by } => self.advance(by),
            Move::Owed { which, how } => {
                self.deliver(which, how);
            }
            Move::Withdraw { memory } => {
                self.scheduler.withdraw(memory, self.now);
            }
            Move::Cancel { which } => {
                self.scheduler.cancel(|token| token == which);
                self.settle();
                assert!(self.transfers.get(&which).is_none_or(|view| view.outcome));
            }
            Move::Late { which } => {
                let dying: Vec<_> = self
                    .links
                    .iter()
                    .filter_map(|(link, view)| match view {
                        LinkView::Dying(carried) => Some((*link, carried.first().copied())),
                        _ => None,
                    })
                    .collect();
                if !dying.is_empty() {
                    let (link, carried) = dying[which % dying.len()];
                    if let Some((piece, _)) = carried {
                        self.scheduler.slice_done(link, piece, self.now);
                        self.scheduler.not_accepted(link, piece, self.now);
                    }
                    self.scheduler.link_up(link, 1, self.now);
                    let broken = failure(Effect::Unknown, true);
                    self.scheduler.link_down(link, broken, self.now);
                }
            }
            Move::Land { which, again } => {
                if !self.in_flight.is_empty() {
                    let which = which % self.in_flight.len();
                    let token = self.in_flight[which];
                    if !again {
                        self.in_flight.swap_remove(which);
                    }
                    self.land(token);
                }
            }
        }
        self.settle();
    }
}

proptest! {
    #[test]
    fn no_byte_of_a_write_lands_after_a_later_write_to_its_range_was_confirmed(moves in moves()) {
        let mut driver = Driver::new();
        for step in &moves {
            driver.step(step);
        }
        driver.advance(1000);
        // Every caller has its outcome and writes the ranges again.
        driver.remote = [Some(u64::MAX); RANGES];
        for token in driver.in_flight.clone() {
            driver.land(token);
        }
    }

    #[test]
    fn every_transfer_ends_once_by_its_deadline_and_is_released_once_after(moves in moves()) {
        let mut driver = Driver::new();
        for step in &moves {
            driver.step(step);
        }
        // All deadlines pass, and the transport delivers its pending events.
        driver.advance(1000);
        prop_assert!(driver.transfers.values().all(|view| view.outcome));
        for _ in 0..10_000 {
            let dying = driver.links.values().any(|view| matches!(view, LinkView::Dying(_)));
            if !dying { break; }
            driver.deliver(0, 255);
            driver.settle();
        }
        prop_assert!(driver.transfers.is_empty());
        prop_assert_eq!(driver.released, driver.next);
        prop_assert!(driver.scheduler.transfers.is_empty() && driver.scheduler.pieces.is_empty());
    }
}

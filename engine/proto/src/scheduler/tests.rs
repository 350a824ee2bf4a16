//! The promises of the scheduler, under a driver that does everything a driver may do.

use alloc::vec::Vec;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Scheduled = Scheduler<u8, &'static str>;

const CONFIG: Config = Config {
    slice_bytes: 100,
    lanes: 3,
    idle: Duration::from_secs(60),
};

fn at(milliseconds: u64) -> Time {
    Time::from_millis(milliseconds)
}

fn request(op: Op, length: u64, deadline: u64, token: u64) -> Request<u8> {
    let (remote, memory, offset) = (1 << 58, 0, 0);
    Request {
        op,
        remote,
        memory,
        offset,
        length,
        deadline: at(deadline),
        token,
    }
}

fn failure(effect: Effect, reply_seen: bool) -> Failure<&'static str> {
    Failure {
        cause: "broken",
        effect,
        reply_seen,
    }
}

fn drain(scheduler: &mut Scheduled) -> Vec<Action<u8, &'static str>> {
    std::iter::from_fn(|| scheduler.poll()).collect()
}

/// Resolves, opens and brings up until a slice is posted; gives its link.
fn until_posted(scheduler: &mut Scheduled) -> LinkKey {
    for _ in 0..10 {
        for action in drain(scheduler) {
            match action {
                Action::Resolve { peer } => scheduler.resolved(peer, Ok(1)),
                Action::Open { link, .. } => scheduler.link_up(link, at(0)),
                Action::Post { link, .. } => return link,
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("nothing was posted");
}

#[test]
fn a_transfer_is_asked_for_connected_posted_and_done() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 7));
    let link = until_posted(&mut scheduler);
    scheduler.slice_done(link, at(1));
    let done = Action::Outcome {
        token: 7,
        ending: Ending::Done,
    };
    assert_eq!(drain(&mut scheduler), [done, Action::Release { token: 7 }]);
    assert!(!scheduler.uses(0));
}

#[test]
fn a_transfer_of_nothing_is_done_at_once() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 0, 0, 7));
    let done = Action::Outcome {
        token: 7,
        ending: Ending::Done,
    };
    assert_eq!(drain(&mut scheduler), [done, Action::Release { token: 7 }]);
}

#[test]
fn a_deadline_ends_a_posted_write_as_indeterminate_and_releases_it_later() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 7));
    let link = until_posted(&mut scheduler);
    assert_eq!(scheduler.next_timeout(), Some(at(1000)));
    scheduler.time(at(1000));
    let actions = drain(&mut scheduler);
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert_eq!(actions[0], Action::Close { link });
    let Action::Outcome {
        ending: Ending::Failed(fault),
        ..
    } = &actions[1]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (fault.stage, &fault.cause),
        (Stage::Transfer, &Cause::Deadline)
    );
    assert!(fault.indeterminate);
    // A completion that comes too late changes nothing and frees nothing.
    scheduler.slice_done(link, at(1001));
    assert!(drain(&mut scheduler).is_empty() && scheduler.uses(0));
    scheduler.link_released(link);
    assert_eq!(drain(&mut scheduler), [Action::Release { token: 7 }]);
}

#[test]
fn a_write_that_was_never_posted_is_not_indeterminate() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 7));
    scheduler.time(at(2000));
    let actions = drain(&mut scheduler);
    let Action::Outcome {
        ending: Ending::Failed(fault),
        ..
    } = &actions[1]
    else {
        panic!("{actions:?}")
    };
    assert!(fault.stage == Stage::Resolve && !fault.indeterminate);
}

/// One transfer done, so that its link is used; then another on the same link, which breaks.
fn broken_on_a_used_link(scheduler: &mut Scheduled) -> LinkKey {
    scheduler.submit("peer", request(Op::Write, 50, 1000, 1));
    let link = until_posted(scheduler);
    scheduler.slice_done(link, at(1));
    drain(scheduler);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 2));
    assert_eq!(until_posted(scheduler), link);
    scheduler.link_down(link, failure(Effect::Unknown, false));
    link
}

#[test]
fn a_stale_link_gives_one_second_chance_after_release_and_re_reading() {
    let mut scheduler = Scheduled::new(CONFIG);
    let old = broken_on_a_used_link(&mut scheduler);
    assert!(
        drain(&mut scheduler).is_empty(),
        "nothing moves before the release"
    );
    scheduler.link_released(old);
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.resolved(peer, Ok(1));
    let fresh = until_posted(&mut scheduler);
    assert_ne!(fresh, old);
    scheduler.link_down(fresh, failure(Effect::None, false));
    let actions = drain(&mut scheduler);
    let Action::Outcome {
        token: 2,
        ending: Ending::Failed(fault),
    } = &actions[0]
    else {
        panic!("{actions:?}")
    };
    // The first attempt may have reached the peer.
    assert!(fault.indeterminate);
}

#[test]
fn no_second_chance_crosses_a_change_of_what_the_peer_publishes() {
    let mut scheduler = Scheduled::new(CONFIG);
    let old = broken_on_a_used_link(&mut scheduler);
    scheduler.link_released(old);
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.resolved(peer, Ok(2));
    let actions = drain(&mut scheduler);
    let Action::Outcome {
        token: 2,
        ending: Ending::Failed(fault),
    } = &actions[0]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(
        (&fault.cause, fault.indeterminate),
        (&Cause::PeerMoved, true)
    );
    assert_eq!(actions[1], Action::Release { token: 2 });
}

#[test]
fn an_answer_of_any_kind_ends_the_second_chance() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 1));
    let link = until_posted(&mut scheduler);
    scheduler.slice_done(link, at(1));
    drain(&mut scheduler);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 2));
    until_posted(&mut scheduler);
    scheduler.link_down(link, failure(Effect::None, true));
    let actions = drain(&mut scheduler);
    assert!(
        matches!(actions[0], Action::Outcome { token: 2, .. }),
        "{actions:?}"
    );
}

#[test]
fn idle_links_are_closed_and_forgotten_peers_cost_nothing() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 1));
    let link = until_posted(&mut scheduler);
    scheduler.slice_done(link, at(1));
    drain(&mut scheduler);
    let mut now = at(0);
    for _ in 0..4 {
        now = scheduler.next_timeout().map_or(now, |due| due.max(now));
        scheduler.time(now);
        for action in drain(&mut scheduler) {
            assert_eq!(action, Action::Close { link });
            scheduler.link_released(link);
        }
    }
    assert!(now >= at(60_001));
    assert_eq!(scheduler.next_timeout(), None);
    assert!(scheduler.peers.is_empty() && scheduler.names.is_empty());
}

/// What the driver in the property does next.
#[derive(Debug, Clone)]
enum Move {
    Submit {
        peer: u8,
        write: bool,
        memory: u8,
        length: u64,
        within: u64,
    },
    Advance {
        by: u64,
    },
    /// One of the things that the transport owes, picked by number.
    Owed {
        which: usize,
        how: u8,
    },
    Withdraw {
        memory: u8,
    },
    /// A completion of a link that is dying, or of none.
    Late {
        which: usize,
    },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        3 => (0u8..3, any::<bool>(), 0u8..3, 0u64..500, 1u64..200).prop_map(
            |(peer, write, memory, length, within)| Move::Submit {
                peer, write, memory, length, within
            }
        ),
        2 => (0u64..60).prop_map(|by| Move::Advance { by }),
        12 => (0usize..64, any::<u8>()).prop_map(|(which, how)| Move::Owed { which, how }),
        1 => (0u8..3).prop_map(|memory| Move::Withdraw { memory }),
        1 => (0usize..64).prop_map(|which| Move::Late { which }),
    ];
    prop::collection::vec(one, 0..200)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum LinkView {
    Connecting,
    Idle,
    Busy(Slice<u8>),
    /// Down or closed; the slice may still be touched.
    Dying(Option<Slice<u8>>),
}

#[derive(Debug)]
struct View {
    deadline: Time,
    memory: u8,
    outcome: bool,
    write: bool,
    /// The peer took a slice of it, or may have.
    touched: bool,
}

/// Keeps the books beside the scheduler.
struct Driver {
    scheduler: Scheduled,
    now: Time,
    asked: Vec<PeerKey>,
    links: BTreeMap<LinkKey, LinkView>,
    transfers: BTreeMap<u64, View>,
    released: u64,
    next: u64,
}

impl Driver {
    fn new() -> Self {
        Self {
            scheduler: Scheduled::new(CONFIG),
            now: Time::ZERO,
            asked: Vec::new(),
            links: BTreeMap::new(),
            transfers: BTreeMap::new(),
            released: 0,
            next: 0,
        }
    }

    fn touchable(&self) -> impl Iterator<Item = Slice<u8>> {
        self.links.values().filter_map(|link| match link {
            LinkView::Busy(slice) => Some(*slice),
            LinkView::Dying(slice) => *slice,
            LinkView::Connecting | LinkView::Idle => None,
        })
    }

    fn settle(&mut self) {
        while let Some(action) = self.scheduler.poll() {
            match action {
                Action::Resolve { peer } => self.asked.push(peer),
                Action::Open { link, .. } => {
                    assert!(self.links.insert(link, LinkView::Connecting).is_none());
                }
                Action::Post { link, slice } => {
                    assert_eq!(self.links.get(&link), Some(&LinkView::Idle));
                    let token = slice.remote >> 20;
                    assert!(!self.transfers[&token].outcome, "posted after its outcome");
                    assert!(
                        self.touchable().all(|other| other.remote != slice.remote),
                        "a second attempt while the first may still be touched"
                    );
                    self.links.insert(link, LinkView::Busy(slice));
                }
                Action::Close { link } => {
                    let slice = match self.links.get(&link) {
                        Some(LinkView::Busy(slice)) => Some(*slice),
                        Some(LinkView::Idle | LinkView::Connecting) => None,
                        other => panic!("closed twice: {other:?}"),
                    };
                    if let Some(slice) = slice {
                        self.touch(slice);
                    }
                    self.links.insert(link, LinkView::Dying(slice));
                }
                Action::Outcome { token, ending } => {
                    let flying = self.links.values().any(|view| match view {
                        LinkView::Busy(slice) => slice.remote >> 20 == token,
                        _ => false,
                    });
                    let view = self
                        .transfers
                        .get_mut(&token)
                        .expect("an outcome is before");
                    assert!(!view.outcome, "two outcomes");
                    assert!(self.now <= view.deadline, "an outcome after the deadline");
                    view.outcome = true;
                    if let Ending::Failed(fault) = ending {
                        let unknown = view.write && (view.touched || flying);
                        assert!(
                            fault.indeterminate || !unknown,
                            "a write that may have arrived is said not to have"
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
            assert_eq!(self.scheduler.uses(memory), held);
        }
    }

    fn touch(&mut self, slice: Slice<u8>) {
        if let Some(view) = self.transfers.get_mut(&(slice.remote >> 20)) {
            view.touched = true;
        }
    }

    /// Lets time pass, stopping wherever the scheduler asked to be called.
    fn advance(&mut self, by: u64) {
        let end = self.now + at(by);
        while let Some(due) = self.scheduler.next_timeout().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.scheduler.time(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// Delivers one of the events that are owed.
    fn deliver(&mut self, which: usize, how: u8) -> bool {
        let owed: Vec<_> = self
            .links
            .iter()
            .filter(|(_, view)| !matches!(view, LinkView::Idle) || how.is_multiple_of(16))
            .map(|(link, view)| (*link, *view))
            .collect();
        let count = self.asked.len() + owed.len();
        if count == 0 {
            return false;
        }
        let which = which % count;
        if which < self.asked.len() {
            let peer = self.asked.swap_remove(which);
            let answer = if how < 40 {
                Err("no answer")
            } else {
                Ok(u64::from(how > 200))
            };
            self.scheduler.resolved(peer, answer);
            return true;
        }
        let (link, view) = owed[which - self.asked.len()];
        let effect = if how.is_multiple_of(2) {
            Effect::None
        } else {
            Effect::Unknown
        };
        let broken = failure(effect, how.is_multiple_of(3));
        match view {
            LinkView::Connecting if how > 60 => {
                self.links.insert(link, LinkView::Idle);
                self.scheduler.link_up(link, self.now);
            }
            LinkView::Busy(slice) if how > 90 => {
                self.links.insert(link, LinkView::Idle);
                self.touch(slice);
                self.scheduler.slice_done(link, self.now);
            }
            LinkView::Connecting | LinkView::Idle => {
                self.links.insert(link, LinkView::Dying(None));
                self.scheduler.link_down(link, broken);
            }
            LinkView::Busy(slice) => {
                self.links.insert(link, LinkView::Dying(Some(slice)));
                if effect == Effect::Unknown {
                    self.touch(slice);
                }
                self.scheduler.link_down(link, broken);
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
                // The address tells the slices of different transfers apart.
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
                self.scheduler
                    .submit(["a", "b", "c"][usize::from(peer)], request);
            }
            Move::Advance { by } => self.advance(by),
            Move::Owed { which, how } => {
                self.deliver(which, how);
            }
            Move::Withdraw { memory } => self.scheduler.withdraw(memory, self.now),
            Move::Late { which } => {
                let dying: Vec<_> = self
                    .links
                    .iter()
                    .filter(|(_, view)| matches!(view, LinkView::Dying(_)))
                    .map(|(link, _)| *link)
                    .collect();
                if !dying.is_empty() {
                    let link = dying[which % dying.len()];
                    self.scheduler.slice_done(link, self.now);
                    self.scheduler.link_up(link, self.now);
                    self.scheduler
                        .link_down(link, failure(Effect::Unknown, true));
                }
            }
        }
        self.settle();
    }
}

proptest! {
    #[test]
    fn every_transfer_ends_once_by_its_deadline_and_is_released_once_after(moves in moves()) {
        let mut driver = Driver::new();
        for step in &moves {
            driver.step(step);
        }
        // All deadlines pass, and the transport pays what it owes.
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

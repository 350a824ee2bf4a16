//! Tests of the scheduler.

mod property;

use alloc::vec::Vec;

use super::*;

type Scheduled = Scheduler<u8, &'static str>;

const CONFIG: Config = Config {
    slice_bytes: 100,
    lanes: 3,
    idle: Duration::from_secs(60),
    backoff_least: Duration::from_millis(50),
    backoff_most: Duration::from_secs(1),
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

/// Resolves, opens and connects until a slice is posted; returns it with its link.
fn until_posted(scheduler: &mut Scheduled) -> (LinkKey, PieceKey) {
    for _ in 0..10 {
        for action in drain(scheduler) {
            match action {
                Action::Resolve { peer } => scheduler.resolved(peer, Ok(1), at(0)),
                Action::Open { link, .. } => scheduler.link_up(link, 1, at(0)),
                Action::Post { link, piece, .. } => return (link, piece),
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("nothing was posted");
}

#[test]
fn a_transfer_is_resolved_connected_posted_and_completed() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 7), at(0));
    let (link, piece) = until_posted(&mut scheduler);
    scheduler.slice_done(link, piece, at(1));
    let done = Action::Outcome {
        token: 7,
        ending: Ending::Done,
    };
    assert_eq!(drain(&mut scheduler), [done, Action::Release { token: 7 }]);
    assert!(!scheduler.uses(0, u64::MAX));
}

#[test]
fn an_empty_transfer_succeeds_at_once() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 0, 0, 7), at(0));
    let done = Action::Outcome {
        token: 7,
        ending: Ending::Done,
    };
    assert_eq!(drain(&mut scheduler), [done, Action::Release { token: 7 }]);
}

#[test]
fn a_deadline_ends_a_posted_write_as_indeterminate_and_releases_it_later() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 7), at(0));
    let (link, piece) = until_posted(&mut scheduler);
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
    // A late completion changes nothing and releases nothing.
    scheduler.slice_done(link, piece, at(1001));
    assert!(drain(&mut scheduler).is_empty() && scheduler.uses(0, u64::MAX));
    scheduler.link_released(link);
    assert_eq!(drain(&mut scheduler), [Action::Release { token: 7 }]);
}

#[test]
fn a_link_stays_open_if_its_transfer_ends_before_the_first_byte() {
    let config = Config { lanes: 1, ..CONFIG };
    for how in 0..3 {
        let mut scheduler = Scheduled::new(config);
        scheduler.submit("peer", request(Op::Write, 50, 1000, 1), at(0));
        let (link, piece) = until_posted(&mut scheduler);
        scheduler.slice_done(link, piece, at(1));
        drain(&mut scheduler);

        let mut first = request(Op::Write, 250, 5, 2);
        first.memory = 9;
        scheduler.submit("peer", first, at(2));
        scheduler.submit("peer", request(Op::Write, 50, 1000, 3), at(2));
        let cause = match how {
            0 => {
                scheduler.cancel(|token| token == 2);
                Cause::Cancelled
            }
            1 => {
                scheduler.withdraw(9, at(3));
                Cause::Withdrawn
            }
            _ => {
                scheduler.time(at(5));
                Cause::Deadline
            }
        };
        let fault = Fault::new(Stage::Queue, cause);
        let actions = drain(&mut scheduler);
        let ended = [
            Action::Outcome {
                token: 2,
                ending: Ending::Failed(fault),
            },
            Action::Release { token: 2 },
        ];
        assert_eq!(actions[..2], ended);
        let [
            Action::Post {
                link: on,
                piece,
                slice,
            },
        ] = actions[2..]
        else {
            panic!("{actions:?}")
        };
        assert_eq!((on, slice.memory), (link, 0));
        assert!(!scheduler.uses(9, u64::MAX));
        scheduler.slice_done(link, piece, at(6));
        assert_eq!(drain(&mut scheduler).len(), 2, "the other transfer is done");
    }
}

#[test]
fn memory_is_withdrawn_from_earlier_transfers_only() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 1), at(0));
    let (link, _) = until_posted(&mut scheduler);
    let earlier = scheduler.withdraw(0, at(1));
    scheduler.submit("peer", request(Op::Write, 50, 1000, 2), at(2));
    assert!(scheduler.uses(0, earlier));
    scheduler.link_released(link);
    assert!(!scheduler.uses(0, earlier) && scheduler.uses(0, u64::MAX));
}

#[test]
fn a_write_that_was_never_posted_is_not_indeterminate() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Write, 50, 1000, 7), at(0));
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

/// Completes one transfer, then breaks the link during a second one.
fn broken_on_a_used_link(scheduler: &mut Scheduled, op: Op, effect: Effect) -> LinkKey {
    scheduler.submit("peer", request(op, 50, 1000, 1), at(0));
    let (link, piece) = until_posted(scheduler);
    scheduler.slice_done(link, piece, at(1));
    drain(scheduler);
    scheduler.submit("peer", request(op, 50, 1000, 2), at(0));
    assert_eq!(until_posted(scheduler).0, link);
    scheduler.link_down(link, failure(effect, false), at(0));
    link
}

#[test]
fn a_write_whose_payload_may_have_arrived_is_not_retried() {
    let mut scheduler = Scheduled::new(CONFIG);
    let link = broken_on_a_used_link(&mut scheduler, Op::Write, Effect::Unknown);
    let actions = drain(&mut scheduler);
    let [
        Action::Outcome {
            token: 2,
            ending: Ending::Failed(fault),
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert!(fault.indeterminate);
    scheduler.link_released(link);
    assert_eq!(drain(&mut scheduler), [Action::Release { token: 2 }]);
}

#[test]
fn a_write_without_payload_on_a_stale_link_is_retried_once_after_release_and_resolve() {
    let mut scheduler = Scheduled::new(CONFIG);
    let old = broken_on_a_used_link(&mut scheduler, Op::Write, Effect::None);
    assert!(
        drain(&mut scheduler).is_empty(),
        "nothing moves before the release"
    );
    scheduler.link_released(old);
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.resolved(peer, Ok(1), at(0));
    let (fresh, _) = until_posted(&mut scheduler);
    assert_ne!(fresh, old);
    scheduler.link_down(fresh, failure(Effect::None, false), at(0));
    let actions = drain(&mut scheduler);
    let Action::Outcome {
        token: 2,
        ending: Ending::Failed(fault),
    } = &actions[0]
    else {
        panic!("{actions:?}")
    };
    assert!(!fault.indeterminate, "neither attempt sent payload");
}

#[test]
fn a_read_on_a_stale_link_is_retried() {
    let mut scheduler = Scheduled::new(CONFIG);
    let old = broken_on_a_used_link(&mut scheduler, Op::Read, Effect::None);
    scheduler.link_released(old);
    assert_ne!(until_posted(&mut scheduler).0, old);
}

/// Posts the two slices of a transfer to two links.
fn two_busy_links(scheduler: &mut Scheduled, op: Op) -> [(LinkKey, PieceKey); 2] {
    scheduler.submit("peer", request(op, 200, 1000, 1), at(0));
    let mut posted = Vec::new();
    while posted.len() < 2 {
        for action in drain(scheduler) {
            match action {
                Action::Resolve { peer } => scheduler.resolved(peer, Ok(1), at(0)),
                Action::Open { link, .. } => scheduler.link_up(link, 1, at(0)),
                Action::Post { link, piece, .. } => posted.push((link, piece)),
                other => panic!("{other:?}"),
            }
        }
    }
    [posted[0], posted[1]]
}

#[test]
fn the_death_of_a_link_resolves_the_peer_again_while_another_link_is_busy() {
    let mut scheduler = Scheduled::new(CONFIG);
    let [(dead, _), (busy, _)] = two_busy_links(&mut scheduler, Op::Read);
    scheduler.link_down(dead, failure(Effect::None, false), at(0));
    scheduler.link_released(dead);
    drain(&mut scheduler);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 2), at(0));
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.resolved(peer, Ok(2), at(0));
    assert!(![dead, busy].contains(&until_posted(&mut scheduler).0));
}

#[test]
fn a_free_link_is_used_while_the_peer_is_resolved_again() {
    let mut scheduler = Scheduled::new(CONFIG);
    let [(dead, _), (alive, piece)] = two_busy_links(&mut scheduler, Op::Read);
    scheduler.link_down(dead, failure(Effect::None, false), at(0));
    scheduler.slice_done(alive, piece, at(1));
    drain(&mut scheduler);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 2), at(0));
    assert_eq!(until_posted(&mut scheduler).0, alive);
}

#[test]
fn a_transfer_is_not_continued_with_another_engine() {
    let mut scheduler = Scheduled::new(Config { lanes: 2, ..CONFIG });
    for (link, piece) in two_busy_links(&mut scheduler, Op::Read) {
        scheduler.slice_done(link, piece, at(1));
    }
    drain(&mut scheduler);
    scheduler.submit("peer", request(Op::Read, 100, 1000, 2), at(0));
    let (first, _) = until_posted(&mut scheduler);
    scheduler.submit("peer", request(Op::Write, 200, 1000, 3), at(0));
    let (second, piece) = until_posted(&mut scheduler);
    // The read waits for a new link; the write has one of its two slices at the peer.
    scheduler.link_down(first, failure(Effect::None, false), at(0));
    scheduler.link_released(first);
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.slice_done(second, piece, at(2));
    scheduler.link_down(second, failure(Effect::None, false), at(0));
    scheduler.link_released(second);
    scheduler.resolved(peer, Ok(2), at(0));
    let actions = drain(&mut scheduler);
    let Some(Action::Open { link, .. }) = actions.last() else {
        panic!("{actions:?}")
    };
    scheduler.link_up(*link, 1, at(3));
    let actions = drain(&mut scheduler);
    assert!(
        matches!(&actions[0], Action::Outcome { token: 3, ending: Ending::Failed(fault) }
            if fault.cause == Cause::PeerMoved && fault.indeterminate),
        "{actions:?}"
    );
}

#[test]
fn a_slice_is_not_retried_when_the_peer_publishes_something_else() {
    let mut scheduler = Scheduled::new(CONFIG);
    let old = broken_on_a_used_link(&mut scheduler, Op::Write, Effect::None);
    scheduler.link_released(old);
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.resolved(peer, Ok(2), at(0));
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
        (&Cause::PeerMoved, false)
    );
    assert_eq!(actions[1], Action::Release { token: 2 });
}

#[test]
fn a_slice_is_not_retried_after_any_reply() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 1), at(0));
    let (link, piece) = until_posted(&mut scheduler);
    scheduler.slice_done(link, piece, at(1));
    drain(&mut scheduler);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 2), at(0));
    until_posted(&mut scheduler);
    scheduler.link_down(link, failure(Effect::None, true), at(0));
    let actions = drain(&mut scheduler);
    assert!(
        matches!(actions[0], Action::Outcome { token: 2, .. }),
        "{actions:?}"
    );
}

#[test]
fn idle_links_are_closed_and_idle_peers_removed() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 1), at(0));
    let (link, piece) = until_posted(&mut scheduler);
    scheduler.slice_done(link, piece, at(1));
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

/// Answers each resolve and each attempt to connect with an error, until a time; returns when.
fn attempts(scheduler: &mut Scheduled, until: Time) -> Vec<Time> {
    let (mut now, mut attempts, mut token) = (at(0), Vec::new(), 0);
    let mut work = |scheduler: &mut Scheduled, now: Time| {
        token += 1;
        let deadline = u64::try_from(now.as_millis()).unwrap() + 100_000;
        scheduler.submit("peer", request(Op::Read, 50, deadline, token), now);
    };
    work(scheduler, now);
    while now < until {
        assert!(attempts.len() < 100, "no pause");
        let actions = drain(scheduler);
        if actions.is_empty() {
            now = scheduler.next_timeout().unwrap().max(now);
            scheduler.time(now);
        }
        for action in actions {
            match action {
                Action::Resolve { peer } if attempts.len() % 2 == 0 => {
                    attempts.push(now);
                    scheduler.resolved(peer, Err("refused"), now);
                    work(scheduler, now);
                }
                Action::Resolve { peer } => scheduler.resolved(peer, Ok(1), now),
                Action::Open { link, .. } => {
                    attempts.push(now);
                    scheduler.link_down(link, failure(Effect::None, false), now);
                    scheduler.link_released(link);
                    work(scheduler, now);
                }
                _ => {}
            }
        }
    }
    attempts
}

#[test]
fn attempts_to_reach_a_peer_back_off() {
    let mut scheduler = Scheduled::new(CONFIG);
    let attempts = attempts(&mut scheduler, at(4_000));
    let pauses = attempts
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_millis());
    let expected = [50, 100, 200, 400, 800, 1000, 1000];
    assert_eq!(pauses.collect::<Vec<_>>()[..7], expected);
}

#[test]
fn a_link_that_is_up_ends_the_pauses() {
    let mut scheduler = Scheduled::new(CONFIG);
    attempts(&mut scheduler, at(4_000));
    let due = scheduler.next_timeout().unwrap();
    scheduler.time(due);
    let (link, piece) = until_posted(&mut scheduler);
    scheduler.slice_done(link, piece, due);
    let peer = scheduler.peers.values().next().unwrap();
    assert_eq!(peer.failures, 0);
}

#[test]
fn a_peer_that_was_never_up_is_removed() {
    let mut scheduler = Scheduled::new(CONFIG);
    scheduler.submit("peer", request(Op::Read, 50, 1000, 1), at(5));
    let actions = drain(&mut scheduler);
    let [Action::Resolve { peer }] = actions[..] else {
        panic!("{actions:?}")
    };
    scheduler.resolved(peer, Err("refused"), at(10));
    drain(&mut scheduler);
    while let Some(due) = scheduler.next_timeout() {
        assert!(due <= at(200_000), "{due:?}");
        scheduler.time(due);
    }
    assert!(scheduler.peers.is_empty() && scheduler.names.is_empty());
}

/// Opens a link with a window and posts slices of transfers of 50 bytes, one each, until it is full; returns the
/// link and what it carries.
fn filled(scheduler: &mut Scheduled, op: Op, window: usize) -> (LinkKey, Vec<PieceKey>) {
    for token in 0..window as u64 {
        scheduler.submit("peer", request(op, 50, 1000 + token, token), at(0));
    }
    let (mut up, mut posted) = (None, Vec::new());
    while posted.len() < window {
        for action in drain(scheduler) {
            match action {
                Action::Resolve { peer } => scheduler.resolved(peer, Ok(1), at(0)),
                Action::Open { link, .. } => {
                    assert_eq!(up.replace(link), None, "the window has space");
                    scheduler.link_up(link, window, at(0));
                }
                Action::Post { link, piece, .. } => {
                    assert_eq!(up, Some(link));
                    posted.push(piece);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    (up.unwrap(), posted)
}

#[test]
fn a_link_carries_its_window_and_completes_in_any_order() {
    let mut scheduler = Scheduled::new(CONFIG);
    let (link, posted) = filled(&mut scheduler, Op::Read, 4);
    for token in [3, 0, 2, 1] {
        scheduler.slice_done(link, posted[token], at(1));
        let token = token as u64;
        let done = Action::Outcome {
            token,
            ending: Ending::Done,
        };
        assert_eq!(drain(&mut scheduler), [done, Action::Release { token }]);
    }
}

#[test]
fn a_slice_that_a_full_link_refused_is_posted_after_a_completion() {
    let mut scheduler = Scheduled::new(Config { lanes: 1, ..CONFIG });
    let (link, posted) = filled(&mut scheduler, Op::Write, 4);
    scheduler.not_accepted(link, posted[3], at(1));
    scheduler.submit("peer", request(Op::Write, 50, 1000, 9), at(1));
    assert!(drain(&mut scheduler).is_empty(), "the link is full");
    scheduler.slice_done(link, posted[0], at(2));
    let again: Vec<_> = drain(&mut scheduler)
        .into_iter()
        .filter_map(|action| match action {
            Action::Post { piece, .. } => Some(piece),
            _ => None,
        })
        .collect();
    assert_eq!((again.len(), again[0]), (2, posted[3]));
}

#[test]
fn a_link_that_refuses_its_only_slice_is_closed() {
    let mut scheduler = Scheduled::new(CONFIG);
    let (link, posted) = filled(&mut scheduler, Op::Write, 1);
    scheduler.not_accepted(link, posted[0], at(1));
    let actions = drain(&mut scheduler);
    assert_eq!(actions[0], Action::Close { link });
    scheduler.link_released(link);
    scheduler.time(at(1000));
    let actions = drain(&mut scheduler);
    assert!(
        actions.iter().any(|action| matches!(action,
            Action::Outcome { ending: Ending::Failed(fault), .. } if !fault.indeterminate)),
        "nothing was sent: {actions:?}"
    );
}

#[test]
fn a_deadline_leaves_the_other_slices_of_its_link_running() {
    let mut scheduler = Scheduled::new(CONFIG);
    let (link, posted) = filled(&mut scheduler, Op::Write, 3);
    scheduler.time(at(1000));
    let actions = drain(&mut scheduler);
    assert!(
        matches!(&actions[..], [Action::Outcome { token: 0, ending: Ending::Failed(fault) }]
            if fault.indeterminate),
        "{actions:?}"
    );
    // Its memory is released with its completion.
    scheduler.slice_done(link, posted[1], at(1000));
    scheduler.slice_done(link, posted[0], at(1000));
    let actions = drain(&mut scheduler);
    assert_eq!(actions.last(), Some(&Action::Release { token: 0 }));
    assert_eq!(actions.len(), 3, "{actions:?}");
    // The last one has nobody else to leave the link to.
    scheduler.time(at(1002));
    assert_eq!(drain(&mut scheduler)[0], Action::Close { link });
}

#[test]
fn a_link_that_only_ended_transfers_use_is_closed() {
    let mut scheduler = Scheduled::new(CONFIG);
    let (link, posted) = filled(&mut scheduler, Op::Write, 2);
    scheduler.time(at(1000));
    drain(&mut scheduler);
    scheduler.slice_done(link, posted[1], at(1000));
    assert!(drain(&mut scheduler).contains(&Action::Close { link }));
}

#[test]
fn the_failure_of_a_link_fails_all_its_slices_and_its_release_releases_them() {
    let mut scheduler = Scheduled::new(CONFIG);
    let (link, _) = filled(&mut scheduler, Op::Write, 3);
    scheduler.link_down(link, failure(Effect::Unknown, false), at(1));
    let ended = drain(&mut scheduler);
    assert!(
        ended.len() == 3
            && ended.iter().all(|action| matches!(action,
                Action::Outcome { ending: Ending::Failed(fault), .. } if fault.indeterminate)),
        "{ended:?}"
    );
    scheduler.link_released(link);
    assert_eq!(drain(&mut scheduler).len(), 3);
    assert!(scheduler.transfers.is_empty() && scheduler.pieces.is_empty());
}

#[test]
fn a_slice_without_effect_on_a_failed_link_is_posted_on_the_next_one() {
    let mut scheduler = Scheduled::new(CONFIG);
    let (link, posted) = filled(&mut scheduler, Op::Write, 3);
    scheduler.slice_returned(link, posted[1]);
    assert_eq!(drain(&mut scheduler), [], "the link is about to fail");
    scheduler.link_down(link, failure(Effect::Unknown, false), at(1));
    scheduler.link_released(link);
    let mut ended = Vec::new();
    for round in 0..4 {
        for action in drain(&mut scheduler) {
            match action {
                Action::Resolve { peer } => scheduler.resolved(peer, Ok(1), at(1)),
                Action::Open { link, .. } => scheduler.link_up(link, 3, at(1)),
                Action::Post { link, piece, .. } => {
                    assert_eq!(piece, posted[1]);
                    scheduler.slice_done(link, piece, at(2));
                }
                Action::Outcome { token, ending } => ended.push((token, ending == Ending::Done)),
                Action::Release { .. } => {}
                other => panic!("{other:?} in round {round}"),
            }
        }
    }
    assert_eq!(ended, [(0, false), (2, false), (1, true)]);
    assert!(scheduler.transfers.is_empty() && scheduler.pieces.is_empty());
}

#[test]
fn a_link_with_a_slice_of_an_ended_transfer_takes_no_others_before_its_next_completion() {
    let mut scheduler = Scheduled::new(Config { lanes: 1, ..CONFIG });
    let (link, posted) = filled(&mut scheduler, Op::Read, 3);
    scheduler.slice_done(link, posted[2], at(1));
    scheduler.cancel(|token| token == 0);
    drain(&mut scheduler);
    scheduler.submit("peer", request(Op::Read, 50, 9000, 7), at(2));
    assert_eq!(drain(&mut scheduler), [], "the peer may have stopped");
    scheduler.slice_done(link, posted[1], at(3));
    // Nobody waits for the last slice, so that the link is closed instead.
    assert!(drain(&mut scheduler).contains(&Action::Close { link }));
}

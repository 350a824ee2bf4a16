//! Tests of the session's decisions, with simulated time.

use proptest::prelude::*;

use super::*;
use crate::master::{Cause, Stage};
use crate::release::{LooksLike, Release};

struct Simulation {
    lifecycle: Lifecycle,
    now: Instant,
}

fn id(number: u64) -> Uuid {
    Uuid {
        first: 0,
        second: number,
    }
}

fn segment(number: u64) -> Segment {
    Segment {
        id: id(number),
        name: format!("s{number}"),
        base: (1 << 58) + (number << 30),
        size: 1 << 20,
        te_endpoint: "[::1]:12001".into(),
        protocol: "tcp".into(),
        host_id: String::new(),
    }
}

fn fresh(segments: Vec<Segment>) -> Origin {
    Origin::Fresh {
        segments,
        former: Vec::new(),
    }
}

fn take_over(segments: Vec<Segment>) -> Origin {
    Origin::TakeOver {
        segments,
        former: Vec::new(),
    }
}

fn failure() -> Error {
    let cause = Cause::Deadline(Duration::from_secs(3));
    Error {
        peer: "m".into(),
        rpc: "Ping",
        stage: Stage::Reply,
        cause,
    }
}

fn skew() -> Arc<Skew> {
    Arc::new(Skew {
        peer: "m".into(),
        ours: Release::V0_3_13,
        looks_like: LooksLike::V0_3_12,
        protocol: "2.0.0".into(),
        mismatches: Vec::new(),
    })
}

impl Simulation {
    fn new(origin: Origin) -> Self {
        let now = Instant::now();
        Self {
            lifecycle: Lifecycle::new(Settings::default(), origin, now, 7),
            now,
        }
    }

    fn handle(&mut self, input: Input) -> Vec<Action> {
        self.lifecycle.handle(input, self.now)
    }

    /// Advances time to the next timer.
    fn wake(&mut self) -> Vec<Action> {
        self.now = self
            .now
            .max(self.lifecycle.wake_at().expect("a timer is set"));
        self.handle(Input::Tick)
    }

    fn mounted(segments: &[Segment]) -> Self {
        let mut simulation = Self::new(fresh(segments.to_vec()));
        assert_eq!(simulation.handle(Input::Tick), [Action::Connect]);
        assert_eq!(simulation.handle(Input::Connected), [Action::Probe]);
        let establish = Action::Establish {
            segments: segments.to_vec(),
            stale: Vec::new(),
        };
        assert_eq!(simulation.handle(Input::Proven), [establish]);
        assert_eq!(
            simulation.handle(Input::Established),
            [Action::Ping, Action::FetchTasks]
        );
        assert_eq!(simulation.handle(Input::Pong(ClientStatus::Ok)), []);
        simulation
    }
}

#[test]
fn a_mounted_session_pings_and_fetches_tasks_once_per_second() {
    let mut simulation = Simulation::mounted(&[segment(1)]);
    let begun = simulation.now;
    simulation.handle(Input::TasksFetched);
    assert_eq!(simulation.wake(), [Action::Ping, Action::FetchTasks]);
    assert_eq!(simulation.now - begun, Duration::from_secs(1));
    // Neither is answered, so no further call is made.
    assert_eq!(simulation.lifecycle.wake_at(), None);
    simulation.now += Duration::from_secs(10);
    assert_eq!(simulation.handle(Input::Tick), []);
    assert_eq!(
        simulation.handle(Input::Pong(ClientStatus::Ok)),
        [Action::Ping]
    );
}

#[test]
fn no_segment_is_mounted_before_the_probe_succeeds() {
    let mut simulation = Simulation::new(fresh(vec![segment(1)]));
    simulation.handle(Input::Tick);
    assert_eq!(simulation.handle(Input::Connected), [Action::Probe]);
    assert_eq!(
        simulation.handle(Input::Skewed(skew())),
        [Action::Disconnect]
    );
    assert!(matches!(simulation.lifecycle.state(), State::Skew(_)));
    let begun = simulation.now;
    assert_eq!(simulation.wake(), [Action::Connect]);
    assert_eq!(simulation.now - begun, Settings::default().refused_retry);
    // The master was replaced by one with the supported release.
    assert_eq!(simulation.handle(Input::Connected), [Action::Probe]);
    assert!(matches!(
        simulation.handle(Input::Proven)[..],
        [Action::Establish { .. }]
    ));
}

#[test]
fn after_an_epoch_loss_only_new_segments_are_mounted() {
    let mut simulation = Simulation::mounted(&[segment(1), segment(2)]);
    simulation.handle(Input::TasksFetched);
    simulation.wake();
    assert_eq!(
        simulation.handle(Input::Pong(ClientStatus::NeedRemount)),
        [Action::EndTasks]
    );
    let State::EpochLost {
        epoch: 1,
        reason: EpochEnd::Forgotten,
        ..
    } = simulation.lifecycle.state()
    else {
        panic!("{}", simulation.lifecycle.state());
    };
    simulation.handle(Input::TasksFetched);
    assert_eq!(simulation.lifecycle.wake_at(), None);
    let stale_answer = Input::BeginEpoch {
        epoch: 0,
        segments: vec![segment(3)],
    };
    assert_eq!(simulation.handle(stale_answer), []);

    let answer = Input::BeginEpoch {
        epoch: 1,
        segments: vec![segment(3)],
    };
    let establish = Action::Establish {
        segments: vec![segment(3)],
        stale: vec![id(1), id(2)],
    };
    assert_eq!(simulation.handle(answer), [establish]);
}

#[test]
fn a_successor_pings_first_and_mounts_nothing_that_the_master_has() {
    let mut simulation = Simulation::new(take_over(vec![segment(1)]));
    simulation.handle(Input::Tick);
    assert_eq!(simulation.handle(Input::Connected), [Action::Ping]);
    assert_eq!(
        simulation.handle(Input::Pong(ClientStatus::Ok)),
        [Action::Probe]
    );
    assert!(matches!(
        simulation.lifecycle.state(),
        State::Mounted { .. }
    ));
    assert_eq!(simulation.handle(Input::Proven), [Action::FetchTasks]);
}

#[test]
fn a_successor_only_pings_a_master_of_another_release() {
    let mut simulation = Simulation::new(take_over(vec![segment(1)]));
    simulation.handle(Input::Tick);
    simulation.handle(Input::Connected);
    simulation.handle(Input::Pong(ClientStatus::Ok));
    assert_eq!(simulation.handle(Input::Skewed(skew())), []);
    assert!(matches!(simulation.lifecycle.state(), State::Skew(_)));
    assert_eq!(simulation.handle(Input::Add(segment(2))), []);
    assert_eq!(simulation.wake(), [Action::Ping]);
    assert_eq!(
        simulation.handle(Input::Pong(ClientStatus::NeedRemount)),
        [Action::EndTasks, Action::Disconnect]
    );
}

#[test]
fn an_additional_mount_waits_for_a_ping_on_this_connection() {
    let mut simulation = Simulation::mounted(&[segment(1)]);
    assert_eq!(
        simulation.handle(Input::Failed(failure())),
        [Action::Disconnect]
    );
    simulation.handle(Input::Add(segment(2)));
    assert_eq!(simulation.wake(), [Action::Connect]);
    assert_eq!(simulation.handle(Input::Connected), [Action::Ping]);
    assert_eq!(
        simulation.handle(Input::Pong(ClientStatus::Ok)),
        [Action::Probe]
    );
    assert_eq!(
        simulation.handle(Input::Proven),
        [Action::Mount(segment(2))]
    );
}

#[test]
fn a_mount_without_an_answer_ends_the_epoch_unless_the_master_confirms_it() {
    let establishing = || {
        let mut simulation = Simulation::new(fresh(vec![segment(1)]));
        simulation.handle(Input::Tick);
        simulation.handle(Input::Connected);
        simulation.handle(Input::Proven);
        assert_eq!(
            simulation.handle(Input::Failed(failure())),
            [Action::Disconnect]
        );
        simulation.wake();
        assert_eq!(simulation.handle(Input::Connected), [Action::Ping]);
        simulation
    };
    let mut confirmed = establishing();
    confirmed.handle(Input::Pong(ClientStatus::Ok));
    assert!(matches!(confirmed.lifecycle.state(), State::Mounted { .. }));
    let mut unknown = establishing();
    unknown.handle(Input::Pong(ClientStatus::NeedRemount));
    unknown.handle(Input::Proven);
    assert!(matches!(unknown.lifecycle.state(), State::EpochLost { .. }));
}

#[test]
fn stale_segments_are_unmounted_again_after_a_broken_connection() {
    let mut simulation = Simulation::mounted(&[segment(1)]);
    simulation.handle(Input::TasksFetched);
    simulation.wake();
    simulation.handle(Input::Pong(ClientStatus::NeedRemount));
    let State::EpochLost { epoch, stale, .. } = simulation.lifecycle.state() else {
        panic!("{}", simulation.lifecycle.state());
    };
    assert_eq!(stale, [id(1)]);
    let segments = vec![segment(2)];
    simulation.handle(Input::BeginEpoch { epoch, segments });
    // The connection breaks before the answer. The master has carried out a part.
    simulation.handle(Input::Failed(failure()));
    simulation.wake();
    assert_eq!(simulation.handle(Input::Connected), [Action::Ping]);
    simulation.handle(Input::Pong(ClientStatus::Ok));
    let actions = simulation.handle(Input::Proven);
    assert!(actions.contains(&Action::Mount(segment(2))), "{actions:?}");
    assert!(
        actions.contains(&Action::Unmount(vec![id(1)])),
        "{actions:?}"
    );
    // A rejection is retried, and an answer ends it.
    assert_eq!(simulation.handle(Input::UnmountRefused), []);
    simulation.handle(Input::Mounted(id(2)));
    simulation.now += Settings::default().refused_retry;
    let actions = simulation.handle(Input::Tick);
    assert!(
        actions.contains(&Action::Unmount(vec![id(1)])),
        "{actions:?}"
    );
    simulation.handle(Input::Unmounted);
    simulation.now += Settings::default().refused_retry;
    let actions = simulation.handle(Input::Tick);
    assert!(!actions.iter().any(|one| matches!(one, Action::Unmount(_))));
}

#[test]
fn a_successor_unmounts_what_its_predecessor_left() {
    let mut simulation = Simulation::new(Origin::TakeOver {
        segments: vec![segment(2)],
        former: vec![id(1)],
    });
    simulation.handle(Input::Tick);
    simulation.handle(Input::Connected);
    simulation.handle(Input::Pong(ClientStatus::Ok));
    assert_eq!(
        simulation.handle(Input::Proven),
        [Action::Unmount(vec![id(1)]), Action::FetchTasks]
    );
}

#[test]
fn a_rejected_mount_of_all_segments_ends_the_epoch_and_delays_the_next() {
    let mut simulation = Simulation::new(fresh(vec![segment(1)]));
    simulation.handle(Input::Tick);
    simulation.handle(Input::Connected);
    simulation.handle(Input::Proven);
    assert_eq!(
        simulation.handle(Input::EstablishRefused(failure())),
        [Action::EndTasks]
    );
    let State::EpochLost {
        epoch,
        reason: EpochEnd::Refused(_),
        ..
    } = simulation.lifecycle.state()
    else {
        panic!("{}", simulation.lifecycle.state());
    };
    assert_eq!(
        simulation.handle(Input::BeginEpoch {
            epoch,
            segments: vec![segment(2)]
        }),
        []
    );
    let begun = simulation.now;
    assert!(matches!(simulation.wake()[..], [Action::Establish { .. }]));
    assert_eq!(simulation.now - begun, Settings::default().refused_retry);
}

#[test]
fn unmounted_segments_are_not_lost() {
    let mut simulation = Simulation::mounted(&[segment(1)]);
    simulation.handle(Input::TasksFetched);
    simulation.handle(Input::Forget(id(1)));
    assert!(
        matches!(simulation.lifecycle.state(), State::Mounted { mounted, .. } if mounted.is_empty())
    );
    simulation.wake();
    simulation.handle(Input::TasksFetched);
    assert_eq!(
        simulation.handle(Input::Pong(ClientStatus::NeedRemount)),
        []
    );
    assert!(matches!(simulation.lifecycle.state(), State::Ready));
    let establish = Action::Establish {
        segments: vec![segment(2)],
        stale: Vec::new(),
    };
    assert_eq!(simulation.handle(Input::Add(segment(2))), [establish]);
}

#[test]
fn reconnect_delays_double_up_to_the_maximum() {
    let mut simulation = Simulation::mounted(&[segment(1)]);
    let begun = simulation.now;
    let mut full = Settings::default().backoff_least;
    for _ in 0..12 {
        assert_eq!(
            simulation.handle(Input::Failed(failure())),
            [Action::Disconnect]
        );
        let failed = simulation.now;
        assert_eq!(simulation.wake(), [Action::Connect]);
        let waited = simulation.now - failed;
        assert!(
            (full / 2..=full).contains(&waited),
            "{waited:?} of {full:?}"
        );
        full = (full * 2).min(Settings::default().backoff_most);
    }
    // Unreachable since the first failure, until the first answer.
    assert!(
        matches!(simulation.lifecycle.state(), State::Unreachable { since, .. } if since == begun)
    );
    simulation.handle(Input::Connected);
    simulation.handle(Input::Pong(ClientStatus::Ok));
    assert!(matches!(
        simulation.lifecycle.state(),
        State::Mounted { .. }
    ));
    simulation.handle(Input::Failed(failure()));
    let failed = simulation.now;
    simulation.wake();
    assert!(simulation.now - failed <= Settings::default().backoff_least);
}

/// Generates inputs in any order.
fn any_input() -> impl Strategy<Value = (u64, u64)> {
    (0_u64..16, 1_u64..200)
}

fn input(kind: u64, number: u64) -> Input {
    match kind {
        0 => Input::Connected,
        1 => Input::Failed(failure()),
        2 => Input::Proven,
        3 => Input::Skewed(skew()),
        4 | 5 => Input::Pong(ClientStatus::Ok),
        6 => Input::Pong(ClientStatus::NeedRemount),
        7 => Input::Established,
        8 => Input::EstablishRefused(failure()),
        9 => Input::Mounted(id(number)),
        10 => Input::TasksFetched,
        11 => Input::Forget(id(number)),
        12 => Input::Add(segment(number)),
        14 => Input::Unmounted,
        15 => Input::UnmountRefused,
        _ => Input::Tick,
    }
}

proptest! {
    /// Answers only pending calls, as the driver does. Then no mount precedes the probe, no segment of a
    /// lost epoch is mounted again, and no call is duplicated.
    #[test]
    fn no_order_of_events_breaks_the_invariants(events in prop::collection::vec(any_input(), 0..400)) {
        let mut simulation = Simulation::new(fresh(vec![segment(1)]));
        let mut pending: Vec<&str> = Vec::new();
        let (mut proven, mut known) = (false, false);
        let mut dead: BTreeSet<Uuid> = BTreeSet::new();
        let mut next = 1000;
        for (kind, number) in events {
            let answers = match kind {
                0 => "connect",
                2 | 3 => "probe",
                4..=6 => "ping",
                7 | 8 => "establish",
                9 => "mount",
                10 => "fetch",
                14 | 15 => "unmount",
                _ => "",
            };
            if !answers.is_empty() {
                let Some(at) = pending.iter().position(|call| *call == answers) else { continue };
                pending.remove(at);
            }
            if kind == 1 && pending.is_empty() {
                continue;
            }
            // The caller never reuses an ID.
            let number = if kind == 12 { next += 1; next } else { number };
            match kind {
                2 => proven = true,
                4 | 5 | 7 => known = true,
                6 => known = false,
                _ => {}
            }
            simulation.now += Duration::from_millis(number);
            let mut actions = simulation.handle(input(kind, number));
            if let State::EpochLost { epoch, .. } = simulation.lifecycle.state() {
                dead.extend(&simulation.lifecycle.stale);
                next += 1;
                let segments = vec![segment(next)];
                actions.extend(simulation.handle(Input::BeginEpoch { epoch, segments }));
            }
            for action in actions {
                let call = match &action {
                    Action::Connect => "connect",
                    Action::Probe => "probe",
                    Action::Ping => "ping",
                    Action::FetchTasks => "fetch",
                    Action::EndTasks => {
                        let lost = matches!(simulation.lifecycle.offer, Offer::Lost(_) | Offer::Unsent);
                        prop_assert!(lost || simulation.lifecycle.epoch > 0);
                        continue;
                    }
                    Action::Disconnect => {
                        pending.clear();
                        (proven, known) = (false, false);
                        continue;
                    }
                    Action::Establish { segments, .. } => {
                        prop_assert!(proven && !segments.is_empty());
                        prop_assert!(segments.iter().all(|segment| !dead.contains(&segment.id)));
                        "establish"
                    }
                    Action::Mount(segment) => {
                        prop_assert!(proven && known && !dead.contains(&segment.id));
                        "mount"
                    }
                    Action::Unmount(stale) => {
                        prop_assert!(proven && known && !stale.is_empty());
                        prop_assert!(stale.iter().all(|id| dead.contains(id)));
                        "unmount"
                    }
                };
                prop_assert!(!pending.contains(&call), "{} twice", call);
                pending.push(call);
            }
        }
    }
}

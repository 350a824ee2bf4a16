//! The session's decisions, with time as a number.

use proptest::prelude::*;

use super::*;
use crate::generation::{Generation, LooksLike};
use crate::master::{Cause, Stage};

struct World {
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

fn trouble() -> Error {
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
        ours: Generation::V0_3_13,
        looks_like: LooksLike::V0_3_12,
        protocol: "2.0.0".into(),
        mismatches: Vec::new(),
    })
}

impl World {
    fn new(origin: Origin) -> Self {
        let now = Instant::now();
        Self {
            lifecycle: Lifecycle::new(Settings::default(), origin, now, 7),
            now,
        }
    }

    fn hear(&mut self, input: Input) -> Vec<Action> {
        self.lifecycle.handle(input, self.now)
    }

    /// Jumps to the next alarm.
    fn wake(&mut self) -> Vec<Action> {
        self.now = self
            .now
            .max(self.lifecycle.wake_at().expect("an alarm is set"));
        self.hear(Input::Tick)
    }

    fn mounted(segments: &[Segment]) -> Self {
        let mut world = Self::new(fresh(segments.to_vec()));
        assert_eq!(world.hear(Input::Tick), [Action::Connect]);
        assert_eq!(world.hear(Input::Connected), [Action::Probe]);
        let establish = Action::Establish {
            segments: segments.to_vec(),
            stale: Vec::new(),
        };
        assert_eq!(world.hear(Input::Proven), [establish]);
        assert_eq!(
            world.hear(Input::Established),
            [Action::Ping, Action::FetchTasks]
        );
        assert_eq!(world.hear(Input::Pong(ClientStatus::Ok)), []);
        world
    }
}

#[test]
fn a_mounted_session_pings_and_fetches_each_second_and_not_twice_at_once() {
    let mut world = World::mounted(&[segment(1)]);
    let begun = world.now;
    world.hear(Input::TasksFetched);
    assert_eq!(world.wake(), [Action::Ping, Action::FetchTasks]);
    assert_eq!(world.now - begun, Duration::from_secs(1));
    // Neither is answered: nothing more is asked, however long it lasts.
    assert_eq!(world.lifecycle.wake_at(), None);
    world.now += Duration::from_secs(10);
    assert_eq!(world.hear(Input::Tick), []);
    assert_eq!(world.hear(Input::Pong(ClientStatus::Ok)), [Action::Ping]);
}

#[test]
fn no_segment_is_offered_to_a_master_whose_schemas_were_not_proven() {
    let mut world = World::new(fresh(vec![segment(1)]));
    world.hear(Input::Tick);
    assert_eq!(world.hear(Input::Connected), [Action::Probe]);
    assert_eq!(world.hear(Input::Skewed(skew())), [Action::Disconnect]);
    assert!(matches!(world.lifecycle.state(), State::Skew(_)));
    let begun = world.now;
    assert_eq!(world.wake(), [Action::Connect]);
    assert_eq!(world.now - begun, Settings::default().refused_retry);
    // It was replaced by one of our generation.
    assert_eq!(world.hear(Input::Connected), [Action::Probe]);
    assert!(matches!(
        world.hear(Input::Proven)[..],
        [Action::Establish { .. }]
    ));
}

#[test]
fn a_master_that_lost_us_gets_nothing_until_the_caller_gave_new_segments() {
    let mut world = World::mounted(&[segment(1), segment(2)]);
    world.hear(Input::TasksFetched);
    world.wake();
    assert_eq!(world.hear(Input::Pong(ClientStatus::NeedRemount)), []);
    let State::EpochLost {
        epoch: 1,
        reason: EpochEnd::Forgotten,
    } = world.lifecycle.state()
    else {
        panic!("{}", world.lifecycle.state());
    };
    world.hear(Input::TasksFetched);
    assert_eq!(world.lifecycle.wake_at(), None);
    let stale_answer = Input::BeginEpoch {
        epoch: 0,
        segments: vec![segment(3)],
    };
    assert_eq!(world.hear(stale_answer), []);

    let answer = Input::BeginEpoch {
        epoch: 1,
        segments: vec![segment(3)],
    };
    let establish = Action::Establish {
        segments: vec![segment(3)],
        stale: vec![id(1), id(2)],
    };
    assert_eq!(world.hear(answer), [establish]);
}

#[test]
fn a_successor_pings_first_and_mounts_nothing_that_the_master_has() {
    let mut world = World::new(Origin::TakeOver(vec![segment(1)]));
    world.hear(Input::Tick);
    assert_eq!(world.hear(Input::Connected), [Action::Ping]);
    assert_eq!(world.hear(Input::Pong(ClientStatus::Ok)), [Action::Probe]);
    assert!(matches!(world.lifecycle.state(), State::Mounted { .. }));
    assert_eq!(world.hear(Input::Proven), [Action::FetchTasks]);
}

#[test]
fn a_successor_of_another_generation_keeps_the_client_alive_and_does_no_more() {
    let mut world = World::new(Origin::TakeOver(vec![segment(1)]));
    world.hear(Input::Tick);
    world.hear(Input::Connected);
    world.hear(Input::Pong(ClientStatus::Ok));
    assert_eq!(world.hear(Input::Skewed(skew())), []);
    assert!(matches!(world.lifecycle.state(), State::Skew(_)));
    assert_eq!(world.hear(Input::Add(segment(2))), []);
    assert_eq!(world.wake(), [Action::Ping]);
    assert_eq!(
        world.hear(Input::Pong(ClientStatus::NeedRemount)),
        [Action::Disconnect]
    );
}

#[test]
fn a_mount_in_addition_waits_until_the_master_on_this_connection_knows_us() {
    let mut world = World::mounted(&[segment(1)]);
    assert_eq!(world.hear(Input::Failed(trouble())), [Action::Disconnect]);
    world.hear(Input::Add(segment(2)));
    assert_eq!(world.wake(), [Action::Connect]);
    assert_eq!(world.hear(Input::Connected), [Action::Ping]);
    assert_eq!(world.hear(Input::Pong(ClientStatus::Ok)), [Action::Probe]);
    assert_eq!(world.hear(Input::Proven), [Action::Mount(segment(2))]);
}

#[test]
fn a_mount_whose_answer_was_lost_ends_the_epoch_unless_the_master_confirms_it() {
    let establishing = || {
        let mut world = World::new(fresh(vec![segment(1)]));
        world.hear(Input::Tick);
        world.hear(Input::Connected);
        world.hear(Input::Proven);
        assert_eq!(world.hear(Input::Failed(trouble())), [Action::Disconnect]);
        world.wake();
        assert_eq!(world.hear(Input::Connected), [Action::Ping]);
        world
    };
    let mut confirmed = establishing();
    confirmed.hear(Input::Pong(ClientStatus::Ok));
    assert!(matches!(confirmed.lifecycle.state(), State::Mounted { .. }));
    let mut unknown = establishing();
    unknown.hear(Input::Pong(ClientStatus::NeedRemount));
    unknown.hear(Input::Proven);
    assert!(matches!(unknown.lifecycle.state(), State::EpochLost { .. }));
}

#[test]
fn a_refused_mount_of_all_is_an_epoch_of_its_own_and_the_next_one_waits() {
    let mut world = World::new(fresh(vec![segment(1)]));
    world.hear(Input::Tick);
    world.hear(Input::Connected);
    world.hear(Input::Proven);
    assert_eq!(world.hear(Input::EstablishRefused(trouble())), []);
    let State::EpochLost {
        epoch,
        reason: EpochEnd::Refused(_),
    } = world.lifecycle.state()
    else {
        panic!("{}", world.lifecycle.state());
    };
    assert_eq!(
        world.hear(Input::BeginEpoch {
            epoch,
            segments: vec![segment(2)]
        }),
        []
    );
    let begun = world.now;
    assert!(matches!(world.wake()[..], [Action::Establish { .. }]));
    assert_eq!(world.now - begun, Settings::default().refused_retry);
}

#[test]
fn segments_that_were_given_back_leave_nothing_to_lose() {
    let mut world = World::mounted(&[segment(1)]);
    world.hear(Input::TasksFetched);
    world.hear(Input::Forget(id(1)));
    assert!(
        matches!(world.lifecycle.state(), State::Mounted { mounted, .. } if mounted.is_empty())
    );
    world.wake();
    world.hear(Input::TasksFetched);
    assert_eq!(world.hear(Input::Pong(ClientStatus::NeedRemount)), []);
    assert!(matches!(world.lifecycle.state(), State::Ready));
    let establish = Action::Establish {
        segments: vec![segment(2)],
        stale: Vec::new(),
    };
    assert_eq!(world.hear(Input::Add(segment(2))), [establish]);
}

#[test]
fn reconnects_wait_twice_as_long_each_time_up_to_the_most() {
    let mut world = World::mounted(&[segment(1)]);
    let begun = world.now;
    let mut full = Settings::default().backoff_least;
    for _ in 0..12 {
        assert_eq!(world.hear(Input::Failed(trouble())), [Action::Disconnect]);
        let failed = world.now;
        assert_eq!(world.wake(), [Action::Connect]);
        let waited = world.now - failed;
        assert!(
            (full / 2..=full).contains(&waited),
            "{waited:?} of {full:?}"
        );
        full = (full * 2).min(Settings::default().backoff_most);
    }
    // It has been away since the first failure, and is back with the first answer.
    assert!(matches!(world.lifecycle.state(), State::Unreachable { since, .. } if since == begun));
    world.hear(Input::Connected);
    world.hear(Input::Pong(ClientStatus::Ok));
    assert!(matches!(world.lifecycle.state(), State::Mounted { .. }));
    world.hear(Input::Failed(trouble()));
    let failed = world.now;
    world.wake();
    assert!(world.now - failed <= Settings::default().backoff_least);
}

/// What may be heard at any time, in any order.
fn any_input() -> impl Strategy<Value = (u64, u64)> {
    (0_u64..14, 1_u64..200)
}

fn input(kind: u64, number: u64) -> Input {
    match kind {
        0 => Input::Connected,
        1 => Input::Failed(trouble()),
        2 => Input::Proven,
        3 => Input::Skewed(skew()),
        4 | 5 => Input::Pong(ClientStatus::Ok),
        6 => Input::Pong(ClientStatus::NeedRemount),
        7 => Input::Established,
        8 => Input::EstablishRefused(trouble()),
        9 => Input::Mounted(id(number)),
        10 => Input::TasksFetched,
        11 => Input::Forget(id(number)),
        12 => Input::Add(segment(number)),
        _ => Input::Tick,
    }
}

proptest! {
    /// Only answers to what was asked are given, as the driver does; then, whatever they are, no
    /// mount precedes its proof, nothing of a lost epoch is offered again, no call doubles.
    #[test]
    fn no_order_of_events_breaks_the_rules(events in prop::collection::vec(any_input(), 0..400)) {
        let mut world = World::new(fresh(vec![segment(1)]));
        let mut asked: Vec<&str> = Vec::new();
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
                _ => "",
            };
            if !answers.is_empty() {
                let Some(at) = asked.iter().position(|call| *call == answers) else { continue };
                asked.remove(at);
            }
            if kind == 1 && asked.is_empty() {
                continue;
            }
            // Ids are never used twice by the caller.
            let number = if kind == 12 { next += 1; next } else { number };
            match kind {
                2 => proven = true,
                4 | 5 | 7 => known = true,
                6 => known = false,
                _ => {}
            }
            world.now += Duration::from_millis(number);
            let mut actions = world.hear(input(kind, number));
            if let State::EpochLost { epoch, .. } = world.lifecycle.state() {
                dead.extend(&world.lifecycle.stale);
                next += 1;
                let segments = vec![segment(next)];
                actions.extend(world.hear(Input::BeginEpoch { epoch, segments }));
            }
            for action in actions {
                let call = match &action {
                    Action::Connect => "connect",
                    Action::Probe => "probe",
                    Action::Ping => "ping",
                    Action::FetchTasks => "fetch",
                    Action::Disconnect => {
                        asked.clear();
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
                };
                prop_assert!(!asked.contains(&call), "{} twice", call);
                asked.push(call);
            }
        }
    }
}

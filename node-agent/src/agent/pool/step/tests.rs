//! The decision, question by question.

use super::*;

/// A pod that was just found and stands in the spec.
fn found() -> Facts {
    Facts {
        listed: Listed::Yes,
        runs: true,
        ending: false,
        attached: false,
        record: RecordFact::Unread,
        address_proven: false,
        granted: false,
        predecessor: None,
        mapped: false,
        untouched: None,
        touching: false,
        hosted: false,
        master: MasterFact::Fresh,
        session: SessionFact::None,
        in_master: false,
        said_drained: false,
        told_serving: None,
    }
}

fn serving() -> Facts {
    Facts {
        attached: true,
        record: RecordFact::Ours,
        address_proven: true,
        granted: true,
        mapped: true,
        hosted: true,
        master: MasterFact::Same,
        session: SessionFact::Mounted,
        in_master: true,
        told_serving: Some(true),
        ..found()
    }
}

/// Carries actions out on the facts, as if everything succeeded.
fn succeed(facts: &mut Facts, action: Action) {
    match action {
        Action::Attach => facts.attached = true,
        Action::ReadRecord => facts.record = RecordFact::None,
        Action::ProveAddress => facts.address_proven = true,
        Action::Grant => {
            facts.granted = true;
            facts.untouched = Some(0);
        }
        Action::Map => facts.mapped = true,
        Action::Touch(_) => facts.untouched = None,
        Action::Begin => facts.record = RecordFact::Ours,
        Action::Host => facts.hosted = true,
        Action::StartSession | Action::RenewEpoch => {
            facts.session = SessionFact::Mounted;
            facts.in_master = true;
            facts.master = MasterFact::Same;
        }
        Action::ChangeMaster => {
            facts.session = SessionFact::None;
            facts.master = MasterFact::Fresh;
        }
        Action::AdoptMaster => facts.master = MasterFact::Same,
        Action::TellServing(serving) => facts.told_serving = Some(serving),
        Action::Unmount { .. } => {
            facts.session = SessionFact::None;
            facts.in_master = false;
        }
        Action::Release => {
            facts.mapped = false;
            facts.hosted = false;
        }
        Action::SayDrained => {
            facts.said_drained = true;
            assert_eq!(step(facts).action, None, "said once");
            facts.runs = false;
        }
        Action::Finish => {}
    }
}

fn run(mut facts: Facts) -> (Vec<Action>, Step) {
    let mut done = Vec::new();
    for _ in 0..32 {
        let now = step(&facts);
        match now.action {
            None => return (done, now),
            Some(Action::Finish) => {
                done.push(Action::Finish);
                return (done, now);
            }
            Some(action) => {
                done.push(action);
                succeed(&mut facts, action);
            }
        }
    }
    panic!("no end: {done:?}");
}

#[test]
fn a_new_pod_goes_from_found_to_serving_in_this_order() {
    let (done, last) = run(found());
    let expected = [
        Action::Attach,
        Action::ReadRecord,
        Action::ProveAddress,
        Action::Grant,
        Action::Map,
        Action::Touch(0),
        Action::Begin,
        Action::Host,
        Action::StartSession,
        Action::TellServing(true),
    ];
    assert_eq!(done, expected);
    assert_eq!(
        (last.state, last.reason),
        (PoolState::Serving, Reason::AsExpected)
    );
}

#[test]
fn a_successor_serves_what_the_record_tells_without_the_api() {
    let taken_over = Facts {
        listed: Listed::Unknown,
        attached: true,
        record: RecordFact::Ours,
        granted: true,
        master: MasterFact::Same,
        ..found()
    };
    let (done, last) = run(taken_over);
    let expected = [
        Action::ProveAddress,
        Action::Map,
        Action::Host,
        Action::StartSession,
        Action::TellServing(true),
    ];
    assert_eq!(done, expected);
    assert_eq!(last.state, PoolState::Serving);
}

#[test]
fn nothing_is_granted_before_the_spec_names_the_pod() {
    let unlisted = Facts {
        listed: Listed::Unknown,
        ..found()
    };
    let (done, last) = run(unlisted);
    assert!(!done.contains(&Action::Grant));
    assert_eq!(last.reason, Reason::WaitingForGrant);
}

#[test]
fn an_earlier_pod_that_keeps_its_memory_is_named_after_a_minute() {
    let waiting = |seconds| Facts {
        attached: true,
        record: RecordFact::None,
        address_proven: true,
        predecessor: Some(Duration::from_secs(seconds)),
        ..found()
    };
    assert_eq!(step(&waiting(59)).reason, Reason::WaitingForGrant);
    assert_eq!(step(&waiting(61)).reason, Reason::PreviousPoolNotReleased);
}

#[test]
fn a_drain_unmounts_gracefully_then_unmaps_then_says_so() {
    let draining = Facts {
        ending: true,
        ..serving()
    };
    let (done, _) = run(draining);
    let expected = [
        Action::Unmount { graceful: true },
        Action::Release,
        Action::SayDrained,
        Action::Finish,
    ];
    assert_eq!(done, expected);
}

#[test]
fn a_successor_of_a_draining_pods_agent_reads_the_record_and_unmounts() {
    let draining = Facts {
        ending: true,
        attached: true,
        ..found()
    };
    assert_eq!(step(&draining).action, Some(Action::ReadRecord));
    let read = Facts {
        record: RecordFact::Ours,
        in_master: true,
        ..draining
    };
    let (done, _) = run(read);
    let expected = [
        Action::Unmount { graceful: true },
        Action::SayDrained,
        Action::Finish,
    ];
    assert_eq!(done, expected);
}

#[test]
fn a_dead_pool_process_leaves_the_master_at_once() {
    let dead = Facts {
        runs: false,
        attached: false,
        ..serving()
    };
    let (done, last) = run(dead);
    let expected = [
        Action::Unmount { graceful: false },
        Action::Release,
        Action::Finish,
    ];
    assert_eq!(done, expected);
    assert_eq!(last.reason, Reason::PoolPodGone);
}

#[test]
fn a_pod_that_left_the_spec_is_unmounted_and_kept_in_sight_until_its_process_ends() {
    let delisted = Facts {
        listed: Listed::No,
        ..serving()
    };
    let (done, last) = run(delisted);
    assert_eq!(done, [Action::Unmount { graceful: false }, Action::Release]);
    assert_eq!(last.state, PoolState::Released);
}

#[test]
fn the_api_being_away_or_without_a_master_changes_nothing_that_serves() {
    let away = Facts {
        listed: Listed::Unknown,
        ..serving()
    };
    assert_eq!(step(&away).action, None);
    assert_eq!(step(&away).state, PoolState::Serving);
    let unreachable = Facts {
        session: SessionFact::Unreachable,
        ..serving()
    };
    assert_eq!(step(&unreachable).action, None);
    assert_eq!(step(&unreachable).reason, Reason::MasterUnreachable);
}

#[test]
fn a_master_that_lost_the_index_gets_new_segments_and_never_the_old_ones() {
    let lost = Facts {
        session: SessionFact::Lost,
        ..serving()
    };
    assert_eq!(step(&lost).action, Some(Action::RenewEpoch));
    let other = Facts {
        master: MasterFact::Other,
        ..serving()
    };
    let (done, last) = run(other);
    assert_eq!(done, [Action::ChangeMaster, Action::StartSession]);
    assert_eq!(last.state, PoolState::Serving);
}

#[test]
fn a_master_of_another_generation_makes_the_pod_unready() {
    let skew = Facts {
        session: SessionFact::Skew,
        ..serving()
    };
    assert_eq!(step(&skew).action, Some(Action::TellServing(false)));
    assert_eq!(step(&skew).reason, Reason::EngineVersionSkew);
    let told = Facts {
        told_serving: Some(false),
        ..skew
    };
    assert_eq!(step(&told).action, None);
}

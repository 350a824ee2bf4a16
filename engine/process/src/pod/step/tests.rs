//! Tests of the decision.

use super::*;

/// A pod that was just found and is in the spec.
fn found() -> Facts {
    Facts {
        listed: Listed::Yes,
        running: true,
        draining: false,
        evacuation: EvacuationFact::Unsupported,
        attached: false,
        record: RecordFact::Unread,
        address_verified: false,
        granted: false,
        predecessor: None,
        mapped: false,
        untouched: None,
        touching: false,
        peers: PeersFact::None,
        metadata: MetadataFact::NotUsed,
        master: MasterFact::Fresh,
        session: SessionFact::None,
        maybe_mounted: false,
        drained_reported: false,
        reported_serving: None,
    }
}

fn serving() -> Facts {
    Facts {
        attached: true,
        record: RecordFact::Ours,
        address_verified: true,
        granted: true,
        mapped: true,
        peers: PeersFact::Served,
        master: MasterFact::Same,
        session: SessionFact::Mounted,
        maybe_mounted: true,
        reported_serving: Some(true),
        ..found()
    }
}

/// Applies a successful action to the facts.
fn succeed(facts: &mut Facts, action: Action) {
    match action {
        Action::Attach => facts.attached = true,
        Action::ReadRecord => facts.record = RecordFact::None,
        Action::VerifyAddress => facts.address_verified = true,
        Action::Grant => {
            facts.granted = true;
            facts.untouched = Some(0);
        }
        Action::Map => facts.mapped = true,
        Action::Touch(_) => facts.untouched = None,
        Action::CreateRecord => facts.record = RecordFact::Ours,
        Action::ServePeers => facts.peers = PeersFact::Served,
        Action::StartSession | Action::RenewEpoch => {
            facts.session = SessionFact::Mounted;
            facts.maybe_mounted = true;
            facts.master = MasterFact::Same;
        }
        Action::ChangeMaster => {
            facts.session = SessionFact::None;
            facts.master = MasterFact::Fresh;
        }
        Action::AdoptMaster => facts.master = MasterFact::Same,
        Action::Evacuate => facts.evacuation = EvacuationFact::Running,
        Action::ReportServing(serving) => facts.reported_serving = Some(serving),
        Action::Unmount { .. } => {
            facts.session = SessionFact::None;
            facts.maybe_mounted = false;
        }
        Action::Release => {
            facts.mapped = false;
            facts.peers = PeersFact::None;
        }
        Action::ReportDrained => {
            facts.drained_reported = true;
            assert_eq!(step(facts).action, None, "reported once");
            facts.running = false;
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
fn a_new_pod_is_served_after_these_actions() {
    let (done, last) = run(found());
    let expected = [
        Action::Attach,
        Action::ReadRecord,
        Action::VerifyAddress,
        Action::Grant,
        Action::Map,
        Action::Touch(0),
        Action::CreateRecord,
        Action::ServePeers,
        Action::StartSession,
        Action::ReportServing(true),
    ];
    assert_eq!(done, expected);
    assert_eq!(
        (last.state, last.reason),
        (PoolState::Serving, Reason::AsExpected)
    );
}

#[test]
fn a_successor_serves_from_the_record_without_the_api() {
    let taken_over = Facts {
        listed: Listed::Unknown,
        attached: true,
        record: RecordFact::Ours,
        granted: true,
        master: MasterFact::Same,
        maybe_mounted: true,
        ..found()
    };
    let (done, last) = run(taken_over);
    let expected = [
        Action::VerifyAddress,
        Action::Map,
        Action::ServePeers,
        Action::StartSession,
        Action::ReportServing(true),
    ];
    assert_eq!(done, expected);
    assert_eq!(last.state, PoolState::Serving);
}

#[test]
fn a_successor_keeps_the_keys_in_the_master_while_devices_register_its_memory() {
    let registering = |again| Facts {
        peers: PeersFact::Registering { again },
        session: SessionFact::None,
        reported_serving: None,
        ..serving()
    };
    let action = |facts: &Facts| step(facts).action;
    let first = registering(false);
    assert_eq!(action(&first), Some(Action::StartSession));
    let pinging = Facts {
        session: SessionFact::Mounted,
        ..first.clone()
    };
    assert_eq!(step(&pinging).action, None);
    assert_eq!(step(&pinging).state, PoolState::Preparing);
    for session in [SessionFact::Lost, SessionFact::LostByRefusal] {
        // The new epoch is registered when the former one is.
        assert_eq!(
            action(&Facts {
                session,
                ..first.clone()
            }),
            None
        );
    }
    // It would keep keys that no peer can read.
    assert_eq!(action(&registering(true)), None);
    for (master, maybe_mounted) in [
        (MasterFact::Fresh, false),
        (MasterFact::Other, true),
        (MasterFact::Same, false),
    ] {
        let other = Facts {
            master,
            maybe_mounted,
            ..first.clone()
        };
        assert_eq!(action(&other), None, "{master:?}");
    }
    // It drains as if it served, but moves objects only when it does.
    let draining = Facts {
        draining: true,
        evacuation: EvacuationFact::Due,
        ..pinging
    };
    assert_eq!(action(&draining), None);
    let released = Facts {
        draining: true,
        mapped: false,
        maybe_mounted: false,
        ..registering(true)
    };
    assert_eq!(action(&released), Some(Action::Release));
}

#[test]
fn a_registration_that_has_failed_is_tried_again_until_the_pod_is_released() {
    let failed = Facts {
        peers: PeersFact::Unregistered,
        session: SessionFact::None,
        maybe_mounted: false,
        reported_serving: None,
        ..serving()
    };
    assert_eq!(step(&failed).action, Some(Action::ServePeers));
    assert_eq!(step(&failed).state, PoolState::Preparing);
    let removed = |draining, mapped| Facts {
        listed: Listed::No,
        draining,
        mapped,
        ..failed.clone()
    };
    for (draining, mapped) in [(false, true), (false, false), (true, false)] {
        let action = step(&removed(draining, mapped)).action;
        assert_eq!(action, Some(Action::Release), "{draining} {mapped}");
    }
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
fn an_earlier_pod_that_keeps_its_memory_is_reported_after_a_minute() {
    let waiting = |seconds| Facts {
        attached: true,
        record: RecordFact::None,
        address_verified: true,
        predecessor: Some(Duration::from_secs(seconds)),
        ..found()
    };
    assert_eq!(step(&waiting(59)).reason, Reason::WaitingForGrant);
    assert_eq!(step(&waiting(61)).reason, Reason::PreviousPoolNotReleased);
}

#[test]
fn a_drain_unmounts_gracefully_then_unmaps_then_reports() {
    let draining = Facts {
        draining: true,
        ..serving()
    };
    let (done, _) = run(draining);
    let expected = [
        Action::Unmount { graceful: true },
        Action::Release,
        Action::ReportDrained,
        Action::Finish,
    ];
    assert_eq!(done, expected);
}

#[test]
fn a_successor_of_a_draining_pods_agent_reads_the_record_and_unmounts() {
    let draining = Facts {
        draining: true,
        attached: true,
        ..found()
    };
    assert_eq!(step(&draining).action, Some(Action::ReadRecord));
    let read = Facts {
        record: RecordFact::Ours,
        maybe_mounted: true,
        ..draining
    };
    let (done, _) = run(read);
    let expected = [
        Action::Unmount { graceful: true },
        Action::ReportDrained,
        Action::Finish,
    ];
    assert_eq!(done, expected);
}

#[test]
fn the_objects_of_a_draining_pod_move_before_it_is_unmounted_at_once() {
    let mut draining = Facts {
        draining: true,
        evacuation: EvacuationFact::Due,
        ..serving()
    };
    assert_eq!(step(&draining).action, Some(Action::Evacuate));
    succeed(&mut draining, Action::Evacuate);
    let running = step(&draining);
    assert_eq!(running.action, None);
    assert_eq!(running.state, PoolState::Draining);
    // Without an answer of the operator too.
    draining.listed = Listed::No;
    assert_eq!(step(&draining).action, None);
    draining.evacuation = EvacuationFact::Over;
    let (done, _) = run(draining);
    let expected = [
        Action::Unmount { graceful: false },
        Action::Release,
        Action::ReportDrained,
        Action::Finish,
    ];
    assert_eq!(done, expected);
}

#[test]
fn a_master_that_comes_back_during_the_move_gets_the_segments_again() {
    let moving = Facts {
        draining: true,
        evacuation: EvacuationFact::Running,
        ..serving()
    };
    let lost = Facts {
        session: SessionFact::Lost,
        ..moving.clone()
    };
    assert_eq!(step(&lost).action, Some(Action::RenewEpoch));
    let other = Facts {
        master: MasterFact::Other,
        evacuation: EvacuationFact::Due,
        ..moving.clone()
    };
    let (done, last) = run(other);
    let expected = [Action::ChangeMaster, Action::StartSession, Action::Evacuate];
    assert_eq!(done, expected);
    assert_eq!(last.state, PoolState::Draining);
    let ended = Facts {
        running: false,
        ..moving
    };
    assert_eq!(
        step(&ended).action,
        Some(Action::Unmount { graceful: false })
    );
}

#[test]
fn an_ended_pool_process_is_unmounted_at_once() {
    let dead = Facts {
        running: false,
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
fn a_pod_removed_from_the_spec_is_unmounted_and_its_task_runs_until_its_process_ends() {
    let delisted = Facts {
        listed: Listed::No,
        ..serving()
    };
    let (done, last) = run(delisted);
    assert_eq!(done, [Action::Unmount { graceful: false }, Action::Release]);
    assert_eq!(last.state, PoolState::Released);
}

#[test]
fn a_pod_that_is_listed_again_gets_a_new_epoch_in_the_same_master() {
    for master in [MasterFact::Same, MasterFact::Adoptable, MasterFact::Other] {
        let mut facts = Facts {
            listed: Listed::No,
            master,
            ..serving()
        };
        while let Some(action) = step(&facts).action {
            succeed(&mut facts, action);
        }
        assert!(!facts.maybe_mounted);
        facts.listed = Listed::Yes;
        let (done, last) = run(facts);
        let expected = [
            Action::Map,
            Action::ServePeers,
            Action::ChangeMaster,
            Action::StartSession,
        ];
        assert_eq!(done, expected, "{master:?}");
        assert_eq!(last.state, PoolState::Serving);
    }
}

#[test]
fn an_unavailable_api_or_master_does_not_stop_serving() {
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
fn a_master_that_lost_its_index_gets_a_new_epoch() {
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
fn a_fresh_mount_waits_for_the_metadata_service_and_one_that_exists_does_not() {
    let fresh = Facts {
        session: SessionFact::None,
        reported_serving: None,
        master: MasterFact::Fresh,
        ..serving()
    };
    for (metadata, action) in [
        (MetadataFact::NotUsed, Some(Action::StartSession)),
        (MetadataFact::Published, Some(Action::StartSession)),
        (MetadataFact::Unpublished, None),
    ] {
        let step = step(&Facts {
            metadata,
            ..fresh.clone()
        });
        assert_eq!(step.action, action, "{metadata:?}");
        assert_eq!(step.state, PoolState::Mounting);
    }
    // A successor of an engine process must ping before the master's client TTL ends.
    let taken_over = Facts {
        master: MasterFact::Same,
        metadata: MetadataFact::Unpublished,
        ..fresh
    };
    assert_eq!(step(&taken_over).action, Some(Action::StartSession));
    let mounted = Facts {
        metadata: MetadataFact::Unpublished,
        ..serving()
    };
    assert_eq!(step(&mounted).state, PoolState::Serving);
}

#[test]
fn a_master_of_another_release_makes_the_pod_unready() {
    let skew = Facts {
        session: SessionFact::Skew,
        ..serving()
    };
    assert_eq!(step(&skew).action, Some(Action::ReportServing(false)));
    assert_eq!(step(&skew).reason, Reason::EngineVersionSkew);
    let reported = Facts {
        reported_serving: Some(false),
        ..skew
    };
    assert_eq!(step(&reported).action, None);
}

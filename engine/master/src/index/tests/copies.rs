//! Copies and moves by clients, and the tasks for them. That answers equal those of the stock master is tested in
//! `tests/differential`.

use proto::store::release_0_3_13::{TaskCompleteRequest, TaskPayload, TaskStatus};

use proto::store::ledger::Ended;

use super::evacuation::{Pools, owner, written};
use super::*;
use crate::index::Wait;

const MIB: u64 = 1 << 20;
const MOVER: Uuid = Uuid {
    first: 70,
    second: 1,
};

fn names(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(|number| format!("s{number}")).collect()
}

fn copy(pools: &mut Pools, key: &str, targets: &[u64], now: Moment) -> Result<(), ErrorCode> {
    let index = &mut pools.index;
    index.copy_start(MOVER, key, "s0", &names(targets), now)?;
    index.copy_end(MOVER, key, now)
}

fn relocate(pools: &mut Pools, key: &str, target: u64, now: Moment) -> Result<(), ErrorCode> {
    let index = &mut pools.index;
    index.move_start(MOVER, key, "s0", &format!("s{target}"), now)?;
    index.move_end(MOVER, key, now)
}

/// The endpoints of a key, in order. The lookup of 10 s ends before the next call of a test.
fn endpoints(pools: &mut Pools, key: &str, now: Moment) -> Vec<String> {
    let found = pools.index.get_replica_list(key, now);
    let found = found.expect("the key is readable");
    let mut endpoints: Vec<_> = found.replicas().map(|view| view.endpoint.into()).collect();
    endpoints.sort();
    endpoints
}

fn nodes(numbers: &[u64]) -> Vec<String> {
    let endpoint = |number| format!("node{number}:12001");
    numbers.iter().map(endpoint).collect()
}

fn waits(index: &mut Index) -> Vec<Wait> {
    index.take_signals().waits
}

#[test]
fn a_copied_object_survives_its_first_owner_and_the_answer_waits_for_the_record() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    waits(&mut pools.index);
    copy(&mut pools, "k", &[1, 2], at(1)).unwrap();
    let mut end = waits(&mut pools.index);
    assert!(!pools.index.have_happened(&mut end));
    pools.follow_all(at(1));
    assert!(pools.index.have_happened(&mut end));
    assert_eq!(endpoints(&mut pools, "k", at(2)), nodes(&[0, 1, 2]));
    pools.index.unmount_segment(segment(0, MIB).id);
    pools.index.unmount_segment(segment(2, MIB).id);
    assert_eq!(endpoints(&mut pools, "k", at(20)), nodes(&[1]));
}

#[test]
fn a_copy_is_not_found_before_its_end() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let start = |pools: &mut Pools| {
        pools
            .index
            .copy_start(MOVER, "k", "s0", &names(&[1]), at(1))
    };
    start(&mut pools).unwrap();
    assert_eq!(start(&mut pools), Err(ErrorCode::ObjectHasReplicationTask));
    assert_eq!(endpoints(&mut pools, "k", at(2)), nodes(&[0]));
    let other = pools.index.copy_end(CLIENT, "k", at(2));
    assert_eq!(other, Err(ErrorCode::IllegalClient));
    let other = pools.index.move_end(MOVER, "k", at(2));
    assert_eq!(other, Err(ErrorCode::InvalidParams));
    pools.index.copy_end(MOVER, "k", at(2)).unwrap();
    assert_eq!(endpoints(&mut pools, "k", at(2)), nodes(&[0, 1]));
}

#[test]
fn the_source_of_a_move_leaves_after_the_target_is_recorded_and_its_readers_are_done() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    // A reader has a lease.
    pools.size("k", at(1)).unwrap();
    relocate(&mut pools, "k", 1, at(2)).unwrap();
    // The owner of the source gets no change while the target has no record.
    pools.follow(0, at(2));
    assert!(pools.ledgers[0].values().any(|of| of.stored.is_some()));
    pools.follow_all(at(2));
    assert!(pools.ledgers[0].values().all(|of| of.offset >= MIB));
    assert_eq!(endpoints(&mut pools, "k", at(3)), nodes(&[1]));
    assert_eq!(pools.index.totals().used, 2000);
    work(&mut pools.index, at(20));
    assert_eq!(pools.index.totals().used, 1000);
}

#[test]
fn a_moved_object_is_where_it_was_if_its_target_goes_before_it_has_the_record() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    relocate(&mut pools, "k", 1, at(2)).unwrap();
    pools.index.unmount_segment(segment(1, MIB).id);
    assert_eq!(endpoints(&mut pools, "k", at(3)), nodes(&[0]));
}

#[test]
fn a_move_to_a_replica_that_has_gone_keeps_the_source() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    copy(&mut pools, "k", &[1], at(1)).unwrap();
    let started = pools.index.move_start(MOVER, "k", "s0", "s1", at(2));
    assert_eq!(started.unwrap().target, None);
    pools.index.unmount_segment(segment(1, MIB).id);
    let end = pools.index.move_end(MOVER, "k", at(3));
    assert_eq!(end, Err(ErrorCode::ReplicaIsGone));
    assert_eq!(endpoints(&mut pools, "k", at(4)), nodes(&[0]));
    // With the other replica it moves there.
    pools.mount(1, MIB, at(4));
    pools.follow_all(at(4));
    relocate(&mut pools, "k", 1, at(5)).unwrap();
    assert_eq!(endpoints(&mut pools, "k", at(5)), nodes(&[1]));
}

#[test]
fn a_target_that_is_unmounted_meanwhile_is_gone_and_the_source_stays() {
    for moves in [false, true] {
        let mut pools = Pools::new(&[MIB, MIB]);
        pools.put("k", 1000, 0, at(0));
        let index = &mut pools.index;
        if moves {
            index.move_start(MOVER, "k", "s0", "s1", at(1)).unwrap();
        } else {
            index
                .copy_start(MOVER, "k", "s0", &names(&[1]), at(1))
                .unwrap();
        }
        index.unmount_segment(segment(1, MIB).id);
        let end = if moves {
            index.move_end(MOVER, "k", at(2))
        } else {
            index.copy_end(MOVER, "k", at(2))
        };
        assert_eq!(end, Err(ErrorCode::ReplicaIsGone));
        assert_eq!(endpoints(&mut pools, "k", at(3)), nodes(&[0]));
    }
}

#[test]
fn a_source_that_goes_meanwhile_ends_the_copy_without_a_replica() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    copy(&mut pools, "k", &[2], at(1)).unwrap();
    let index = &mut pools.index;
    index
        .copy_start(MOVER, "k", "s0", &names(&[1]), at(1))
        .unwrap();
    index.unmount_segment(segment(0, MIB).id);
    let end = index.copy_end(MOVER, "k", at(2));
    assert_eq!(end, Err(ErrorCode::ReplicaIsGone));
    assert_eq!(endpoints(&mut pools, "k", at(3)), nodes(&[2]));
    assert_eq!(pools.index.totals().used, 1000);
}

/// Begins a move of `k` from s0, and clears the replica there, its last one.
fn clear_during_move(pools: &mut Pools, target: u64) {
    let index = &mut pools.index;
    let target = format!("s{target}");
    index.move_start(MOVER, "k", "s0", &target, at(20)).unwrap();
    let cleared = index.clear_replicas(vec!["k".into()], CLIENT, "s0", at(20));
    assert_eq!(cleared, ["k"]);
    assert_eq!(get(index, "k", at(20)), Err(ErrorCode::ReplicaIsNotReady));
    let config = ReplicateConfig::default();
    let put = index.put_start(CLIENT, "k", 1000, &config, at(21));
    assert_eq!(put, Err(ErrorCode::ObjectAlreadyExists));
}

#[test]
fn the_key_of_an_object_that_was_cleared_during_its_move_is_in_use_until_the_move_ends() {
    for end in 0..4 {
        let mut pools = Pools::new(&[MIB, MIB]);
        pools.put("k", 1000, 0, at(0));
        clear_during_move(&mut pools, 1);
        let index = &mut pools.index;
        let free = match end {
            0 => {
                let end = index.move_end(MOVER, "k", at(22));
                assert_eq!(end, Err(ErrorCode::ReplicaIsGone));
                at(22)
            }
            1 => {
                index.move_revoke(MOVER, "k", at(22)).unwrap();
                at(22)
            }
            2 => {
                work(index, at(19 + 600));
                assert!(index.contains("k"));
                work(index, at(20 + 600));
                at(20 + 600)
            }
            // As for a put that does not end.
            _ => at(20 + 31),
        };
        assert_eq!(index.contains("k"), end == 3);
        pools.put("k", 500, 0, free);
        assert_eq!(endpoints(&mut pools, "k", free), nodes(&[0]));
        pools.follow_all(free);
        assert_eq!(pools.recorded(0), ["k"]);
        work(&mut pools.index, at(2000));
        assert_eq!(pools.index.totals().used, 500);
    }
}

#[test]
fn the_key_of_an_object_that_was_cleared_during_its_move_is_free_without_the_target() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    clear_during_move(&mut pools, 1);
    let index = &mut pools.index;
    index.unmount_segment(segment(1, MIB).id);
    assert_eq!(get(index, "k", at(22)), Err(ErrorCode::ObjectNotFound));
    put(index, "k", 500, at(22)).unwrap();
    assert_eq!(endpoints(&mut pools, "k", at(22)), nodes(&[0]));
}

#[test]
fn records_of_a_value_that_was_cleared_during_its_move_are_older_than_the_object_that_stays() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let version = |pools: &Pools| {
        let id = pools.index.objects.find("k");
        pools.index.objects[id.expect("the key is in use")].version
    };
    let before = version(&pools);
    clear_during_move(&mut pools, 1);
    assert!(version(&pools) > before);
}

#[test]
fn the_target_of_an_object_that_is_gone_rests_for_late_bytes() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let index = &mut pools.index;
    index
        .copy_start(MOVER, "k", "s0", &names(&[1]), at(1))
        .unwrap();
    index.unmount_segment(segment(0, MIB).id);
    work(index, at(2));
    let end = index.copy_end(MOVER, "k", at(3));
    assert_eq!(end, Err(ErrorCode::ObjectNotFound));
    work(index, at(600));
    assert_eq!(index.totals().used, 1000);
    work(index, at(602));
    assert_eq!(index.totals().used, 0);
}

#[test]
fn a_copy_without_an_end_holds_its_object_and_its_space_for_the_time_of_a_put() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let index = &mut pools.index;
    index
        .copy_start(MOVER, "k", "s0", &names(&[1]), at(1))
        .unwrap();
    assert_eq!(
        index.remove("k", true, at(2)),
        Err(ErrorCode::ReplicaIsNotReady)
    );
    index.remove_all("", true, at(2));
    let config = ReplicateConfig::default();
    let upsert = index.upsert_start(CLIENT, "k", 10, &config, at(2));
    assert_eq!(upsert, Err(ErrorCode::ObjectHasReplicationTask));
    work(index, at(600));
    assert_eq!((index.totals().keys, index.totals().used), (1, 2000));
    work(index, at(602));
    assert_eq!((index.totals().keys, index.totals().used), (1, 1000));
    let end = index.copy_end(MOVER, "k", at(603));
    assert_eq!(end, Err(ErrorCode::ObjectNoReplicationTask));
    assert_eq!(index.remove("k", true, at(603)), Ok(()));
}

#[test]
fn an_object_that_is_copied_is_not_evicted() {
    let settings = Settings {
        high_watermark: 0.1,
        eviction_ratio: 1.0,
        ..long_lived()
    };
    let mut index = with_segments(settings, &[MIB, MIB]);
    for key in ["a", "b"] {
        let config = ReplicateConfig {
            preferred_segment: "s0".into(),
            ..ReplicateConfig::default()
        };
        put_with(&mut index, key, 300_000, &config, at(0)).unwrap();
    }
    index
        .copy_start(MOVER, "a", "s0", &names(&[1]), at(1))
        .unwrap();
    work(&mut index, at(20));
    assert!(get(&mut index, "a", at(20)).is_ok());
    assert_eq!(get(&mut index, "b", at(20)), Err(ErrorCode::ObjectNotFound));
    index.copy_revoke(MOVER, "a", at(21)).unwrap();
    work(&mut index, at(60));
    assert_eq!(get(&mut index, "a", at(60)), Err(ErrorCode::ObjectNotFound));
}

#[test]
fn a_copy_without_space_allocates_nothing() {
    let mut pools = Pools::new(&[MIB, MIB, 4096]);
    pools.put("k", 5000, 0, at(0));
    let index = &mut pools.index;
    let start = index.copy_start(MOVER, "k", "s0", &names(&[1, 2]), at(1));
    assert_eq!(start, Err(ErrorCode::NoAvailableHandle));
    assert_eq!(index.totals().used, 5000);
    assert_eq!(index.remove("k", true, at(1)), Ok(()));
}

#[test]
fn a_pod_that_ends_takes_no_more_replicas_and_the_source_stays() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let started = pools.index.move_start(MOVER, "k", "s0", "s1", at(1));
    assert!(started.unwrap().target.is_some());
    // All that it has is counted before the move ends.
    assert!(pools.run(1, at(2)).finished);
    let end = pools.index.move_end(MOVER, "k", at(3));
    assert_eq!(end, Err(ErrorCode::ReplicaIsGone));
    pools.index.unmount_segment(segment(1, MIB).id);
    assert_eq!(endpoints(&mut pools, "k", at(4)), nodes(&[0]));
    let started = pools.index.move_start(MOVER, "k", "s0", "s2", at(5));
    assert!(started.unwrap().target.is_some());
    pools.index.move_end(MOVER, "k", at(5)).unwrap();
    assert_eq!(endpoints(&mut pools, "k", at(5)), nodes(&[2]));
}

#[test]
fn a_pod_from_which_a_client_moves_ends_after_the_record_and_after_its_readers() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let ended = Ended::default();
    pools
        .index
        .move_start(MOVER, "k", "s0", "s1", at(1))
        .unwrap();
    pools.size("k", at(2)).unwrap();
    // Its only object is being copied away already.
    pools.call(0, &ended, at(2));
    pools.index.move_end(MOVER, "k", at(3)).unwrap();
    assert!(!pools.call(0, &ended, at(4)).finished);
    pools.follow_all(at(4));
    assert!(!pools.call(0, &ended, at(4)).finished);
    assert!(pools.run(0, at(13)).finished);
    assert_eq!(endpoints(&mut pools, "k", at(13)), nodes(&[1]));
}

#[test]
fn a_move_to_a_recorded_replica_waits_for_nothing() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    copy(&mut pools, "k", &[1], at(1)).unwrap();
    pools.follow_all(at(1));
    waits(&mut pools.index);
    relocate(&mut pools, "k", 1, at(2)).unwrap();
    let mut end = waits(&mut pools.index);
    assert!(pools.index.have_happened(&mut end));
    pools.follow(0, at(2));
    assert!(pools.ledgers[0].values().all(|of| of.offset >= MIB));
    assert_eq!(pools.index.totals().used, 1000);
}

#[test]
fn a_move_does_not_take_a_third_replica_for_its_target() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    copy(&mut pools, "k", &[1, 2], at(1)).unwrap();
    pools
        .index
        .move_start(MOVER, "k", "s0", "s1", at(2))
        .unwrap();
    pools.index.unmount_segment(segment(1, MIB).id);
    let end = pools.index.move_end(MOVER, "k", at(3));
    assert_eq!(end, Err(ErrorCode::ReplicaIsGone));
    assert_eq!(endpoints(&mut pools, "k", at(4)), nodes(&[0, 2]));
}

#[test]
fn a_drain_makes_no_second_replica_where_a_client_has_copied_the_object() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let move_out = pools.call(0, &Ended::default(), at(1));
    assert_eq!(move_out.relocations.len(), 1);
    copy(&mut pools, "k", &[1], at(2)).unwrap();
    pools.follow_all(at(2));
    pools.call(0, &written(&move_out), at(3));
    assert_eq!(endpoints(&mut pools, "k", at(3)), nodes(&[0, 1]));
    assert!(pools.run(0, at(20)).finished);
    pools.index.unmount_segment(segment(0, MIB).id);
    assert_eq!(endpoints(&mut pools, "k", at(20)), nodes(&[1]));
    assert_eq!(pools.index.totals().used, 1000);
}

#[test]
fn an_object_gets_no_more_than_64_replicas_and_there_are_only_so_many_copies() {
    let mut pools = Pools::new(&[MIB; 66]);
    pools.put("k", 10, 0, at(0));
    let targets: Vec<u64> = (1..66).collect();
    let many = copy(&mut pools, "k", &targets, at(1));
    assert_eq!(many, Err(ErrorCode::InvalidParams));
    assert_eq!(copy(&mut pools, "k", &targets[..60], at(1)), Ok(()));
    let many = copy(&mut pools, "k", &targets[60..], at(1));
    assert_eq!(many, Err(ErrorCode::InvalidParams));
    assert_eq!(pools.index.totals().used, 610);
    for number in 0..=16_384 {
        let key = format!("k{number}");
        let config = ReplicateConfig {
            preferred_segment: "s0".into(),
            ..ReplicateConfig::default()
        };
        put_with(&mut pools.index, &key, 1, &config, at(1)).unwrap();
        let started = pools.index.copy_start(MOVER, &key, "s0", &[], at(1));
        let expected = (number == 16_384).then_some(ErrorCode::UnavailableInCurrentStatus);
        assert_eq!(started.err(), expected, "{number}");
    }
}

fn create(pools: &mut Pools, key: &str, now: Moment) -> Result<Uuid, ErrorCode> {
    pools.index.create_copy_task(key, names(&[1]), 5000, now)
}

fn end(id: Uuid, status: TaskStatus, message: &str) -> TaskCompleteRequest {
    TaskCompleteRequest {
        id,
        status,
        message: message.into(),
    }
}

#[test]
fn a_task_goes_once_to_the_client_of_its_source_and_keeps_the_reported_end() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let task = create(&mut pools, "k", at(1)).unwrap();
    assert!(pools.index.fetch_tasks(owner(1), 16, at(2)).is_empty());
    assert!(pools.index.fetch_tasks(owner(0), 0, at(2)).is_empty());
    let fetched = pools.index.fetch_tasks(owner(0), 16, at(2));
    assert!(pools.index.fetch_tasks(owner(0), 16, at(2)).is_empty());
    assert_eq!((fetched.len(), fetched[0].id), (1, task));
    let TaskPayload::Copy(payload) = TaskPayload::parse(&fetched[0]).unwrap() else {
        panic!("{fetched:?}");
    };
    let found = (
        payload.tenant_id,
        payload.key,
        payload.source,
        payload.targets,
    );
    assert_eq!(
        found,
        ("default".into(), "k".into(), "s0".into(), names(&[1]))
    );
    let index = &mut pools.index;
    let report = end(task, TaskStatus::Success, "done");
    let other = index.complete_task(owner(1), report.clone(), at(4));
    assert_eq!(other, Err(ErrorCode::IllegalClient));
    for _ in 0..2 {
        let ended = index.complete_task(owner(0), report.clone(), at(4));
        assert_eq!(ended, Ok(()));
    }
    let state = index.task(task).unwrap();
    assert_eq!(
        (state.status, &*state.message),
        (TaskStatus::Success, "done")
    );
    assert_eq!((state.created_ms, state.updated_ms), (5000, 8000));
}

#[test]
fn tasks_without_a_fetch_or_an_end_fail_after_five_minutes() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let first = create(&mut pools, "k", at(1)).unwrap();
    pools.index.fetch_tasks(owner(0), 16, at(100));
    let second = create(&mut pools, "k", at(100)).unwrap();
    let states = |index: &mut Index, now| {
        work(index, now);
        [first, second].map(|id| index.task(id).map(|task| task.message).unwrap())
    };
    let index = &mut pools.index;
    assert_eq!(states(index, at(400)), ["", ""]);
    assert_eq!(
        states(index, at(401)),
        ["processing timeout", "pending timeout"]
    );
    assert!(index.fetch_tasks(owner(0), 16, at(401)).is_empty());
}

#[test]
fn pending_tasks_are_limited_in_number() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    for _ in 0..10_000 {
        create(&mut pools, "k", at(1)).unwrap();
    }
    let limit = Err(ErrorCode::TaskPendingLimitExceeded);
    assert_eq!(create(&mut pools, "k", at(1)), limit);
    pools.index.fetch_tasks(owner(0), 1, at(1));
    create(&mut pools, "k", at(1)).unwrap();
}

#[test]
fn texts_of_tasks_are_limited_for_each_answer_and_in_all() {
    let mut pools = Pools::new(&[MIB, MIB]);
    let key = "k".repeat(30_000);
    pools.put(&key, 1000, 0, at(0));
    let mut created = Vec::new();
    while let Ok(id) = create(&mut pools, &key, at(1)) {
        created.push(id);
    }
    assert!((2100..2240).contains(&created.len()), "{}", created.len());
    // An answer has no more than 192 KiB of them.
    let fetched = pools.index.fetch_tasks(owner(0), 16, at(1));
    assert_eq!(fetched.len(), 6);
    // What has ended takes no bytes of them.
    let mut message = String::with_capacity(16 << 20);
    message.push_str(&"é".repeat(2000));
    let failed = TaskCompleteRequest {
        message,
        ..end(created[0], TaskStatus::Failed, "")
    };
    pools.index.complete_task(owner(0), failed, at(2)).unwrap();
    let message = pools.index.task(created[0]).unwrap().message;
    assert_eq!(message.len(), 1024);
    assert!(pools.index.tasks.bytes() < 65 << 20);
    create(&mut pools, &key, at(2)).unwrap();

    let limit = Err(ErrorCode::InvalidParams);
    let key = "k".repeat(33_000);
    pools.put(&key, 1000, 0, at(0));
    assert_eq!(create(&mut pools, &key, at(2)), limit);
    let index = &mut pools.index;
    let many = index.create_copy_task("k", vec!["s1".into(); 65], 0, at(2));
    assert_eq!(many, limit);
    // Each sign takes six in the payload.
    let key = "\u{1}".repeat(32_760);
    pools.put(&key, 1000, 0, at(0));
    assert_eq!(create(&mut pools, &key, at(2)), limit);
}

#[test]
fn ended_tasks_and_copies_leave_no_memory_behind() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let mut first = None;
    for _ in 0..11_000 {
        let task = create(&mut pools, "k", at(1)).unwrap();
        first.get_or_insert(task);
        pools.index.fetch_tasks(owner(0), 16, at(1));
        let done = end(task, TaskStatus::Success, "");
        pools.index.complete_task(owner(0), done, at(1)).unwrap();
        let index = &mut pools.index;
        index.copy_start(MOVER, "k", "s0", &[], at(1)).unwrap();
        index.copy_end(MOVER, "k", at(1)).unwrap();
    }
    assert_eq!(
        pools.index.task(first.unwrap()),
        Err(ErrorCode::TaskNotFound)
    );
    assert!(pools.index.tasks.times() < 1000);
    assert!(pools.index.copies.times() < 1000);
}

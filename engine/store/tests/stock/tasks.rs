//! Copies and moves that the master asks for.

use std::sync::Arc;
use std::time::Duration;

use mooncake_store::wire::{
    CreateCopyTask, CreateMoveTask, QueryTask, QueryTaskResponse, Segment, TaskStatus,
};
use mooncake_store::{Master, Origin, Session, Uuid, random_id};
use tokio::time::{interval, timeout};

use crate::master::{PATIENCE, StockMaster};
use crate::node::{FakeMover, put, reach_mounted, replicas, segment, start, start_with};
use crate::wheel::Release;

struct TwoNodes {
    stock: StockMaster,
    master: Master,
    mover: Arc<FakeMover>,
    segments: [Segment; 2],
    _sessions: [Session; 2],
}

/// The object `k` of 1000 bytes lies on the first node, whose mover is looked at.
async fn two_nodes(mover: FakeMover) -> TwoNodes {
    let stock = StockMaster::start(Release::Ours, 10).await;
    let mover = Arc::new(mover);
    let segments = [segment("node1.0", 0), segment("node2.0", 1)];
    let [one, two] = &segments;
    let first = Origin::Fresh(vec![one.clone()]);
    let first = start_with(&stock, random_id().unwrap(), first, Arc::clone(&mover));
    let second = start(
        &stock,
        random_id().unwrap(),
        Origin::Fresh(vec![two.clone()]),
    );
    reach_mounted(&first, std::slice::from_ref(one)).await;
    reach_mounted(&second, std::slice::from_ref(two)).await;
    let master = stock.client().await;
    put(&master, "k", 1000, Some(&one.name)).await.unwrap();
    TwoNodes {
        stock,
        master,
        mover,
        segments,
        _sessions: [first, second],
    }
}

async fn ended(master: &Master, task: Uuid) -> QueryTaskResponse {
    let ended = async {
        let mut ticks = interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            let answer = master.call::<QueryTask>(&task).await.unwrap();
            if matches!(answer.status, TaskStatus::Success | TaskStatus::Failed) {
                return answer;
            }
        }
    };
    timeout(PATIENCE, ended)
        .await
        .expect("the task ends in time")
}

fn default() -> String {
    "default".into()
}

#[tokio::test]
async fn a_copy_task_is_carried_out_and_reported() {
    let nodes = two_nodes(FakeMover::default()).await;
    let [one, two] = &nodes.segments;
    let create = ("k".into(), default(), vec![two.name.clone()]);
    let task = nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Success, "{}", answer.message);

    let moved = nodes.mover.moved.lock().unwrap().clone();
    let [(source, target, length)] = moved.as_slice() else {
        panic!("{moved:?}")
    };
    assert_eq!(
        (&source.endpoint, &target.endpoint),
        (&one.te_endpoint, &two.te_endpoint)
    );
    assert_eq!((source.size, target.size, *length), (1000, 1000, 1000));
    let mut places: Vec<_> = replicas(&nodes.master, "k")
        .await
        .unwrap()
        .into_iter()
        .map(|r| r.endpoint)
        .collect();
    places.sort();
    assert_eq!(places, [one.te_endpoint.clone(), two.te_endpoint.clone()]);
}

#[tokio::test]
async fn a_move_task_is_carried_out_and_reported() {
    let nodes = two_nodes(FakeMover::default()).await;
    let [one, two] = &nodes.segments;
    let create = ("k".into(), default(), one.name.clone(), two.name.clone());
    let task = nodes.master.call::<CreateMoveTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Success, "{}", answer.message);
    let places = replicas(&nodes.master, "k").await.unwrap();
    assert_eq!(places.len(), 1);
    assert_eq!(places[0].endpoint, two.te_endpoint);
    assert_eq!(nodes.mover.moved.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_copy_whose_bytes_do_not_move_is_revoked_and_its_cause_reported() {
    let nodes = two_nodes(FakeMover {
        refuse: true,
        ..FakeMover::default()
    })
    .await;
    let [one, two] = &nodes.segments;
    let create = ("k".into(), default(), vec![two.name.clone()]);
    let task = nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let moved = async {
        let mut ticks = interval(Duration::from_millis(50));
        while nodes.mover.moved.lock().unwrap().is_empty() {
            ticks.tick().await;
        }
    };
    timeout(PATIENCE, moved).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Failed);
    let text = answer.message;
    assert!(text.contains("the cable is cut"), "{text}");
    assert!(
        text.contains(&one.name) && text.contains(&two.te_endpoint),
        "{text}"
    );
    // Revoked: the object is where it was, and a new copy may begin.
    let places = replicas(&nodes.master, "k").await.unwrap();
    assert_eq!(places.len(), 1);
    assert_eq!(places[0].endpoint, one.te_endpoint);
    let again = ("k".into(), default(), vec![two.name.clone()]);
    nodes.master.call::<CreateCopyTask>(&again).await.unwrap();
    drop(nodes.stock);
}

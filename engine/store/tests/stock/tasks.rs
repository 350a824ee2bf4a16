//! Tests of copy and move tasks.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mooncake_stock::MOONCAKE;
use mooncake_store::wire::{
    CopyEnd, CopyStart, CopyStartResponse, CreateCopyTask, CreateMoveTask, MoveEnd, QueryTask,
    QueryTaskResponse, Segment, TaskStatus,
};
use mooncake_store::{Error, ErrorCode, Master, Session, Uuid, random_id};
use proto::store::Rpc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, timeout};

use crate::master::{RPC, StockMaster, TIMEOUT};
use crate::node::{
    FakeMover, Outcome, fresh, put, reach_loss, reach_mounted, replicas, segment, settings, start,
};

struct TwoNodes {
    stock: StockMaster,
    owner: Uuid,
    master: Master,
    mover: Arc<FakeMover>,
    segments: [Segment; 2],
    sessions: [Session; 2],
}

/// Two nodes, with object `k` of 1000 bytes on the first one, whose mover is observed.
async fn two_nodes(flags: &[&str], mover: FakeMover) -> TwoNodes {
    let stock = StockMaster::start_with(MOONCAKE, flags).await;
    let connect = stock.connector();
    connected_by(stock, connect, mover).await
}

/// The same, with the connections of the first node to the master.
async fn connected_by(
    stock: StockMaster,
    connect: impl Fn() -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync + 'static,
    mover: FakeMover,
) -> TwoNodes {
    let mover = Arc::new(mover);
    let segments = [segment("node1.0", 0), segment("node2.0", 1)];
    let [one, two] = &segments;
    let owner = random_id().unwrap();
    let first = Session::start(
        settings(),
        owner,
        fresh(vec![one.clone()]),
        RPC.to_string(),
        connect,
        Arc::clone(&mover),
        None,
    );
    let second = start(&stock, random_id().unwrap(), fresh(vec![two.clone()]));
    reach_mounted(&first, std::slice::from_ref(one)).await;
    reach_mounted(&second, std::slice::from_ref(two)).await;
    let master = stock.client().await;
    put(&master, "k", 1000, Some(&one.name)).await.unwrap();
    TwoNodes {
        stock,
        owner,
        master,
        mover,
        segments,
        sessions: [first, second],
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
    timeout(TIMEOUT, ended)
        .await
        .expect("the task ends in time")
}

fn failing(outcome: Outcome) -> FakeMover {
    FakeMover {
        outcome,
        ..FakeMover::default()
    }
}

fn default() -> String {
    "default".into()
}

#[tokio::test]
async fn a_copy_task_is_carried_out_and_reported() {
    let nodes = two_nodes(&[], FakeMover::default()).await;
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
    let nodes = two_nodes(&[], FakeMover::default()).await;
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
async fn a_failed_copy_is_revoked_and_reported_with_its_cause() {
    let nodes = two_nodes(&[], failing(Outcome::Failed)).await;
    let [one, two] = &nodes.segments;
    let create = ("k".into(), default(), vec![two.name.clone()]);
    let task = nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Failed);
    let text = answer.message;
    assert!(text.contains("the cable is cut"), "{text}");
    assert!(
        text.contains(&one.name) && text.contains(&two.te_endpoint),
        "{text}"
    );
    // Revoked: the object has its first replica only, and another copy can start.
    let places = replicas(&nodes.master, "k").await.unwrap();
    assert_eq!(places.len(), 1);
    assert_eq!(places[0].endpoint, one.te_endpoint);
    copy_start(&nodes).await.unwrap();
}

#[tokio::test]
async fn space_that_may_still_be_written_is_not_released() {
    let nodes = two_nodes(&[], failing(Outcome::Indeterminate)).await;
    let create = ("k".into(), default(), vec![nodes.segments[1].name.clone()]);
    let task = nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Failed);
    assert!(
        answer.message.contains("unknown: the peer is silent"),
        "{}",
        answer.message
    );
    // Not revoked: the master still holds the target's space for this copy.
    let error = copy_start(&nodes).await.unwrap_err();
    assert_eq!(
        error.refusal(),
        Some(ErrorCode::ObjectHasReplicationTask),
        "{error}"
    );
}

#[tokio::test]
async fn a_copy_of_dynamic_replication_is_carried_out() {
    let flags = [
        "--dynamic_replication_mode=enforce",
        "--dynamic_replication_heat_window_seconds=1",
        "--dynamic_replication_admission_qps_threshold=2",
    ];
    let nodes = two_nodes(&flags, FakeMover::default()).await;
    let copied = async {
        let mut ticks = interval(Duration::from_millis(50));
        while replicas(&nodes.master, "k").await.unwrap().len() < 2 {
            ticks.tick().await;
        }
    };
    timeout(TIMEOUT, copied)
        .await
        .expect("the hot key is copied in time");
    assert_eq!(nodes.mover.moved.lock().unwrap().len(), 1);
}

async fn copy_start(nodes: &TwoNodes) -> Result<CopyStartResponse, Error> {
    let [one, two] = &nodes.segments;
    let arguments = (
        nodes.owner,
        "k".into(),
        default(),
        one.name.clone(),
        vec![two.name.clone()],
    );
    nodes.master.call::<CopyStart>(&arguments).await
}

#[tokio::test]
async fn a_copy_is_cut_when_the_master_has_lost_its_epoch() {
    let mut nodes = two_nodes(&[], failing(Outcome::Endless)).await;
    let create = ("k".into(), default(), vec![nodes.segments[1].name.clone()]);
    nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let began = async {
        let mut ticks = interval(Duration::from_millis(50));
        while nodes.mover.moved.lock().unwrap().is_empty() {
            ticks.tick().await;
        }
    };
    timeout(TIMEOUT, began).await.expect("the copy begins");
    nodes.stock.kill().await;
    nodes.stock.restart().await;
    reach_loss(&nodes.sessions[0]).await;
    assert_eq!(nodes.mover.cut.load(Ordering::SeqCst), 1);
}

/// Requests of each function that find the release of the master.
const PROBES: usize = 1;

/// Connects by a relay that ends the connection after it has passed the first request of this function on, without the answer.
fn losing<R: Rpc>(
    stock: &StockMaster,
) -> impl Fn() -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync + 'static {
    let (connect, seen) = (stock.connector(), Arc::new(AtomicUsize::new(0)));
    move || {
        let (connect, seen) = (connect(), Arc::clone(&seen));
        Box::pin(async move {
            let mut master = connect.await?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let session = TcpStream::connect(listener.local_addr()?).await?;
            let (mut relay, _) = listener.accept().await?;
            tokio::spawn(async move {
                let id = R::function_id().to_le_bytes();
                let (mut requests, mut answers) = ([0; 4096], [0; 65_536]);
                loop {
                    tokio::select! {
                        count = relay.read(&mut requests) => {
                            let count = count.unwrap_or(0);
                            let request = &requests[..count];
                            if count == 0 || master.write_all(request).await.is_err() {
                                return;
                            }
                            let is_it = request.windows(id.len()).any(|bytes| bytes == id);
                            if is_it && seen.fetch_add(1, Ordering::SeqCst) == PROBES {
                                // The master answers, so it has carried the request out.
                                let _ = master.read(&mut answers).await;
                                return;
                            }
                        }
                        count = master.read(&mut answers) => {
                            let count = count.unwrap_or(0);
                            if count == 0 || relay.write_all(&answers[..count]).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            });
            Ok(session)
        })
    }
}

/// Two nodes, of which the first one does not get the first answer to this function.
async fn with_lost<R: Rpc>() -> TwoNodes {
    let stock = StockMaster::start_with(MOONCAKE, &[]).await;
    let connect = losing::<R>(&stock);
    connected_by(stock, connect, FakeMover::default()).await
}

#[tokio::test]
async fn a_copy_whose_end_was_not_answered_is_no_failure() {
    let nodes = with_lost::<CopyEnd>().await;
    let create = ("k".into(), default(), vec![nodes.segments[1].name.clone()]);
    let task = nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Success, "{}", answer.message);
    assert_eq!(replicas(&nodes.master, "k").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_move_whose_end_was_not_answered_is_no_failure() {
    let nodes = with_lost::<MoveEnd>().await;
    let [one, two] = &nodes.segments;
    let create = ("k".into(), default(), one.name.clone(), two.name.clone());
    let task = nodes.master.call::<CreateMoveTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Success, "{}", answer.message);
    let places = replicas(&nodes.master, "k").await.unwrap();
    assert_eq!(places[0].endpoint, two.te_endpoint);
}

#[tokio::test]
async fn a_copy_whose_start_was_not_answered_is_revoked() {
    let nodes = with_lost::<CopyStart>().await;
    let create = ("k".into(), default(), vec![nodes.segments[1].name.clone()]);
    let task = nodes.master.call::<CreateCopyTask>(&create).await.unwrap();
    let answer = ended(&nodes.master, task).await;
    assert_eq!(answer.status, TaskStatus::Failed, "{}", answer.message);
    // Another copy can start.
    copy_start(&nodes).await.unwrap();
}

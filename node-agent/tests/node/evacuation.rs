//! A pool pod terminates: its keys move to another pool pod, and stock clients read them meanwhile and afterwards.

use std::time::{Duration, Instant};

use mooncake_stock::Space;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, POOL_IP, SECOND_POOL_IP, kill};

const FIRST: &str = "aaaa0000-0000-4000-8000-000000000001";
const SECOND: &str = "bbbb0000-0000-4000-8000-000000000002";
const THIRD: &str = "cccc0000-0000-4000-8000-000000000003";
const POOLS: [(&str, &str); 2] = [("default", FIRST), ("second", SECOND)];
const KEYS: u32 = 300;
const SIZE: u64 = 64 << 10;
/// The drain period. It is never used up.
const DRAIN: u32 = 600;
/// Limit of a drain here: readers keep their lease for 10 s.
const DRAINED: Duration = Duration::from_secs(300);

fn terminate(pool: &Child) {
    let pid = i32::try_from(pool.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
}

/// A node with one pool pod that has all keys. The second one joins afterwards.
struct Filled {
    node: Node,
    master: Master,
    client: Client,
    first: Child,
    second_pod: Space,
    second: Child,
    _agent: Child,
}

async fn filled() -> Filled {
    let node = Node::new().await;
    let second_pod = node.second_pod().await;
    let master = Master::start_ours(&node.peers);
    let mut client = Client::start(&node.peers).await;
    let first = node.pool(FIRST);
    let agent = node.agent();
    node.assign_pools(&POOLS[..1], "m1", DRAIN);
    node.ready().await;
    assert_eq!(client.put("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
    assert_eq!(client.put("gone", 20, SIZE).await, (20, 0));
    assert_eq!(client.remove("gone", 20).await, (20, 0));
    let second = node.pool_in(&second_pod, "second", SECOND_POOL_IP, SECOND);
    node.assign_pools(&POOLS, "m1", DRAIN);
    node.ready_in(&second_pod).await;
    assert_eq!(client.segments().await.len(), 2);
    Filled {
        node,
        master,
        client,
        first,
        second_pod,
        second,
        _agent: agent,
    }
}

/// Waits until a client reads all keys. Each of its connections to a process that has ended fails one get.
async fn reads_all(client: &mut Client) {
    let begun = Instant::now();
    while client.verify("k", KEYS, SIZE).await != (u64::from(KEYS), 0) {
        assert!(begun.elapsed() < 4 * PATIENCE, "keys are lost");
    }
}

/// All keys are in one pool pod, and those that were removed stay so.
async fn check(client: &mut Client, node: &Node) {
    let segments = client.segments().await;
    assert_eq!(segments.len(), 1, "{segments:?}");
    assert_eq!(client.verify("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
    assert_eq!(client.verify("gone", 20, SIZE).await, (0, 20));
    let mut fresh = Client::start(&node.peers).await;
    assert_eq!(fresh.verify("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
}

#[tokio::test]
async fn keys_of_a_pool_pod_that_ends_move_while_clients_read_and_write() {
    let mut filled = filled().await;
    let client = &mut filled.client;
    terminate(&filled.first);
    let begun = Instant::now();
    let mut rounds = 0;
    while filled.first.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < DRAINED, "the pool pod does not end");
        assert_eq!(client.verify("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
        if rounds < 20 {
            let prefix = format!("during-{rounds}");
            assert_eq!(client.put(&prefix, 5, SIZE).await, (5, 0));
            assert_eq!(client.verify(&prefix, 5, SIZE).await, (5, 0));
            rounds += 1;
        }
    }
    let status = timeout(DRAINED, filled.first.wait()).await;
    assert!(status.expect("the pool pod ends").unwrap().success());
    println!("the pool pod ended {:?} after its SIGTERM", begun.elapsed());
    check(client, &filled.node).await;
    for round in 0..rounds {
        let prefix = format!("during-{round}");
        assert_eq!(client.verify(&prefix, 5, SIZE).await, (5, 0));
    }

    // The ledger of the second pool pod has them too.
    kill(filled.master.child).await;
    filled.master = Master::start_ours(&filled.node.peers);
    reads_all(client).await;
    check(client, &filled.node).await;

    // The last pool pod has no other to which its keys could move: it does not wait.
    terminate(&filled.second);
    let begun = Instant::now();
    let status = timeout(DRAINED, filled.second.wait()).await;
    assert!(status.expect("the pool pod ends").unwrap().success());
    println!("the last one ended after {:?}", begun.elapsed());
    assert_eq!(client.verify("k", 1, SIZE).await, (0, 1));
}

#[tokio::test]
async fn a_drain_goes_on_with_the_next_master_and_the_next_engine_process() {
    let mut filled = filled().await;
    let client = &mut filled.client;
    // Nothing moves before the master is back.
    kill(filled.master.child).await;
    terminate(&filled.first);
    filled.master = Master::start_ours(&filled.node.peers);
    let status = timeout(DRAINED, filled.first.wait()).await;
    assert!(status.expect("the pool pod ends").unwrap().success());
    reads_all(client).await;
    check(client, &filled.node).await;

    // Back again with a third pod; the engine processes of both are killed when the drain begins.
    let third = filled
        .node
        .pool_in(&filled.node.pod, "default", POOL_IP, THIRD);
    let pools = [POOLS[1], ("default", THIRD)];
    filled.node.assign_pools(&pools, "m1", DRAIN);
    filled.node.ready_in(&filled.node.pod).await;
    terminate(&filled.second);
    for engine in filled.node.engine_processes() {
        let engine = i32::try_from(engine).unwrap();
        kill_process(Pid::from_raw(engine).unwrap(), Signal::KILL).unwrap();
    }
    let status = timeout(DRAINED, filled.second.wait()).await;
    assert!(status.expect("the pool pod ends").unwrap().success());
    // Its connections to the pods before have ended.
    reads_all(client).await;
    check(client, &filled.node).await;
    drop((third, filled.second_pod));
}

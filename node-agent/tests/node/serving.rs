//! Serves pool pods while agents, pool processes and masters end and restart.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::time::timeout;

use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, POOL_BYTES, eventually, kill};

const POD: &str = "aaaa0000-0000-4000-8000-000000000001";
const NEXT_POD: &str = "bbbb0000-0000-4000-8000-000000000002";
const SEGMENT: &str = "c.default.n1.0";
const MIB: u64 = 1 << 20;

fn terminate(child: &Child) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
}

async fn ended(mut child: Child) {
    timeout(PATIENCE, child.wait())
        .await
        .expect("it ends")
        .unwrap();
}

#[tokio::test]
async fn a_pool_pod_is_granted_served_and_drained() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let pool = node.pool(POD);
    let _agent = node.agent();
    eventually("the pool is live", || async {
        node.probe("live").await.ok()
    })
    .await;
    assert!(
        node.probe("ready").await.is_err(),
        "nothing was granted yet"
    );
    assert!(!node.ready_port(), "nothing was granted yet");

    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    node.probe("ready").await.unwrap();
    assert_eq!(client.segments().await, [SEGMENT]);
    assert_eq!(client.put("k", 16, MIB).await, (16, 0));
    assert_eq!(client.verify("k", 16, MIB).await, (16, 0));
    let metrics = node.http("/metrics").await.unwrap();
    assert!(metrics.contains("state=\"Serving\""), "{metrics}");
    assert_eq!(
        node.http("/readyz").await.as_deref().map(str::trim),
        Some("active")
    );

    terminate(&pool);
    ended(pool).await;
    assert!(client.segments().await.is_empty());
}

/// A pool that is served, with its master and agent.
async fn served(node: &Node) -> (Master, Child, Child) {
    let master = Master::start(&node.peers).await;
    let (pool, agent) = (node.pool(POD), node.agent());
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    (master, pool, agent)
}

#[tokio::test]
async fn the_ready_port_closes_while_no_engine_process_serves_the_pool() {
    let node = Node::new().await;
    let (_master, _pool, agent) = served(&node).await;
    // The kubelet connects and closes, each time.
    let connect =
        "import socket; [socket.create_connection(('10.77.0.2', 12003)).close() for _ in range(3)]";
    let mut python = node.peers.command("python3");
    let connected = timeout(PATIENCE, python.args(["-c", connect]).status()).await;
    assert!(connected.unwrap().unwrap().success());
    assert!(node.ready_port());

    kill(agent).await;
    let engine = i32::try_from(node.engine_process().unwrap()).unwrap();
    kill_process(Pid::from_raw(engine).unwrap(), Signal::KILL).unwrap();
    eventually("the port closes", || async {
        (!node.ready_port()).then_some(())
    })
    .await;
    let status = node.probe("ready").await.unwrap_err();
    assert!(status.contains("is silent"), "{status}");
    let _agent = node.agent();
    node.ready().await;
}

#[tokio::test]
async fn a_pool_pod_waits_until_memory_is_available() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let _pool = node.pool(POD);
    let _agent = node.agent();
    node.available(POOL_BYTES + 127 * MIB);
    node.assign(&[(POD, Some("m1"))]);
    eventually("the pod waits for memory", || {
        node.shows("Waiting", "MemoryUnavailable")
    })
    .await;
    assert!(client.segments().await.is_empty());
    node.available(POOL_BYTES + 128 * MIB);
    node.ready().await;
    assert_eq!(client.segments().await, [SEGMENT]);
    assert_eq!(client.put("k", 4, MIB).await, (4, 0));
}

/// CPU time of a process, in clock ticks of 10 ms.
fn ticks(process: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id().unwrap())).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = after_name.split(' ').collect();
    // utime and stime, the 14th and 15th field of proc_pid_stat(5).
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test]
async fn an_agent_that_serves_an_idle_pool_uses_almost_no_cpu_time() {
    let node = Node::new().await;
    let (_master, _pool, agent) = served(&node).await;
    let before = ticks(&agent);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let used = ticks(&agent) - before;
    println!("{used} ticks in 5 s");
    assert!(used < 25, "{used} ticks of CPU time in 5 s of idle time");
}

#[tokio::test]
async fn the_successor_of_a_killed_agent_serves_every_key_without_assignments() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let pool = node.pool(POD);
    let mut agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", 8, MIB).await, (8, 0));
    node.unassign();
    for _ in 0..5 {
        kill(agent).await;
        agent = node.agent();
        node_serves(&node).await;
        assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
    }
    assert_eq!(client.segments().await, [SEGMENT]);
    drop(pool);
}

async fn node_serves(node: &Node) {
    eventually("the successor serves", || {
        node.shows("Serving", "AsExpected")
    })
    .await;
}

#[tokio::test]
async fn a_killed_pool_process_is_unmounted_at_once_and_its_replacement_serves() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let pool = node.pool(POD);
    let _agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", 4, MIB).await, (4, 0));

    kill(pool).await;
    let since = Instant::now();
    while !client.segments().await.is_empty() {
        assert!(since.elapsed() < PATIENCE, "segments of an ended pool");
    }
    node.assign(&[(NEXT_POD, Some("m1"))]);
    let _next = node.pool(NEXT_POD);
    node.ready().await;
    assert_eq!(client.verify("k", 4, MIB).await, (0, 4));
    // The client has cached the ended pool under this name: one failure is expected.
    client.put("again", 2, MIB).await;
    assert_eq!(client.put("new", 4, MIB).await, (4, 0));
    assert_eq!(client.verify("new", 4, MIB).await, (4, 0));
}

#[tokio::test]
async fn segments_of_a_pool_killed_with_engine_process_and_agent_are_unmounted_by_the_next_agent() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let pool = node.pool(POD);
    let agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.segments().await, [SEGMENT]);

    kill(agent).await;
    let engine = node.engine_process().unwrap();
    let engine = Pid::from_raw(i32::try_from(engine).unwrap()).unwrap();
    kill_process(engine, Signal::KILL).unwrap();
    kill(pool).await;
    assert_eq!(
        client.segments().await,
        [SEGMENT],
        "nobody has unmounted it"
    );
    node.unassign();
    let _agent = node.agent();
    let since = Instant::now();
    while !client.segments().await.is_empty() {
        assert!(
            since.elapsed() < PATIENCE,
            "segments of a pool that died with its agent"
        );
    }
}

#[tokio::test]
async fn a_restarted_master_gets_new_addresses_of_the_same_pool() {
    let node = Node::new().await;
    let mut master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let _pool = node.pool(POD);
    let _agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", 4, MIB).await, (4, 0));

    master.child.kill().await.unwrap();
    drop(client);
    let _master = Master::start(&node.peers).await;
    node.assign(&[(POD, Some("m2"))]);
    let mut client = Client::start(&node.peers).await;
    let deadline = Instant::now() + PATIENCE;
    while client.segments().await != [SEGMENT] {
        assert!(Instant::now() < deadline, "not mounted in the new master");
    }
    node.ready().await;
    eventually("the pool settles", || node.shows("Serving", "AsExpected")).await;
    assert_eq!(client.verify("k", 4, MIB).await, (0, 4));
    assert_eq!(client.put("new", 4, MIB).await, (4, 0));
    assert_eq!(client.verify("new", 4, MIB).await, (4, 0));
    assert_eq!(client.segments().await, [SEGMENT]);
}

#[tokio::test]
async fn a_pool_pod_that_is_listed_again_is_mounted_again() {
    let node = Node::new().await;
    let (_master, pool, agent) = served(&node).await;
    let mut client = Client::start(&node.peers).await;
    assert_eq!(client.put("k", 4, MIB).await, (4, 0));
    for round in 0..2 {
        node.assign(&[]);
        eventually("the pool is released", || {
            node.shows("Released", "PoolPodGone")
        })
        .await;
        assert!(client.segments().await.is_empty());
        if round == 1 {
            // Its successor has only the record.
            let engine = i32::try_from(node.engine_process().unwrap()).unwrap();
            kill_process(Pid::from_raw(engine).unwrap(), Signal::KILL).unwrap();
        }
        node.assign(&[(POD, Some("m1"))]);
        // Far sooner than the master forgets the client.
        let deadline = Instant::now() + PATIENCE;
        while client.segments().await != [SEGMENT] {
            assert!(Instant::now() < deadline, "not mounted again");
        }
        node_serves(&node).await;
        // Another client: this one has cached the former addresses.
        let mut next = Client::start(&node.peers).await;
        assert_eq!(next.verify("k", 4, MIB).await, (0, 4));
        let key = format!("new-{round}-");
        assert_eq!(next.put(&key, 4, MIB).await, (4, 0));
        assert_eq!(next.verify(&key, 4, MIB).await, (4, 0));
    }
    // It is known as mounted: its end unmounts it.
    terminate(&pool);
    ended(pool).await;
    assert!(client.segments().await.is_empty());
    drop(agent);
}

#[tokio::test]
async fn a_second_agent_waits_reports_it_and_takes_over() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let _pool = node.pool(POD);
    let first = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", 4, MIB).await, (4, 0));
    let _second = node.second_agent();
    let waits = || async {
        let response = node.second_http("/readyz").await?;
        response.contains("503 AnotherAgentActive").then_some(())
    };
    eventually("the second agent reports that it waits", waits).await;
    terminate(&first);
    ended(first).await;
    assert_eq!(
        client.segments().await,
        [SEGMENT],
        "an agent's end unmounts nothing"
    );
    let serves = || async {
        let text = node.second_http("/metrics").await?;
        text.contains("state=\"Serving\"").then_some(())
    };
    eventually("the second agent serves", serves).await;
    let response = node.second_http("/readyz").await;
    assert_eq!(response.as_deref().map(str::trim), Some("active"));
    assert_eq!(client.verify("k", 4, MIB).await, (4, 0));
}

//! Our master is killed and started again: pool pods keep the keys, and stock clients read every one.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, kill};

const POD: &str = "aaaa0000-0000-4000-8000-000000000001";
const KEYS: u32 = 1000;
const SIZE: u64 = 16 << 10;

/// Waits until a client that lives through the restart reads all keys again, and returns how long that took.
async fn reads_all(client: &mut Client) -> Duration {
    let begun = Instant::now();
    loop {
        let seen = client.verify("k", KEYS, SIZE).await;
        if seen == (u64::from(KEYS), 0) {
            return begun.elapsed();
        }
        assert!(
            begun.elapsed() < 4 * PATIENCE,
            "read and failed after the restart: {seen:?}"
        );
    }
}

/// Waits until a client that lives through the restart can put.
async fn puts(client: &mut Client, prefix: &str) -> Duration {
    let begun = Instant::now();
    for attempt in 0.. {
        let prefix = format!("{prefix}-{attempt}");
        if client.put(&prefix, 1, SIZE).await == (1, 0) {
            assert_eq!(client.verify(&prefix, 1, SIZE).await, (1, 0));
            break;
        }
        assert!(begun.elapsed() < 4 * PATIENCE, "no put after the restart");
    }
    begun.elapsed()
}

#[tokio::test]
async fn every_key_survives_kills_of_our_master_and_of_the_engine_process() {
    let node = Node::new().await;
    let mut master = Master::start_ours(&node.peers);
    let mut client = Client::start(&node.peers).await;
    let _pool = node.pool(POD);
    let _agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
    assert_eq!(client.put("gone", 50, SIZE).await, (50, 0));
    assert_eq!(client.remove("gone", 50).await, (50, 0));

    for round in ["master", "master and engine process", "master again"] {
        kill(master.child).await;
        if round == "master and engine process" {
            let engine = i32::try_from(node.engine_process().unwrap()).unwrap();
            kill_process(Pid::from_raw(engine).unwrap(), Signal::KILL).unwrap();
        }
        master = Master::start_ours(&node.peers);
        let put = puts(&mut client, round.replace(' ', "-").as_str()).await;
        let read = reads_all(&mut client).await;
        println!("{round}: first put after {put:?}, all {KEYS} keys read {read:?} later");
        assert_eq!(client.verify("gone", 50, SIZE).await, (0, 50));
    }
    let mut fresh = Client::start(&node.peers).await;
    assert_eq!(fresh.verify("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
    assert_eq!(fresh.verify("gone", 50, SIZE).await, (0, 50));
}

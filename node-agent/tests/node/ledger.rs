//! Our master is killed and started again, or another one takes over: pool pods keep the keys, and stock clients read every one.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, kill};

const POD: &str = "aaaa0000-0000-4000-8000-000000000001";
const KEYS: u32 = 1000;
/// Keys of a test with several takeovers.
const FEW: u32 = 200;
const SIZE: u64 = 16 << 10;

/// Waits until a client that lives through the restart reads all keys again, and returns how long that took.
async fn reads_all(client: &mut Client, keys: u32) -> Duration {
    let begun = Instant::now();
    loop {
        let seen = client.verify("k", keys, SIZE).await;
        if seen == (u64::from(keys), 0) {
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
        let read = reads_all(&mut client, KEYS).await;
        println!("{round}: first put after {put:?}, all {KEYS} keys read {read:?} later");
        assert_eq!(client.verify("gone", 50, SIZE).await, (0, 50));
    }
    let mut fresh = Client::start(&node.peers).await;
    assert_eq!(fresh.verify("k", KEYS, SIZE).await, (u64::from(KEYS), 0));
    assert_eq!(fresh.verify("gone", 50, SIZE).await, (0, 50));
}

#[tokio::test]
async fn early_answers_lose_only_the_last_puts_before_the_master_ends() {
    const MOST: u32 = 20_000;
    const SIZE: u64 = 1 << 10;
    let node = Node::new().await;
    let mut master = Master::start_early(&node.peers);
    let mut client = Client::start(&node.peers).await;
    let _pool = node.pool(POD);
    let _agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    for round in 0..3 {
        let prefix = format!("k{round}");
        let kill_soon = async {
            sleep(Duration::from_millis(700)).await;
            kill(master.child).await;
        };
        let puts = client.put_until_failure(&prefix, MOST, SIZE);
        let (answered, ()) = tokio::join!(puts, kill_soon);
        assert!((1..MOST).contains(&answered), "{answered}");
        master = Master::start_early(&node.peers);
        self::puts(&mut client, &format!("after-{round}")).await;
        let (read, _) = client.verify(&prefix, answered, SIZE).await;
        let read = u32::try_from(read).unwrap();
        assert!(read > 0);
        println!("{answered} puts answered, {} of them lost", answered - read);
        // None that was followed by one that is not lost.
        let kept = client.verify(&prefix, read, SIZE).await;
        assert_eq!(kept, (u64::from(read), 0));
    }
}

/// The elector of one master, which the test plays.
struct Elector {
    folder: tempfile::TempDir,
    listener: UnixListener,
}

impl Elector {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("elector")).unwrap();
        Self { folder, listener }
    }

    fn start(&self, node: &Node) -> Master {
        Master::start_elected(&node.peers, &self.folder.path().join("elector"))
    }

    /// Lets the master lead, without an end.
    async fn lead(&self, epoch: u64) -> UnixStream {
        let accepted = timeout(4 * PATIENCE, self.listener.accept()).await;
        let (mut master, _) = accepted.expect("the master connects").unwrap();
        let line = format!("lead {epoch} {}\n", u64::MAX);
        master.write_all(line.as_bytes()).await.unwrap();
        master
    }
}

#[tokio::test]
async fn every_key_survives_takeovers_by_another_master() {
    let node = Node::new().await;
    let electors = [Elector::new(), Elector::new()];
    let mut masters = [electors[0].start(&node), electors[1].start(&node)];
    let mut leads = electors[0].lead(1000).await;
    let mut client = Client::start(&node.peers).await;
    let _pool = node.pool(POD);
    let _agent = node.agent();
    node.assign(&[(POD, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", FEW, SIZE).await, (u64::from(FEW), 0));
    assert_eq!(client.put("gone", 50, SIZE).await, (50, 0));
    assert_eq!(client.remove("gone", 50).await, (50, 0));

    let rounds = ["killed", "stopped"];
    for (round, how) in rounds.into_iter().enumerate() {
        let (former, next) = (round % 2, (round + 1) % 2);
        if how == "killed" {
            let killed = std::mem::replace(&mut masters[former], electors[former].start(&node));
            kill(killed.child).await;
        } else {
            leads.write_all(b"stop\n").await.unwrap();
        }
        // The end of the connection shows that nothing is served.
        let mut rest = [0; 64];
        let ended = async { while matches!(leads.read(&mut rest).await, Ok(1..)) {} };
        timeout(4 * PATIENCE, ended).await.expect("the master ends");
        leads = electors[next].lead(1001 + round as u64).await;
        let put = puts(&mut client, &format!("round-{round}")).await;
        let read = reads_all(&mut client, FEW).await;
        println!("a master was {how}: first put after {put:?}, all {FEW} keys read {read:?} later");
        assert_eq!(client.verify("gone", 50, SIZE).await, (0, 50));
    }
}

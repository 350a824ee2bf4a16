//! The gate's program against the stock master and stock engines of the pinned wheel.
#![allow(clippy::unwrap_used, reason = "a test")]

mod stock;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use mooncake_stock::MOONCAKE_BEFORE;
use rustix::process::{Pid, Signal, kill_process};
use stock::{PATIENCE, Place, RPC};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{interval, timeout};

const GATE: &str = env!("CARGO_BIN_EXE_gate");
/// Nobody listens there.
const NOBODY: &str = "127.0.0.1:9";

struct Pod {
    place: Place,
    directory: TempDir,
}

impl Pod {
    async fn new() -> Self {
        Self {
            place: Place::new().await,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn hold(&self, arguments: &[&str]) -> Child {
        self.hold_on("node-1", arguments)
    }

    fn hold_on(&self, node: &str, arguments: &[&str]) -> Child {
        self.place
            .command(GATE)
            .args(["hold", "--cluster=kv", "--node", node])
            .arg(format!("--master={RPC}"))
            .arg(format!("--directory={}", self.directory.path().display()))
            .arg(format!(
                "--termination-log={}",
                self.path("last-words").display()
            ))
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    async fn probe(&self) -> Output {
        let mut command = Command::new(GATE);
        command
            .arg("probe")
            .arg(format!("--directory={}", self.directory.path().display()));
        timeout(PATIENCE, command.output()).await.unwrap().unwrap()
    }

    /// Probes as the kubelet does, until the words are there.
    async fn says(&self, open: bool, words: &str) {
        let mut ticks = interval(Duration::from_millis(100));
        let mut last = String::new();
        let heard = async {
            loop {
                ticks.tick().await;
                let output = self.probe().await;
                last = String::from_utf8_lossy(&output.stdout).into_owned();
                if output.status.success() == open && last.contains(words) {
                    return;
                }
            }
        };
        let ended = timeout(PATIENCE, heard).await;
        assert!(ended.is_ok(), "the gate never said `{words}`, but `{last}`");
    }
}

async fn code(gate: &mut Child) -> Option<i32> {
    timeout(PATIENCE, gate.wait())
        .await
        .unwrap()
        .unwrap()
        .code()
}

fn terminate(gate: &Child) {
    let pid = i32::try_from(gate.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn s04_s05_a_pod_starts_when_master_and_pool_really_answer_and_is_told_what_is_missing_until_then()
 {
    let pod = Pod::new().await;
    let mut gate = pod.hold(&["--deadline-seconds=600", r#"--file=config.json={"a":1}"#]);
    pod.says(
        false,
        "GateWaiting: MasterUnreachable: the master 127.0.0.1:50051 cannot be connected to",
    )
    .await;
    assert_eq!(text(&pod.path("config.json")), r#"{"a":1}"#);

    let master = pod.place.master().await;
    pod.says(
        false,
        "GateWaiting: PoolPodNotReady: the master 127.0.0.1:50051 knows no segment of cluster kv in use",
    )
    .await;

    let engine = pod.place.engine().await;
    master
        .list(
            "kv.default.node-1.0",
            &engine.endpoint,
            engine.address + 4096,
        )
        .await;
    pod.says(true, "AsExpected: the pool answers").await;

    terminate(&gate);
    assert_eq!(code(&mut gate).await, Some(0));
}

#[tokio::test]
async fn the_own_nodes_pool_must_answer_and_a_third_party_only_warns() {
    let pod = Pod::new().await;
    let master = pod.place.master().await;
    let engine = pod.place.engine().await;
    master.list("kv.default.node-2.0", NOBODY, 1 << 58).await;
    let alone = pod.hold(&["--deadline-seconds=600"]);
    pod.says(false, "node node-1 has no pool, and none of 1 others answers: node-2 at 127.0.0.1:9, handshake port").await;
    drop(alone);

    master
        .list("kv.default.node-1.0", &engine.endpoint, 1 << 58)
        .await;
    let gate = pod.hold(&["--deadline-seconds=600"]);
    pod.says(false, "node-1 at 127.0.0.1").await;
    pod.says(false, "is not served there").await;
    drop(gate);

    let third = pod.place.engine().await;
    let other = Pod {
        directory: tempfile::tempdir().unwrap(),
        place: pod.place,
    };
    master
        .list("kv.default.node-3.0", &third.endpoint, third.address)
        .await;
    let _gate = other.hold_on("node-4", &["--deadline-seconds=600"]);
    other
        .says(true, "AsExpected: the pool answers, but not node-")
        .await;
}

#[tokio::test]
async fn s16_a_segment_that_is_missed_is_told_with_near_names_and_what_became_of_its_owner() {
    let pod = Pod::new().await;
    let master = pod.place.master().await;
    master.list("kw.default.node-1.0", NOBODY, 1 << 58).await;
    let gate = pod.hold(&["--deadline-seconds=600"]);
    pod.says(
        false,
        "SegmentUnknown: the master 127.0.0.1:50051 knows no segment of cluster kv in use, \
         but kw.default.node-1.0 (OK)",
    )
    .await;
    drop(gate);

    master.list("kv.default.node-1.0", NOBODY, 1 << 59).await;
    let dead = pod.hold(&["--deadline-seconds=600"]);
    pod.says(false, "its owner is dead, nobody listens there")
        .await;
    drop(dead);

    let engine = pod.place.engine().await;
    master
        .list("kv.default.node-1.1", &engine.endpoint, 1 << 60)
        .await;
    let _gate = pod.hold(&["--deadline-seconds=600"]);
    pod.says(false, "its owner restarted since the master listed it")
        .await;
}

#[tokio::test]
async fn a_master_of_another_generation_is_told_with_both_versions() {
    let pod = Pod::new().await;
    let _master = pod.place.master_of(MOONCAKE_BEFORE).await;
    let _gate = pod.hold(&["--deadline-seconds=600"]);
    pod.says(false, "GateWaiting: EngineVersionSkew: ").await;
    pod.says(false, "0.3.11 or older").await;
    pod.says(false, "speaks 0.3.13").await;
}

#[tokio::test]
async fn at_the_deadline_a_pod_is_let_go_with_the_reason_in_the_containers_last_words() {
    let pod = Pod::new().await;
    let mut gate = pod.hold(&["--deadline-seconds=1"]);
    assert_eq!(code(&mut gate).await, Some(1));
    let words = text(&pod.path("last-words"));
    let start = "GateTimedOut: after 1 s the pod starts all the same: MasterUnreachable: ";
    assert!(words.starts_with(start), "{words}");
    assert!(pod.probe().await.status.success());

    // The kubelet starts the container again; that life leaves the pod in peace.
    let mut next = pod.hold(&["--deadline-seconds=1"]);
    pod.says(true, "GateTimedOut: ").await;
    assert!(timeout(Duration::from_secs(3), next.wait()).await.is_err());
    terminate(&next);
    assert_eq!(code(&mut next).await, Some(0));
}

#[tokio::test]
async fn at_the_deadline_a_pod_fails_where_the_spec_says_so() {
    let pod = Pod::new().await;
    let mut gate = pod.hold(&["--deadline-seconds=1", "--on-deadline=fail"]);
    assert_eq!(code(&mut gate).await, Some(1));
    let words = text(&pod.path("last-words"));
    assert!(
        words.starts_with("GateTimedOut: after 1 s the pod does not start: "),
        "{words}"
    );
    assert!(!pod.probe().await.status.success());
}

#[tokio::test]
async fn a_master_is_ready_when_it_says_so_itself() {
    let pod = Pod::new().await;
    let ready = async || {
        let mut command = pod.place.command(GATE);
        command.arg("master-ready");
        timeout(PATIENCE, command.output()).await.unwrap().unwrap()
    };
    let before = ready().await;
    assert!(!before.status.success());
    let words = String::from_utf8_lossy(&before.stderr).into_owned();
    assert!(words.contains("127.0.0.1:9003 does not answer"), "{words}");
    let _master = pod.place.master().await;
    let mut ticks = interval(Duration::from_millis(100));
    let serves = async {
        while !ready().await.status.success() {
            ticks.tick().await;
        }
    };
    timeout(PATIENCE, serves)
        .await
        .expect("the master becomes ready");
}

#[tokio::test]
async fn the_gate_copies_itself_for_a_container_of_another_image() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut install = Command::new(GATE);
        install.arg("install").arg(directory.path());
        let output = timeout(PATIENCE, install.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let mut copy = Command::new(directory.path().join("gate"));
    let output = timeout(PATIENCE, copy.arg("--version").output())
        .await
        .unwrap()
        .unwrap();
    assert!(output.status.success());
}

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
/// Address without a listener.
const CLOSED_ADDRESS: &str = "127.0.0.1:9";

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

    /// Probes as the kubelet does until the output contains the text.
    async fn reports(&self, open: bool, words: &str) {
        let mut ticks = interval(Duration::from_millis(100));
        let mut last = String::new();
        let reported = async {
            loop {
                ticks.tick().await;
                let output = self.probe().await;
                last = String::from_utf8_lossy(&output.stdout).into_owned();
                if output.status.success() == open && last.contains(words) {
                    return;
                }
            }
        };
        let ended = timeout(PATIENCE, reported).await;
        assert!(ended.is_ok(), "the gate reported `{last}`, not `{words}`");
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
async fn a_pod_starts_when_master_and_pool_respond_and_reports_the_cause_until_then() {
    let pod = Pod::new().await;
    let mut gate = pod.hold(&["--deadline-seconds=600", r#"--file=config.json={"a":1}"#]);
    pod.reports(
        false,
        "GateWaiting: MasterUnreachable: cannot connect to the master 127.0.0.1:50051",
    )
    .await;
    assert_eq!(text(&pod.path("config.json")), r#"{"a":1}"#);

    let master = pod.place.master().await;
    pod.reports(
        false,
        "GateWaiting: PoolPodNotReady: the master 127.0.0.1:50051 has no segment of cluster kv in use",
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
    pod.reports(true, "AsExpected: the pool responds").await;

    terminate(&gate);
    assert_eq!(code(&mut gate).await, Some(0));
}

/// The text of a descriptor that peers can use.
fn descriptor(name: &str) -> String {
    format!(
        r#"{{"buffers":[{{"addr":4096,"length":4096,"name":"{name}"}}],"name":"{name}","protocol":"tcp","tcp_data_port":1}}"#
    )
}

#[tokio::test]
async fn the_metadata_service_must_have_the_descriptor_of_a_pool_pod() {
    const URL: &str = "http://127.0.0.1:8080/metadata";
    let pod = Pod::new().await;
    let master = pod.place.master().await;
    let engine = pod.place.engine().await;
    master
        .list("kv.default.node-1.0", &engine.endpoint, engine.address)
        .await;
    let argument = format!("--metadata={URL}");
    let mut gate = pod.hold(&["--deadline-seconds=600", &argument]);
    pod.reports(
        false,
        "MetadataUnreachable: metadata service http://127.0.0.1:8080/metadata at 127.0.0.1:8080: connection refused",
    )
    .await;
    let _server = pod.place.metadata_server();
    pod.reports(false, "it has no key mooncake/ram/127.0.0.1:")
        .await;
    let key = format!(
        "{URL}?key=mooncake%2Fram%2F{}",
        engine.endpoint.replace(':', "%3A")
    );
    pod.place.put(&key, &descriptor(&engine.endpoint)).await;
    pod.reports(true, "AsExpected: the pool responds").await;
    terminate(&gate);
    assert_eq!(code(&mut gate).await, Some(0));
}

#[tokio::test]
async fn a_metadata_service_with_an_ipv6_address_is_named_in_brackets() {
    for (url, named) in [
        (
            "http://[::1]:8080/metadata",
            "http://[::1]:8080/metadata at [::1]:8080: ",
        ),
        ("etcd://[::1]:2379", "etcd://[::1]:2379 at [::1]:2379: "),
    ] {
        let pod = Pod::new().await;
        let _master = pod.place.master().await;
        let argument = format!("--metadata={url}");
        let gate = pod.hold(&["--deadline-seconds=600", &argument]);
        let refused = format!("MetadataUnreachable: metadata service {named}connection refused");
        pod.reports(false, &refused).await;
        drop(gate);
    }
}

#[tokio::test]
async fn the_pool_of_the_node_must_respond_and_other_peers_only_warn() {
    let pod = Pod::new().await;
    let master = pod.place.master().await;
    let engine = pod.place.engine().await;
    master
        .list("kv.default.node-2.0", CLOSED_ADDRESS, 1 << 58)
        .await;
    let alone = pod.hold(&["--deadline-seconds=600"]);
    pod.reports(false, "node node-1 has no pool pod, and none of 1 others responds: node-2 at 127.0.0.1:9, handshake port").await;
    drop(alone);

    master
        .list("kv.default.node-1.0", &engine.endpoint, 1 << 58)
        .await;
    let gate = pod.hold(&["--deadline-seconds=600"]);
    pod.reports(false, "node-1 at 127.0.0.1").await;
    pod.reports(false, "is not served there").await;
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
        .reports(true, "AsExpected: the pool responds, except node-")
        .await;
}

#[tokio::test]
async fn a_missing_segment_is_reported_with_similar_names_and_its_owner() {
    let pod = Pod::new().await;
    let master = pod.place.master().await;
    master
        .list("kw.default.node-1.0", CLOSED_ADDRESS, 1 << 58)
        .await;
    let gate = pod.hold(&["--deadline-seconds=600"]);
    pod.reports(
        false,
        "SegmentUnknown: the master 127.0.0.1:50051 has no segment of cluster kv in use, \
         but kw.default.node-1.0 (OK)",
    )
    .await;
    drop(gate);

    master
        .list("kv.default.node-1.0", CLOSED_ADDRESS, 1 << 59)
        .await;
    let dead = pod.hold(&["--deadline-seconds=600"]);
    pod.reports(false, "its owner is not running, nothing listens there")
        .await;
    drop(dead);

    let engine = pod.place.engine().await;
    master
        .list("kv.default.node-1.1", &engine.endpoint, 1 << 60)
        .await;
    let _gate = pod.hold(&["--deadline-seconds=600"]);
    pod.reports(false, "its owner restarted since the master listed it")
        .await;
}

#[tokio::test]
async fn a_master_of_another_release_is_reported_with_both_versions() {
    let pod = Pod::new().await;
    let _master = pod.place.master_of(MOONCAKE_BEFORE).await;
    let _gate = pod.hold(&["--deadline-seconds=600"]);
    pod.reports(false, "GateWaiting: EngineVersionSkew: ").await;
    pod.reports(false, "0.3.11 or older").await;
    pod.reports(false, "supports 0.3.13").await;
}

#[tokio::test]
async fn at_the_deadline_a_pod_starts_and_the_termination_message_has_the_cause() {
    let pod = Pod::new().await;
    let mut gate = pod.hold(&["--deadline-seconds=3"]);
    assert_eq!(code(&mut gate).await, Some(1));
    let words = text(&pod.path("last-words"));
    let start = "GateTimedOut: after 3 s the pod starts without it: MasterUnreachable: ";
    assert!(words.starts_with(start), "{words}");
    assert!(pod.probe().await.status.success());

    // The kubelet restarts the container, which does not delay the pod again.
    let mut next = pod.hold(&["--deadline-seconds=3"]);
    pod.reports(true, "GateTimedOut: ").await;
    assert!(timeout(Duration::from_secs(5), next.wait()).await.is_err());
    terminate(&next);
    assert_eq!(code(&mut next).await, Some(0));
}

#[tokio::test]
async fn at_the_deadline_a_pod_fails_if_the_spec_requires_it() {
    let pod = Pod::new().await;
    let mut gate = pod.hold(&["--deadline-seconds=3", "--on-deadline=fail"]);
    assert_eq!(code(&mut gate).await, Some(1));
    let words = text(&pod.path("last-words"));
    assert!(
        words.starts_with("GateTimedOut: after 3 s the pod does not start: "),
        "{words}"
    );
    assert!(!pod.probe().await.status.success());
}

#[tokio::test]
async fn a_master_is_ready_when_it_reports_readiness() {
    let pod = Pod::new().await;
    let ready = async || {
        let mut command = pod.place.command(GATE);
        command.arg("master-ready");
        timeout(PATIENCE, command.output()).await.unwrap().unwrap()
    };
    let before = ready().await;
    assert!(!before.status.success());
    let words = String::from_utf8_lossy(&before.stderr).into_owned();
    assert!(words.contains("127.0.0.1:9003 does not respond"), "{words}");
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

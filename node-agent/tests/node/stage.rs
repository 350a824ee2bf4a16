//! A node without Kubernetes: network namespaces joined by a cable, a procfs in which processes
//! have the cgroups of pods, an agent that reads its assignments from a file.

use std::ffi::OsStr;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval, timeout};

/// For anything that a test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Where the stock side is.
pub(crate) const PEERS_IP: &str = "10.77.0.1";
/// Where the pool pod is.
pub(crate) const POOL_IP: &str = "10.77.0.2";
/// Memory of the pool pod.
pub(crate) const POOL_BYTES: u64 = 64 << 20;

/// Looks again and again until something is there.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut tick = interval(Duration::from_millis(50));
    loop {
        tick.tick().await;
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
    }
}

/// A network namespace; it ends with the process that holds it.
pub(crate) struct Space {
    holder: Child,
}

impl Space {
    pub(crate) async fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up && echo up && exec sleep 600")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("unshare starts (this test needs root)");
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(
            line.as_deref(),
            Some("up"),
            "no namespace (this test needs root)"
        );
        Self { holder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.holder.id().unwrap()
    }

    /// A command to be run inside.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.pid()))
            .arg(program)
            .kill_on_drop(true);
        command
    }

    async fn ip(&self, words: &str) {
        let status = self
            .command("ip".as_ref())
            .args(words.split(' '))
            .status()
            .await
            .unwrap();
        assert!(status.success(), "ip {words}");
    }

    /// Joins two namespaces by a cable.
    async fn join(&self, address: &str, other: &Self, other_address: &str) {
        let peer = other.pid();
        self.ip(&format!(
            "link add eth0 type veth peer name eth0 netns {peer}"
        ))
        .await;
        for (space, address) in [(self, address), (other, other_address)] {
            space.ip(&format!("addr add {address}/24 dev eth0")).await;
            space.ip("link set eth0 up").await;
        }
    }
}

/// Everything but the processes under test.
pub(crate) struct Node {
    pub(crate) peers: Space,
    pub(crate) pod: Space,
    agents: Space,
    folder: tempfile::TempDir,
}

impl Node {
    pub(crate) async fn new() -> Self {
        let (peers, pod, agents) = (Space::new().await, Space::new().await, Space::new().await);
        peers.join(PEERS_IP, &pod, POOL_IP).await;
        let folder = tempfile::tempdir().unwrap();
        for part in ["proc", "state"] {
            std::fs::create_dir(folder.path().join(part)).unwrap();
        }
        Self {
            peers,
            pod,
            agents,
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Shows a process in the node's procfs, in the cgroup of a pod.
    pub(crate) fn show(&self, pid: u32, pod_uid: &str) {
        let entry = self.path("proc").join(pid.to_string());
        std::fs::create_dir_all(&entry).unwrap();
        std::fs::write(
            entry.join("cgroup"),
            format!("0::/kubepods/pod{pod_uid}/x\n"),
        )
        .unwrap();
        std::os::unix::fs::symlink(format!("/proc/{pid}/ns"), entry.join("ns")).unwrap();
        // Last: with it the process is to be seen.
        std::fs::write(entry.join("comm"), "pool\n").unwrap();
    }

    /// Lets a process have the cgroup of a pod and the network namespace of another process, without
    /// the name of a pool process.
    pub(crate) fn show_only_cgroup(&self, pid: u32, pod_uid: &str, network_of: u32) {
        let entry = self.path("proc").join(pid.to_string());
        std::fs::create_dir_all(&entry).unwrap();
        std::fs::write(
            entry.join("cgroup"),
            format!("0::/kubepods/pod{pod_uid}/x\n"),
        )
        .unwrap();
        std::os::unix::fs::symlink(format!("/proc/{network_of}/ns"), entry.join("ns")).unwrap();
        std::fs::write(entry.join("comm"), "impostor\n").unwrap();
    }

    /// Starts a pool process and shows it as one of a pod.
    pub(crate) fn pool(&self, pod_uid: &str) -> Child {
        let child = self
            .pod
            .command(env!("CARGO_BIN_EXE_pool").as_ref())
            .args(["serve", "--cluster", "c", "--pool", "default"])
            .arg(format!("--bytes={POOL_BYTES}"))
            .env("POD_UID", pod_uid)
            .env("POD_NAME", pod_name(pod_uid))
            .env("POD_NAMESPACE", "ns")
            .env("POD_IP", POOL_IP)
            .env("NODE_NAME", "n1")
            .spawn()
            .unwrap();
        self.show(child.id().unwrap(), pod_uid);
        child
    }

    /// Says which pods are assigned, each with the master of this UID.
    pub(crate) fn assign(&self, pods: &[(&str, Option<&str>)]) {
        let pools: Vec<Value> = pods
            .iter()
            .map(|(uid, master)| assignment(uid, *master))
            .collect();
        let node = json!({
            "apiVersion": "mooncake.io/v1alpha1",
            "kind": "MooncakeNode",
            "metadata": {"name": "n1"},
            "spec": {"nodeUid": "n", "bootId": "b", "pools": pools},
        });
        let fresh = self.path("assignments.new");
        std::fs::write(&fresh, node.to_string()).unwrap();
        std::fs::rename(fresh, self.path("assignments")).unwrap();
    }

    /// As if the API were away.
    pub(crate) fn unassign(&self) {
        std::fs::remove_file(self.path("assignments")).unwrap();
    }

    fn agent_in(&self, space: &Space) -> Child {
        let mut command = space.command(env!("CARGO_BIN_EXE_agent").as_ref());
        command
            .args([OsStr::new("worker"), "--assignments-file".as_ref()])
            .arg(self.path("assignments"))
            .env("NODE_NAME", "n1")
            .env("POD_UID", "agent")
            .env("POD_NAMESPACE", "mooncake-system")
            .env("STATE_DIR", self.path("state"))
            .env("HOST_PROC", self.path("proc"))
            .env("LOG", "info");
        command.spawn().unwrap()
    }

    /// Starts a worker, without its supervisor.
    pub(crate) fn agent(&self) -> Child {
        self.agent_in(&self.agents)
    }

    /// Starts another, whose port is its own.
    pub(crate) fn second_agent(&self) -> Child {
        self.agent_in(&self.peers)
    }

    /// What the agent's port answers at this path.
    pub(crate) async fn http(&self, path: &str) -> Option<String> {
        http(&self.agents, path).await
    }

    /// What the second agent's port answers at this path.
    pub(crate) async fn second_http(&self, path: &str) -> Option<String> {
        http(&self.peers, path).await
    }

    /// Whether the metrics show a pod in this state, for this reason.
    pub(crate) async fn shows(&self, state: &str, reason: &str) -> Option<()> {
        let text = self.http("/metrics").await?;
        let labels = format!("state=\"{state}\",reason=\"{reason}\"");
        text.contains(&labels).then_some(())
    }

    /// Data connections that peers have to the pool now.
    pub(crate) async fn connections(&self) -> u64 {
        let text = self.http("/metrics").await.unwrap();
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("mooncake_agent_connections{"));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok())
            .unwrap_or(0)
    }

    /// What `pool probe` says in the pod.
    pub(crate) async fn probe(&self, what: &str) -> Result<String, String> {
        let output = self
            .pod
            .command(env!("CARGO_BIN_EXE_pool").as_ref())
            .args(["probe", what])
            .output();
        let output = timeout(PATIENCE, output).await.unwrap().unwrap();
        let words = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(words(&output.stdout))
        } else {
            Err(words(&output.stderr))
        }
    }

    pub(crate) async fn ready(&self) {
        eventually("the pool is ready", || async {
            self.probe("ready").await.ok()
        })
        .await;
    }
}

async fn http(space: &Space, path: &str) -> Option<String> {
    let script = "import sys,urllib.request,urllib.error\n\
        try: print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())\n\
        except urllib.error.HTTPError as e: print(e.code, e.read().decode())";
    let url = format!("http://127.0.0.1:9464{path}");
    let output = space
        .command("python3".as_ref())
        .args(["-c", script, &url])
        .stderr(Stdio::null())
        .output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

pub(crate) fn pod_name(pod_uid: &str) -> String {
    format!("c-pool-default-{}", &pod_uid[..4])
}

fn assignment(pod_uid: &str, master: Option<&str>) -> Value {
    let mut assignment = json!({
        "podUid": pod_uid, "podName": pod_name(pod_uid), "namespace": "ns",
        "cluster": "c", "clusterUid": "cu", "pool": "default",
        "size": POOL_BYTES, "pageSize": "4Ki", "numaPolicy": "Spread",
        "drainSeconds": 1, "addresses": [PEERS_IP],
    });
    if let Some(uid) = master {
        assignment["master"] = json!({
            "address": format!("{PEERS_IP}:50051"), "podUid": uid, "version": "0.3.13",
        });
    }
    assignment
}

/// Ends a process as the kernel's OOM killer would, and waits until it is gone.
pub(crate) async fn kill(mut child: Child) {
    child.kill().await.unwrap();
}

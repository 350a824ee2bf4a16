//! A node without Kubernetes: network namespaces connected by veth, a procfs in which processes have the
//! cgroups of pods, and an agent that reads its assignments from a file.

use std::ffi::OsStr;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crds::names;
use local_cluster::command::Run;
use mooncake_stock::Space;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::{Instant, interval, timeout};

/// Limit of a build.
const BUILD: Duration = Duration::from_secs(15 * 60);
/// Limit of any wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Address of the stock peers.
pub(crate) const PEERS_IP: &str = "10.77.0.1";
/// Address of the pool pod.
pub(crate) const POOL_IP: &str = "10.77.0.2";
/// Addresses of another pool pod, and of the stock peers on its network.
pub(crate) const SECOND_POOL_IP: &str = "10.79.0.2";
const SECOND_PEERS_IP: &str = "10.79.0.1";
/// Port of the master.
pub(crate) const MASTER_PORT: u16 = 50051;
/// Memory of the pool pod.
pub(crate) const POOL_BYTES: u64 = 64 << 20;

/// Polls until `look` returns a value.
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

/// Returns the path of our master.
pub(crate) fn master_program() -> PathBuf {
    pool_program().with_file_name("mooncake-master")
}

/// Returns the path of the pool program. It, the engine program and our master lie beside the agent's. A run of the whole workspace
/// builds them before the tests and states that in the environment; else they are built at first use.
fn pool_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if std::env::var_os("MOONCAKE_TEST_PROGRAMS").is_none() {
            let programs = ["pool", "engine", "mooncake-master"];
            Run::cargo()
                .args(["build", "--quiet", "--locked", "--workspace"])
                .args(programs.iter().flat_map(|name| ["--bin", name]))
                .deadline(BUILD)
                .done()
                .unwrap();
        }
        Path::new(env!("CARGO_BIN_EXE_agent")).with_file_name("pool")
    })
}

async fn ip(space: &Space, words: &str) {
    let status = space.command("ip").args(words.split(' ')).status();
    assert!(status.await.unwrap().success(), "ip {words}");
}

/// Connects two namespaces by a veth pair.
async fn join(name: &str, one: &Space, address: &str, other: &Space, other_address: &str) {
    let peer = other.pid();
    let cable = format!("link add {name} type veth peer name {name} netns {peer}");
    ip(one, &cable).await;
    for (space, address) in [(one, address), (other, other_address)] {
        ip(space, &format!("addr add {address}/24 dev {name}")).await;
        ip(space, &format!("link set {name} up")).await;
    }
}

/// The node without the processes under test.
pub(crate) struct Node {
    /// The UID of a pod that no other node has. An engine process has a user ID by it, and an agent kills the process that has
    /// the user ID and accepts no connection: that of another test, if they had the same UID.
    pub(crate) pod_uid: String,
    pub(crate) peers: Space,
    pub(crate) pod: Space,
    agents: Space,
    folder: tempfile::TempDir,
}

impl Node {
    pub(crate) async fn new() -> Self {
        static NODES: AtomicU32 = AtomicU32::new(0);
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        // Before the deadlines of a test begin.
        pool_program();
        let peers = Space::new().await.unwrap();
        let pod = Space::new().await.unwrap();
        let agents = Space::new().await.unwrap();
        join("eth0", &peers, PEERS_IP, &pod, POOL_IP).await;
        join("eth1", &agents, "10.78.0.2", &peers, "10.78.0.1").await;
        ip(&agents, &format!("route add {PEERS_IP} via 10.78.0.1")).await;
        let folder = tempfile::tempdir().unwrap();
        for part in ["proc", "state"] {
            std::fs::create_dir(folder.path().join(part)).unwrap();
        }
        let node = Self {
            pod_uid: format!("eeee0000-0000-4000-8000-{number:012x}"),
            peers,
            pod,
            agents,
            folder,
        };
        node.available(1 << 40);
        node
    }

    /// Sets the available memory of the node.
    pub(crate) fn available(&self, bytes: u64) {
        let fresh = self.path("meminfo");
        std::fs::write(&fresh, format!("MemAvailable: {} kB\n", bytes >> 10)).unwrap();
        std::fs::rename(fresh, self.path("proc").join("meminfo")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a process to the node's procfs, in the cgroup of a pod.
    pub(crate) fn show(&self, pid: u32, pod_uid: &str) {
        self.show_as("pool", pid, pod_uid, pid);
    }

    /// Adds a process with the cgroup of a pod and the network namespace of another process, but not with the
    /// name of a pool process.
    pub(crate) fn show_only_cgroup(&self, pid: u32, pod_uid: &str, network_of: u32) {
        self.show_as("impostor", pid, pod_uid, network_of);
    }

    fn show_as(&self, name: &str, pid: u32, pod_uid: &str, network_of: u32) {
        let entry = self.path("proc").join(pid.to_string());
        std::fs::create_dir_all(&entry).unwrap();
        std::fs::write(
            entry.join("cgroup"),
            format!("0::/kubepods/pod{pod_uid}/x\n"),
        )
        .unwrap();
        let link = |of: u32, file: &str| {
            std::os::unix::fs::symlink(format!("/proc/{of}/{file}"), entry.join(file)).unwrap();
        };
        link(network_of, "ns");
        link(pid, "stat");
        // Last, because it makes the process visible.
        std::fs::write(entry.join("comm"), format!("{name}\n")).unwrap();
    }

    /// Makes the network of a second pool pod. All pods and peers reach each other.
    pub(crate) async fn second_pod(&self) -> Space {
        let second = Space::new().await.unwrap();
        join(
            "eth2",
            &self.peers,
            SECOND_PEERS_IP,
            &second,
            SECOND_POOL_IP,
        )
        .await;
        ip(&second, &format!("route add default via {SECOND_PEERS_IP}")).await;
        ip(&self.pod, &format!("route add default via {PEERS_IP}")).await;
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        let forward = self.peers.command("sh").args(["-c", forward]).status();
        assert!(forward.await.unwrap().success());
        second
    }

    /// Starts a pool process and adds it as a process of the pod.
    pub(crate) fn pool(&self, pod_uid: &str) -> Child {
        self.pool_in(&self.pod, "default", POOL_IP, pod_uid)
    }

    /// Starts a pool process of another pod.
    pub(crate) fn pool_in(&self, pod: &Space, pool: &str, address: &str, pod_uid: &str) -> Child {
        self.pool_with(pod, pool, address, pod_uid, &[])
    }

    /// Starts a pool process with further flags.
    pub(crate) fn pool_with(
        &self,
        pod: &Space,
        pool: &str,
        address: &str,
        pod_uid: &str,
        flags: &[&str],
    ) -> Child {
        let child = pod
            .command(pool_program())
            .args(["serve", "--cluster", "c", "--pool", pool])
            .arg(format!("--bytes={POOL_BYTES}"))
            .args(flags)
            .env("POD_UID", pod_uid)
            .env("POD_NAME", pod_name(pod_uid))
            .env("POD_NAMESPACE", "ns")
            .env("POD_IP", address)
            .env("NODE_NAME", "n1")
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        // An agent opens the network of a process once, when it finds it, and `nsenter` enters it after the start.
        let network = |pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        let begun = Instant::now();
        while network(pid) != network(pod.pid()) {
            assert!(begun.elapsed() < PATIENCE, "not in the network of the pod");
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.show(pid, pod_uid);
        child
    }

    /// Assigns pods, each with the UID of its master.
    pub(crate) fn assign(&self, pods: &[(&str, Option<&str>)]) {
        let pools = pods.iter().map(|(uid, master)| assignment(uid, *master));
        self.write_assignments(pools.collect());
    }

    /// Assigns a pod of each pool, which reach each other, with a drain period in seconds.
    pub(crate) fn assign_pools(&self, pools: &[(&str, &str)], master: &str, drain: u32) {
        let pools = pools.iter().map(|(name, uid)| (*name, *uid, MASTER_PORT));
        self.assign_to_masters(&pools.collect::<Vec<_>>(), master, drain);
    }

    /// The same, each with the port of its master.
    pub(crate) fn assign_to_masters(&self, pools: &[(&str, &str, u16)], master: &str, drain: u32) {
        self.assign_admitting(pools, master, drain, &[]);
    }

    /// The same, and further addresses that may connect.
    pub(crate) fn assign_admitting(
        &self,
        pools: &[(&str, &str, u16)],
        master: &str,
        drain: u32,
        further: &[String],
    ) {
        let all = [PEERS_IP, SECOND_PEERS_IP, POOL_IP, SECOND_POOL_IP];
        let addresses: Vec<&str> = all
            .into_iter()
            .chain(further.iter().map(String::as_str))
            .collect();
        let pools = pools.iter().map(|(name, uid, port)| {
            let mut pool = assignment(uid, Some(master));
            pool["pool"] = json!(name);
            pool["drainSeconds"] = json!(drain);
            pool["master"]["address"] = json!(format!("{PEERS_IP}:{port}"));
            pool["addresses"] = json!(addresses);
            pool
        });
        self.write_assignments(pools.collect());
    }

    /// Gives the peers further addresses, at most 100, in the network of the pool pod.
    pub(crate) async fn further_peers(&self, count: u8) -> Vec<String> {
        let addresses: Vec<_> = (0..count).map(|n| format!("10.77.0.{}", 100 + n)).collect();
        for address in &addresses {
            ip(&self.peers, &format!("addr add {address}/24 dev eth0")).await;
        }
        addresses
    }

    /// Assigns a pod of a cluster with a metadata service.
    pub(crate) fn assign_with_metadata(&self, pod: &str, master: &str, metadata: Value) {
        let mut pool = assignment(pod, Some(master));
        pool["metadata"] = metadata;
        self.write_assignments(vec![pool]);
    }

    /// Assigns a pod of a cluster with a transport.
    pub(crate) fn assign_with_transport(&self, pod: &str, master: &str, transport: &str) {
        let mut pool = assignment(pod, Some(master));
        pool["transport"] = json!(transport);
        self.write_assignments(vec![pool]);
    }

    fn write_assignments(&self, pools: Vec<Value>) {
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

    /// Removes the assignments, as if the API were unavailable.
    pub(crate) fn unassign(&self) {
        std::fs::remove_file(self.path("assignments")).unwrap();
    }

    fn agent_in(&self, space: &Space) -> Child {
        self.agent_of(space, Path::new(env!("CARGO_BIN_EXE_agent")))
    }

    fn agent_of(&self, space: &Space, program: &Path) -> Child {
        let mut command = space.command(program);
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

    /// Starts a worker without its supervisor.
    pub(crate) fn agent(&self) -> Child {
        self.agent_in(&self.agents)
    }

    /// Starts a worker of another release: its engine program has one byte more for each number.
    pub(crate) fn agent_of_release(&self, number: u8) -> Child {
        let folder = self.path(&format!("release-{number}"));
        std::fs::create_dir(&folder).unwrap();
        let from = Path::new(env!("CARGO_BIN_EXE_agent"));
        let [agent, engine] = ["agent", "engine"].map(|name| folder.join(name));
        std::fs::copy(from, &agent).unwrap();
        let mut bytes = std::fs::read(from.with_file_name("engine")).unwrap();
        bytes.resize(bytes.len() + usize::from(number), 0);
        // With its permissions.
        std::fs::copy(from.with_file_name("engine"), &engine).unwrap();
        std::fs::write(&engine, bytes).unwrap();
        self.agent_of(&self.agents, &agent)
    }

    /// Starts a worker of another release whose first start of an engine process fails. Returns the file that marks that too.
    pub(crate) fn agent_whose_first_start_fails(&self) -> (Child, PathBuf) {
        let folder = self.path("release-that-fails");
        std::fs::create_dir(&folder).unwrap();
        let from = Path::new(env!("CARGO_BIN_EXE_agent"));
        let [agent, engine, failed] = ["agent", "engine", "failed"].map(|name| folder.join(name));
        std::fs::copy(from, &agent).unwrap();
        let own = from.with_file_name("engine");
        // With its permissions.
        std::fs::copy(&own, &engine).unwrap();
        let (marker, own) = (failed.display(), own.display());
        let script = format!(
            "#!/bin/sh\n[ -e {marker} ] && exec {own} \"$@\"\n: > {marker}\necho failed >&2\nexit 1\n"
        );
        std::fs::write(&engine, script).unwrap();
        (self.agent_of(&self.agents, &agent), failed)
    }

    /// Starts a second worker, in another network namespace.
    pub(crate) fn second_agent(&self) -> Child {
        self.agent_in(&self.peers)
    }

    /// Returns the engine process of this node, if exactly one runs.
    pub(crate) fn engine_process(&self) -> Option<u32> {
        match self.engine_processes()[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Returns the engine processes of this node.
    pub(crate) fn engine_processes(&self) -> Vec<u32> {
        let programs = self.path("state").join("engines");
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let engines = processes.filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let program = std::fs::read_link(process.path().join("exe")).ok()?;
            program.starts_with(&programs).then_some(pid)
        });
        engines.collect()
    }

    /// Returns the HTTP response of the agent.
    pub(crate) async fn http(&self, path: &str) -> Option<String> {
        http(&self.agents, path).await
    }

    /// Returns the HTTP response of the second agent.
    pub(crate) async fn second_http(&self, path: &str) -> Option<String> {
        http(&self.peers, path).await
    }

    /// The control socket of the engine process of a pod.
    pub(crate) fn control(&self, pod_uid: &str) -> PathBuf {
        let engines = self.path("state").join("engines");
        engines.join(pod_uid).join("control")
    }

    /// Whether the metrics report a pod with this state and Reason.
    pub(crate) async fn shows(&self, state: &str, reason: &str) -> Option<()> {
        let text = self.http("/metrics").await?;
        let labels = format!("state=\"{state}\",reason=\"{reason}\"");
        text.contains(&labels).then_some(())
    }

    /// Returns the number of data connections of peers to the pool, from the kernel: the metrics are up to 2 seconds old.
    pub(crate) fn connections(&self) -> u64 {
        sockets(&self.pod, names::POOL_DATA_PORT, ESTABLISHED)
    }

    /// True if the port that the kubelet's readiness probe connects to is open.
    pub(crate) fn ready_port(&self) -> bool {
        sockets(&self.pod, names::POOL_READY_PORT, LISTENING) == 1
    }

    /// Runs `pool probe` in the pod.
    pub(crate) async fn probe(&self, what: &str) -> Result<String, String> {
        let mut program = self.pod.command(pool_program());
        let output = program.args(["probe", what]).output();
        let output = timeout(PATIENCE, output).await.unwrap().unwrap();
        let words = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(words(&output.stdout))
        } else {
            Err(words(&output.stderr))
        }
    }

    pub(crate) async fn ready(&self) {
        self.ready_in(&self.pod).await;
    }

    /// Waits until the pool of another pod is ready.
    pub(crate) async fn ready_in(&self, pod: &Space) {
        eventually("the pool is ready", || async {
            (sockets(pod, names::POOL_READY_PORT, LISTENING) == 1).then_some(())
        })
        .await;
    }
}

/// State of a socket in `/proc/PID/net/tcp`, as in proc_pid_net(5).
pub(crate) const ESTABLISHED: &str = "01";
const LISTENING: &str = "0A";

/// Returns the number of TCP sockets of a pod with a local port and a state.
pub(crate) fn sockets(pod: &Space, port: u16, state: &str) -> u64 {
    let table = |name| format!("/proc/{}/net/{name}", pod.pid());
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(table(name)).unwrap());
    let port = format!(":{port:04X}");
    let counted = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1].ends_with(&port) && fields[3] == state
    };
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    lines.filter(counted).count() as u64
}

async fn http(space: &Space, path: &str) -> Option<String> {
    let script = "import sys,urllib.request,urllib.error\n\
        try: print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())\n\
        except urllib.error.HTTPError as e: print(e.code, e.read().decode())";
    let port = if path == "/metrics" { 9464 } else { 9467 };
    let url = format!("http://127.0.0.1:{port}{path}");
    let output = space
        .command("python3")
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
            "address": format!("{PEERS_IP}:{MASTER_PORT}"), "podUid": uid, "version": "0.3.13",
        });
    }
    assignment
}

/// Kills a process like the kernel's OOM killer, and waits for its end.
pub(crate) async fn kill(mut child: Child) {
    child.kill().await.unwrap();
}

/// Whether an engine process has finished its start: the process that starts it ends then.
pub(crate) fn is_in_sandbox(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("Seccomp:\t2")
}

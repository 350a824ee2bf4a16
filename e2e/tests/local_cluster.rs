//! Tests of the local Kubernetes itself: crashes of its starter, two clusters side by side, partitions, killed parts.

use anyhow::{Context, ensure};
use local_cluster::process::owned_by;
use local_cluster::{Cluster, Error, NodeKind, Part, Scale, Settings, Spec, images};
use mooncake_e2e::clusters::OF_LOCAL_KUBERNETES;
use mooncake_e2e::product;
use mooncake_e2e::scenario::{
    Seen, StockPod, StockWork, TestCluster, eventually, watches_resume, with_namespace,
};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

const SOON: Duration = Duration::from_secs(180);

/// Held by the test that uses the shared cluster. Other tests have clusters of their own.
static SHARED: Mutex<()> = Mutex::const_new(());

fn settings() -> Settings {
    Settings::read()
}

async fn cluster() -> anyhow::Result<(MutexGuard<'static, ()>, TestCluster)> {
    let guard = SHARED.lock().await;
    Ok((
        guard,
        TestCluster::named(settings(), OF_LOCAL_KUBERNETES[0].to_owned()).await?,
    ))
}

/// Runs a test with clusters of its own and removes them afterwards, also when the test fails.
async fn with_own(
    names: &[&str],
    test: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let listed = |name: &&str| OF_LOCAL_KUBERNETES.contains(name);
    ensure!(
        names.iter().all(listed),
        "`make test` does not remove {names:?} after an interruption: list them in e2e/src/clusters.rs"
    );
    let outcome = test.await;
    let downs = names.iter().map(|name| Cluster::down(&settings(), name));
    // All of them, also when one stays.
    let gone: Vec<_> = downs.collect();
    outcome?;
    Ok(gone.into_iter().collect::<Result<(), Error>>()?)
}

/// A cluster of one node.
fn spec(name: &str, dual_stack: bool) -> Spec {
    Spec {
        name: name.to_owned(),
        index: None,
        nodes: 1,
        dual_stack,
    }
}

/// Everything on the machine with a cluster's name.
fn remains(name: &str) -> Vec<String> {
    let mut found: Vec<String> = ["/run/netns", "/sys/class/net"]
        .into_iter()
        .filter_map(|folder| Path::new(folder).read_dir().ok())
        .flat_map(|entries| entries.flatten())
        .map(|entry| entry.path().display().to_string())
        .filter(|path| path.contains(&format!("/{name}-")))
        .collect();
    let state = settings().state.join(name);
    if state.exists() {
        found.push(state.display().to_string());
    }
    found.extend(cgroups(Path::new("/sys/fs/cgroup"), name));
    // The variable of the kubelet, containerd and their children; the others have the folder on their command line.
    found.extend(owned_by(&state).iter().map(|pid| format!("process {pid}")));
    for process in Path::new("/proc")
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
    {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&format!("{}/", state.display())) {
            found.push(line);
        }
    }
    let machine = std::fs::read("/run/mooncake-k8s/machine.json").unwrap_or_default();
    let machine = serde_json::from_slice(&machine).unwrap_or_default();
    found.extend(recorded(&machine, name));
    found
}

/// The cgroups of a cluster: one per hierarchy, or with version 2 a single one.
fn cgroups(root: &Path, name: &str) -> Vec<String> {
    let hierarchies = root.read_dir().into_iter().flatten().flatten();
    let places = [root.to_owned()]
        .into_iter()
        .chain(hierarchies.map(|entry| entry.path()));
    let groups = places.map(|place| place.join(format!("mck8s-{name}")));
    groups
        .filter(|group| group.exists())
        .map(|group| group.display().to_string())
        .collect()
}

/// What the record of the machine still has of a cluster, and after the last cluster also of changes to the machine.
fn recorded(machine: &Value, name: &str) -> Vec<String> {
    let claims = machine["claims"].as_object().cloned().unwrap_or_default();
    let mut found: Vec<_> = claims
        .values()
        .filter(|claim| claim["name"] == name)
        .map(|claim| format!("claim {claim}"))
        .collect();
    if claims.is_empty() {
        for change in [
            "sysctls",
            "folders",
            "mounted_hugetlb",
            "loaded_bridge_filter",
        ] {
            let value = &machine[change];
            let none = [&json!({}), &json!([]), &json!(false), &Value::Null];
            if !none.contains(&value) {
                found.push(format!("{change} {value}"));
            }
        }
    }
    found
}

#[test]
fn remains_are_found_with_cgroups_of_either_version_and_in_the_record_of_the_machine() {
    let root = tempfile::tempdir().unwrap();
    let none = cgroups(root.path(), "crash");
    assert!(none.is_empty(), "{none:?}");
    for version in ["mck8s-crash", "memory/mck8s-crash"] {
        let group = root.path().join(version);
        std::fs::create_dir_all(&group).unwrap();
        let found = cgroups(root.path(), "crash");
        assert_eq!(found, [group.display().to_string()]);
        std::fs::remove_dir(&group).unwrap();
    }
    let other = json!({"claims": {"0": {"name": "tool"}}, "sysctls": {"vm/x": "1"}});
    assert!(recorded(&other, "crash").is_empty());
    assert_eq!(recorded(&other, "tool").len(), 1);
    let changed = json!({"claims": {}, "sysctls": {"vm/x": "1"}, "folders": []});
    assert_eq!(recorded(&changed, "crash"), [r#"sysctls {"vm/x":"1"}"#]);
}

/// Runs `local-cluster up` and kills it as soon as it has recorded a part.
async fn start_and_kill(name: &str, part: Part) -> anyhow::Result<()> {
    let output = tempfile::NamedTempFile::new()?;
    let mut starter = Command::new(product::local_cluster()?)
        .args(["up", "--name", name, "--nodes", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output.reopen()?)
        .spawn()?;
    let recorded = settings()
        .state
        .join(name)
        .join("pid")
        .join(part.to_string());
    let mut ended = None;
    let reached = eventually(format!("{part} to be started"), SOON, || {
        ended = starter.try_wait().ok().flatten();
        let there = recorded.exists() || ended.is_some();
        async move { Ok(Seen::when(there.then_some(()), "not yet")) }
    })
    .await;
    starter.kill()?;
    starter.wait()?;
    let output = std::fs::read_to_string(output.path())?;
    reached.with_context(|| output.clone())?;
    ensure!(ended.is_none(), "`up` ended by itself: {output}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes clusters"]
async fn down_removes_everything_that_a_killed_up_has_left() -> anyhow::Result<()> {
    let name = "crash";
    with_own(&[name], async {
        // Each later than the one before: before the control plane, with it, with nodes.
        for part in [Part::Etcd, Part::Controllers, Part::Kubelet(1)] {
            start_and_kill(name, part).await?;
            ensure!(!remains(name).is_empty(), "`up` had created nothing yet");
            Cluster::down(&settings(), name).with_context(|| format!("killed at {part}"))?;
            let left = remains(name);
            ensure!(left.is_empty(), "killed at {part}, left: {left:#?}");
        }
        Cluster::down(&settings(), name).context("a second time")?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes clusters"]
async fn up_replaces_what_an_unfinished_up_has_left() -> anyhow::Result<()> {
    let name = "again";
    with_own(&[name], async {
        start_and_kill(name, Part::ApiServer).await?;
        ensure!(
            matches!(
                Cluster::attach(&settings(), name),
                Err(Error::NoCluster { .. })
            ),
            "an incomplete cluster must not be found"
        );
        let spec = spec(name, false);
        let cluster = Cluster::up(&settings(), &spec)?;
        cluster.kubectl().run(["get", "nodes"])?;
        Cluster::down(&settings(), name)?;
        let left = remains(name);
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes clusters"]
async fn up_replaces_a_cluster_that_ended_with_its_machine() -> anyhow::Result<()> {
    let name = "reboot";
    with_own(&[name], async {
        let spec = spec(name, false);
        let cluster = Cluster::up(&settings(), &spec)?;
        let parts = cluster.status()?;
        let pids: Vec<_> = parts.iter().map(|part| part.pid.to_string()).collect();
        let killed = Command::new("kill").arg("-KILL").args(&pids).status()?;
        ensure!(killed.success() && pids.len() > 4, "{parts:?}");
        let cluster = Cluster::up(&settings(), &spec)?;
        cluster.kubectl().run(["get", "nodes"])?;
        let parts = cluster.status()?;
        ensure!(parts.iter().all(|part| part.runs), "{parts:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes clusters"]
async fn one_of_two_clusters_is_removed_with_its_pods_running() -> anyhow::Result<()> {
    let up = |name: &str| {
        let spec = spec(name, false);
        tokio::task::spawn_blocking(move || Cluster::up(&settings(), &spec))
    };
    with_own(&["left", "right"], async {
        let (first, second) = tokio::join!(up("left"), up("right"));
        let (first, second) = (first??, second??);
        ensure!(
            first.block() != second.block(),
            "both have one address block"
        );
        let second = TestCluster::connect(second).await?;
        with_namespace(&second, "stays", async |namespace| {
            StockPod::new("idle", StockWork::Idle)
                .start(&namespace)
                .await?;
            namespace.pod_ready("idle", SOON).await?;
            let first = TestCluster::connect(first).await?;
            first
                .kubectl([
                    "create",
                    "deployment",
                    "many",
                    "--replicas=5",
                    "--image",
                    images::MOONCAKE_STOCK,
                    "--",
                    "sleep",
                    "infinity",
                ])
                .await?;
            first.rolled_out("default", "many").await?;
            tokio::task::spawn_blocking(|| Cluster::down(&settings(), "left")).await??;
            let left = remains("left");
            ensure!(left.is_empty(), "{left:#?}");
            // The other cluster is not disturbed.
            namespace.exec("idle", "main", &["true"], SOON).await?;
            namespace.pod_ready("idle", SOON).await?;
            Ok(())
        })
        .await?;
        Cluster::down(&settings(), "right")?;
        let left = remains("right");
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_dual_stack_cluster_has_addresses_of_both_families_and_no_virtual_machines()
-> anyhow::Result<()> {
    let name = "dual";
    let up = |dual_stack| {
        let spec = spec(name, dual_stack);
        tokio::task::spawn_blocking(move || Cluster::up(&settings(), &spec))
    };
    with_own(&[name], async {
        let mut cluster = up(true).await??;
        for (objects, path) in [
            ("nodes", "{.items[0].status.addresses[*].address}"),
            ("pods", "{.items[0].status.podIPs[*].ip}"),
        ] {
            let path = format!("jsonpath={path}");
            let addresses = ["get", objects, "--all-namespaces", "-o", &path];
            let addresses = cluster.kubectl().run(addresses)?;
            let ipv6 = |address: &str| address.parse().map(|ip: IpAddr| ip.is_ipv6()).ok();
            let families: Vec<_> = addresses.split(' ').filter_map(ipv6).collect();
            ensure!(families == [false, true], "{objects}: {addresses}");
        }
        ensure!(
            matches!(up(false).await?, Err(Error::OtherFamilies { .. })),
            "it was used as an IPv4 cluster"
        );
        let machine = tokio::task::spawn_blocking(move || cluster.add_node(NodeKind::Machine));
        ensure!(
            matches!(machine.await?, Err(Error::Ipv4Only { .. })),
            "a virtual machine was added"
        );
        Ok(())
    })
    .await
}

async fn node_ready(cluster: &TestCluster, node: &str, wanted: &str) -> anyhow::Result<()> {
    eventually(format!("{node} to be Ready={wanted}"), SOON, || async {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let ready = cluster.kubectl(["get", "node", node, "-o", path]).await?;
        Ok(Seen::when((ready == wanted).then_some(()), ready))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn pods_on_every_node_resolve_names() -> anyhow::Result<()> {
    let (_guard, cluster) = cluster().await?;
    with_namespace(&cluster, "names", async |namespace| {
        let nodes = namespace.cluster.local.nodes();
        // One of them has the only DNS server, so that its pods and the endpoint of the Service are on one bridge.
        for node in &nodes {
            StockPod::new(node, StockWork::Idle)
                .node(node)
                .start(&namespace)
                .await?;
        }
        for node in &nodes {
            namespace.pod_ready(node, SOON).await?;
            let lookup = ["getent", "hosts", "kubernetes.default.svc.cluster.local"];
            namespace
                .exec(node, "main", &lookup, SOON)
                .await
                .with_context(|| format!("on {node}"))?;
            let on = node.clone();
            let read = ["cat", "/etc/node/resolv.conf"].map(str::to_owned);
            let resolvers = namespace
                .cluster
                .with(move |cluster| cluster.run_on(&on, &read, SOON))
                .await?;
            ensure!(!resolvers.is_empty(), "{node} has no resolv.conf");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_cluster_with_another_state_folder_and_what_only_has_its_name_are_left_alone()
-> anyhow::Result<()> {
    let (_guard, cluster) = cluster().await?;
    let other = tempfile::tempdir()?;
    let mine = Settings {
        state: other.path().to_owned(),
        ..settings()
    };
    let spec = spec(OF_LOCAL_KUBERNETES[0], false);
    // The second attempt must not take the folder of the first one for the remains of a cluster.
    for _ in 0..2 {
        let (mine, spec) = (mine.clone(), spec.clone());
        let refused = tokio::task::spawn_blocking(move || Cluster::up(&mine, &spec)).await?;
        ensure!(matches!(refused, Err(Error::OtherFolder { .. })));
    }
    ensure!(matches!(
        Cluster::down(&mine, &spec.name),
        Err(Error::OtherFolder { .. })
    ));
    cluster.kubectl(["get", "nodes"]).await?;

    // A namespace of the user.
    let ip = |words: &[&str]| Command::new("ip").args(words).status();
    ensure!(ip(&["netns", "add", "theirs-n1"])?.success());
    let removed = Cluster::down(&mine, "theirs");
    let kept = ip(&["netns", "del", "theirs-n1"])?.success();
    removed?;
    ensure!(kept, "`down` removed a namespace of no cluster");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_node_whose_addition_was_interrupted_is_removed_by_the_next_change() -> anyhow::Result<()>
{
    let (_guard, shared) = cluster().await?;
    let name = shared.local.name().to_owned();
    // As recorded before anything of the node exists.
    let file = settings().state.join(&name).join("cluster.json");
    let mut record: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let nodes = record["nodes"].as_array_mut().context("nodes")?;
    nodes.push(json!({"index": 3, "kind": "Machine", "complete": false}));
    std::fs::write(&file, record.to_string())?;
    let cluster = TestCluster::named(settings(), name).await?;
    ensure!(
        cluster.local.nodes() == ["n1", "n2"],
        "{:?}",
        cluster.local.nodes()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_disconnected_node_becomes_unknown_and_returns() -> anyhow::Result<()> {
    let (_guard, cluster) = cluster().await?;
    cluster.with(|cluster| cluster.cut("n2")).await?;
    node_ready(&cluster, "n2", "Unknown").await?;
    cluster.with(|cluster| cluster.heal("n2")).await?;
    node_ready(&cluster, "n2", "True").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn every_killed_part_can_be_started_again() -> anyhow::Result<()> {
    let (_guard, cluster) = cluster().await?;
    with_namespace(&cluster, "parts", async |namespace| {
        let cluster = &namespace.cluster;
        StockPod::new("before", StockWork::Idle)
            .node("n1")
            .start(&namespace)
            .await?;
        namespace.pod_ready("before", SOON).await?;
        for part in [
            Part::Scheduler,
            Part::Controllers,
            Part::Kubelet(1),
            Part::Proxy(1),
            Part::Containerd(1),
            Part::ApiServer,
            Part::Etcd,
        ] {
            cluster.with(move |cluster| cluster.kill(part)).await?;
            cluster.with(move |cluster| cluster.start(part)).await?;
        }
        node_ready(cluster, "n1", "True").await?;
        watches_resume(&namespace, &["n1", "n2"]).await?;
        // A new pod needs every part; the old pod was not restarted.
        StockPod::new("after", StockWork::Idle)
            .node("n1")
            .start(&namespace)
            .await?;
        namespace.pod_ready("after", SOON).await?;
        let pod = namespace.pod_ready("before", SOON).await?;
        let restarts: i32 = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten())
            .map(|container| container.restart_count)
            .sum();
        ensure!(restarts == 0, "the pod restarted {restarts} times");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn pods_transfer_data_while_the_api_server_is_stopped() -> anyhow::Result<()> {
    let name = "silent";
    with_own(&[name], async {
        let cluster = TestCluster::named(settings(), name.to_owned()).await?;
        with_namespace(&cluster, "stopped", async |namespace| {
            let cluster = &namespace.cluster;
            namespace
                .apply(include_str!("../manifests/stock-master.yaml"))
                .await?;
            let master = "master:50051";
            namespace
                .cluster
                .rolled_out(&namespace.name, "master")
                .await?;
            StockPod::new("segment", StockWork::Segment { bytes: 64 << 20 })
                .node("n1")
                .master(master)
                .start(&namespace)
                .await?;
            namespace.pod_ready("segment", SOON).await?;
            let work = StockWork::Load {
                keys: 8,
                bytes: 1 << 16,
                prefix: "k".to_owned(),
                seconds: 600,
            };
            let load = StockPod::new("load", work).node("n2").master(master);
            load.start(&namespace).await?;
            namespace.pod_ready("load", SOON).await?;
            cluster
                .with(|cluster| cluster.stop(Part::ApiServer))
                .await?;
            let refused = cluster.kubectl(["get", "nodes"]).await;
            // The load runs without API server for a while.
            tokio::time::sleep(Duration::from_secs(20)).await;
            cluster
                .with(|cluster| cluster.start(Part::ApiServer))
                .await?;
            ensure!(
                refused.is_err(),
                "the API server answered although it was stopped"
            );
            watches_resume(&namespace, &["n1", "n2"]).await?;
            let report = load.end(&namespace, SOON).await?;
            ensure!(
                report.done > 100 && report.failed == 0 && report.wrong == 0,
                "{report:?}"
            );
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_built_and_loaded_image_runs_on_every_node() -> anyhow::Result<()> {
    let (_guard, cluster) = cluster().await?;
    let folder = tempfile::tempdir()?;
    let archive = folder.path().join("image.tar");
    let tag = "localhost/loaded:dev";
    std::fs::write(
        folder.path().join("Containerfile"),
        format!("FROM {}\nCMD [\"sleep\", \"infinity\"]\n", images::DEBIAN),
    )?;
    images::build(
        &settings(),
        folder.path(),
        &folder.path().join("Containerfile"),
        tag,
        &archive,
    )?;
    cluster
        .with(move |cluster| cluster.load_image(&archive))
        .await?;
    with_namespace(&cluster, "loaded", async |namespace| {
        for node in namespace.cluster.local.nodes() {
            let overrides =
                format!(r#"{{"spec":{{"nodeName":"{node}","terminationGracePeriodSeconds":1}}}}"#);
            namespace
                .kubectl(&[
                    "run",
                    &node,
                    "--image",
                    "localhost/loaded:dev",
                    "--overrides",
                    &overrides,
                ])
                .await?;
            namespace.pod_ready(&node, SOON).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_removed_node_can_be_added_under_its_old_name() -> anyhow::Result<()> {
    let (_guard, shared) = cluster().await?;
    let mut cluster = Cluster::attach(&settings(), shared.local.name())?;
    let added = tokio::task::spawn_blocking(move || {
        let added = cluster.add_node(NodeKind::Namespace)?;
        cluster.remove_node(&added)?;
        let again = cluster.add_node(NodeKind::Namespace)?;
        assert_eq!(added, again);
        Ok::<_, Error>(added)
    })
    .await??;
    let node = added.clone();
    let outcome = with_namespace(&shared, "newnode", async move |namespace| {
        // The DNS server runs on another node.
        StockPod::new("new", StockWork::Idle)
            .node(&node)
            .start(&namespace)
            .await?;
        namespace.pod_ready("new", SOON).await?;
        namespace
            .exec(
                "new",
                "main",
                &["getent", "hosts", "kubernetes.default.svc.cluster.local"],
                SOON,
            )
            .await?;
        Ok(())
    })
    .await;
    let mut cluster = Cluster::attach(&settings(), shared.local.name())?;
    let gone = added.clone();
    tokio::task::spawn_blocking(move || cluster.remove_node(&added)).await??;
    outcome?;
    ensure!(
        shared.kubectl(["get", "node", &gone]).await.is_err(),
        "the Node object is still there"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: boots a virtual machine"]
async fn a_virtual_machine_node_has_its_own_kernel_and_cgroups() -> anyhow::Result<()> {
    // The emulated processor takes minutes: soak only.
    if !Scale::read().has("virtual machines", 1) {
        return Ok(());
    }
    let (_guard, shared) = cluster().await?;
    let name = shared.local.name().to_owned();
    let attach = move || Cluster::attach(&settings(), &name);
    let mut cluster = attach()?;
    let node = tokio::task::spawn_blocking(move || cluster.add_node(NodeKind::Machine)).await??;
    let (guest, attached) = (node.clone(), attach()?);
    let outcome = with_namespace(&shared, "guest", async move |namespace| {
        StockPod::new("inside", StockWork::Idle)
            .node(&guest)
            .start(&namespace)
            .await?;
        namespace.pod_ready("inside", 3 * SOON).await?;
        // DNS, service addresses and the route back to a pod on another node.
        let lookup = ["getent", "hosts", "kubernetes.default.svc.cluster.local"];
        namespace.exec("inside", "main", &lookup, SOON).await?;
        let command = ["sh", "-c", "uname -r; cat /proc/self/cgroup; rdma link"].map(str::to_owned);
        let (guest, attached) = (guest.clone(), attached);
        let words =
            tokio::task::spawn_blocking(move || attached.run_on(&guest, &command, SOON)).await??;
        let ours = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        ensure!(
            !words.starts_with(ours.trim()),
            "the kernel is the one of this machine: {words}"
        );
        ensure!(words.contains("\n0::/"), "no cgroup v2: {words}");
        ensure!(words.contains("state ACTIVE"), "no RDMA link: {words}");
        Ok(())
    })
    .await;
    let mut cluster = attach()?;
    tokio::task::spawn_blocking(move || cluster.remove_node(&node)).await??;
    outcome
}

//! What must end well for the tool itself: crashes, neighbours, cuts, killed parts.

use anyhow::{Context, ensure};
use mooncake_e2e::settings::Environment;
use mooncake_e2e::story::{Scale, Seen, Stage, StockPod, StockWork, eventually, with_namespace};
use mooncake_e2e::{Cluster, Error, NodeKind, Part, Settings, Spec, images};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

const TOOL: &str = env!("CARGO_BIN_EXE_local-cluster");
const SOON: Duration = Duration::from_secs(180);

/// Who disturbs the cluster that they share: one at a time. The others have clusters of their own.
static TURN: Mutex<()> = Mutex::const_new(());

fn settings() -> Settings {
    Settings::from_environment(Environment::read())
}

async fn stage() -> anyhow::Result<(MutexGuard<'static, ()>, Stage)> {
    let turn = TURN.lock().await;
    Ok((turn, Stage::named(settings(), "tool".to_owned()).await?))
}

/// Runs a test with clusters of its own, which are gone afterwards whatever became of it.
async fn with_own(
    names: &[&str],
    test: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let outcome = test.await;
    let downs = names.iter().map(|name| Cluster::down(&settings(), name));
    // All of them, also when one stays.
    let gone: Vec<_> = downs.collect();
    outcome?;
    Ok(gone.into_iter().collect::<Result<(), Error>>()?)
}

/// Everything on the machine that bears a cluster's name.
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
    for hierarchy in Path::new("/sys/fs/cgroup")
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
    {
        let group = hierarchy.path().join(name);
        if group.exists() {
            found.push(group.display().to_string());
        }
    }
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
    found
}

/// Starts the tool's `up` in a process of its own and kills it as soon as a part is recorded.
async fn start_and_kill(name: &str, part: Part) -> anyhow::Result<()> {
    let words = tempfile::NamedTempFile::new()?;
    let mut starter = Command::new(TOOL)
        .args(["up", "--name", name, "--nodes", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(words.reopen()?)
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
    let words = std::fs::read_to_string(words.path())?;
    reached.with_context(|| words.clone())?;
    ensure!(ended.is_none(), "the starter ended by itself: {words}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes clusters"]
async fn a_starter_that_is_killed_leaves_nothing_that_down_does_not_remove() -> anyhow::Result<()> {
    let name = "crash";
    with_own(&[name], async {
        // Ever later: while the network is made, with a control plane, with nodes.
        for part in [Part::Etcd, Part::Controllers, Part::Kubelet(1)] {
            start_and_kill(name, part).await?;
            ensure!(
                !remains(name).is_empty(),
                "the starter had made nothing yet"
            );
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
async fn what_an_unfinished_start_left_is_made_anew_by_the_next() -> anyhow::Result<()> {
    let name = "again";
    with_own(&[name], async {
        start_and_kill(name, Part::ApiServer).await?;
        ensure!(
            matches!(
                Cluster::attach(&settings(), name),
                Err(Error::NoCluster { .. })
            ),
            "half a cluster must not be found"
        );
        let spec = Spec {
            name: name.to_owned(),
            index: None,
            nodes: 1,
        };
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
async fn two_clusters_stand_side_by_side_and_one_goes_with_its_pods_running() -> anyhow::Result<()>
{
    let up = |name: &str| {
        let spec = Spec {
            name: name.to_owned(),
            index: None,
            nodes: 1,
        };
        tokio::task::spawn_blocking(move || Cluster::up(&settings(), &spec))
    };
    with_own(&["left", "right"], async {
        let (first, second) = tokio::join!(up("left"), up("right"));
        let (first, second) = (first??, second??);
        ensure!(
            first.block() != second.block(),
            "both have one address block"
        );
        let second = Stage::on(second).await?;
        with_namespace(&second, "stays", async |namespace| {
            StockPod::new("idle", StockWork::Idle)
                .start(&namespace)
                .await?;
            namespace.pod_ready("idle", SOON).await?;
            let first = Stage::on(first).await?;
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
            // The neighbour does not notice.
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

async fn node_ready(stage: &Stage, node: &str, wanted: &str) -> anyhow::Result<()> {
    eventually(format!("{node} to be Ready={wanted}"), SOON, || async {
        let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let ready = stage.kubectl(["get", "node", node, "-o", path]).await?;
        Ok(Seen::when((ready == wanted).then_some(()), ready))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn a_node_that_is_cut_off_is_noticed_and_comes_back() -> anyhow::Result<()> {
    let (_turn, stage) = stage().await?;
    stage.with(|cluster| cluster.cut("n2")).await?;
    node_ready(&stage, "n2", "Unknown").await?;
    stage.with(|cluster| cluster.heal("n2")).await?;
    node_ready(&stage, "n2", "True").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: makes a cluster"]
async fn every_part_that_is_killed_can_be_started_again() -> anyhow::Result<()> {
    let (_turn, stage) = stage().await?;
    with_namespace(&stage, "parts", async |namespace| {
        let stage = &namespace.stage;
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
            stage.with(move |cluster| cluster.kill(part)).await?;
            stage.with(move |cluster| cluster.start(part)).await?;
        }
        node_ready(stage, "n1", "True").await?;
        namespace.everyone_listens(&["n1", "n2"], SOON).await?;
        // Everyone is needed for a new pod, and the old one has not noticed.
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
async fn pods_talk_on_while_the_api_server_is_stopped() -> anyhow::Result<()> {
    let name = "silent";
    with_own(&[name], async {
        let stage = Stage::named(settings(), name.to_owned()).await?;
        with_namespace(&stage, "stopped", async |namespace| {
            let stage = &namespace.stage;
            namespace
                .apply(include_str!("../manifests/stock-master.yaml"))
                .await?;
            let master = "master:50051";
            namespace
                .stage
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
            stage.with(|cluster| cluster.stop(Part::ApiServer)).await?;
            let refused = stage.kubectl(["get", "nodes"]).await;
            // Time for the load to work without it: what is tested is a while, not a state.
            tokio::time::sleep(Duration::from_secs(20)).await;
            stage.with(|cluster| cluster.start(Part::ApiServer)).await?;
            ensure!(
                refused.is_err(),
                "the API server answered although it was stopped"
            );
            namespace.everyone_listens(&["n1", "n2"], SOON).await?;
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
async fn an_image_that_is_built_and_loaded_runs_on_every_node() -> anyhow::Result<()> {
    let (_turn, stage) = stage().await?;
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
    stage
        .with(move |cluster| cluster.load_image(&archive))
        .await?;
    with_namespace(&stage, "loaded", async |namespace| {
        for node in namespace.stage.cluster.nodes() {
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
async fn a_node_that_was_removed_comes_back_under_its_name() -> anyhow::Result<()> {
    let (_turn, stage) = stage().await?;
    let mut cluster = Cluster::attach(&settings(), stage.cluster.name())?;
    let added = tokio::task::spawn_blocking(move || {
        let added = cluster.add_node(NodeKind::Namespace)?;
        cluster.remove_node(&added)?;
        let again = cluster.add_node(NodeKind::Namespace)?;
        assert_eq!(added, again);
        Ok::<_, Error>(added)
    })
    .await??;
    let node = added.clone();
    let outcome = with_namespace(&stage, "newnode", async move |namespace| {
        // There, and talking with the others: its name server runs elsewhere.
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
    let mut cluster = Cluster::attach(&settings(), stage.cluster.name())?;
    let gone = added.clone();
    tokio::task::spawn_blocking(move || cluster.remove_node(&added)).await??;
    outcome?;
    ensure!(
        stage.kubectl(["get", "node", &gone]).await.is_err(),
        "the Node object is still there"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: boots a virtual machine"]
async fn a_virtual_machine_is_a_node_with_a_kernel_and_cgroups_of_its_own() -> anyhow::Result<()> {
    // Its processor is emulated: minutes that the everyday run does not have.
    let machines = Scale::from_environment(&Environment::read()).of("virtual machines", 0, 1);
    if machines == 0 {
        return Ok(());
    }
    let (_turn, stage) = stage().await?;
    let name = stage.cluster.name().to_owned();
    let attach = move || Cluster::attach(&settings(), &name);
    let mut cluster = attach()?;
    let node = tokio::task::spawn_blocking(move || cluster.add_node(NodeKind::Machine)).await??;
    let (guest, told) = (node.clone(), attach()?);
    let outcome = with_namespace(&stage, "guest", async move |namespace| {
        StockPod::new("inside", StockWork::Idle)
            .node(&guest)
            .start(&namespace)
            .await?;
        namespace.pod_ready("inside", 3 * SOON).await?;
        // Names, service addresses and the way back to a pod of another node.
        let lookup = ["getent", "hosts", "kubernetes.default.svc.cluster.local"];
        namespace.exec("inside", "main", &lookup, SOON).await?;
        let command = ["sh", "-c", "uname -r; cat /proc/self/cgroup; rdma link"].map(str::to_owned);
        let (guest, told) = (guest.clone(), told);
        let words =
            tokio::task::spawn_blocking(move || told.run_on(&guest, &command, SOON)).await??;
        let ours = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        ensure!(
            !words.starts_with(ours.trim()),
            "the kernel is this machine's: {words}"
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

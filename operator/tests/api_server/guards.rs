//! Guards of nodes with pool pods: real Eviction calls are refused until the node is drained, as `kubectl drain` sees it.

use anyhow::{Context, bail, ensure};
use crds::Reason;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use mooncake_operator::cluster::validate::Settings;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::harness::{Harness, TEAM, eventually, settings};
use super::server::Server;

/// The address of the master that the test plays; the tests of this file run one after the other.
const MASTER: &str = "127.0.9.3";
const NODES: [&str; 2] = ["n1", "n2"];

/// Plays the metrics of a master, as text.
struct Master {
    allocated: std::sync::Arc<std::sync::atomic::AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Master {
    async fn start(harness: &Harness) -> anyhow::Result<Self> {
        let allocated = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let port = crds::names::MASTER_ADMIN_PORT;
        let listener = TcpListener::bind((MASTER, port)).await?;
        let now = allocated.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let allocated = now.load(std::sync::atomic::Ordering::Relaxed);
                let body = format!(
                    "master_total_capacity_bytes {}\nmaster_allocated_bytes {allocated}\n",
                    128_u64 << 20
                );
                let mut request = [0; 1024];
                if stream.read(&mut request).await.unwrap_or(0) == 0 {
                    continue;
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        let address = json!({"status": {"podIP": MASTER, "podIPs": [{"ip": MASTER}]}});
        let merge = PatchParams::default();
        harness
            .api::<Pod>()
            .patch_status("kv-master-1", &merge, &Patch::Merge(address))
            .await?;
        Ok(Self { allocated, task })
    }

    fn allocate(&self, mib: u64) {
        let bytes = mib << 20;
        self.allocated
            .store(bytes, std::sync::atomic::Ordering::Relaxed);
    }
}

fn guard(node: &str) -> String {
    format!("kv-guard-{node}")
}

/// Binds the guard and reports it as running: the scheduler and the kubelet.
async fn run_guard(harness: &Harness, node: &str) -> anyhow::Result<()> {
    let pods = harness.api::<Pod>();
    let name = guard(node);
    eventually(&format!("the guard of {node}"), || async {
        Ok(pods.get_opt(&name).await?.is_some())
    })
    .await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let post = PostParams::default();
    let _: serde_json::Value = pods
        .create_subresource("binding", &name, &post, &binding)
        .await?;
    let running = json!({"status": {
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let merge = PatchParams::default();
    pods.patch_status(&name, &merge, &Patch::Merge(running))
        .await?;
    Ok(())
}

/// Computes the status of the budget, as the disruption controller does.
async fn play_budget(harness: &Harness) -> anyhow::Result<()> {
    let budgets = harness.api::<PodDisruptionBudget>();
    let budget = budgets.get("kv-guard").await?;
    let spec = budget.spec.context("a spec")?;
    let selector = spec.selector.and_then(|selector| selector.match_labels);
    let selector = selector.context("labels")?.into_iter();
    let selector: Vec<String> = selector
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let found = ListParams::default().labels(&selector.join(","));
    let healthy = i32::try_from(harness.api::<Pod>().list(&found).await?.items.len())?;
    let wanted = match spec.min_available.context("minAvailable")? {
        k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(wanted) => wanted,
        other => bail!("{other:?}"),
    };
    let status = json!({"status": {
        "observedGeneration": budget.metadata.generation, "currentHealthy": healthy,
        "desiredHealthy": wanted, "expectedPods": healthy,
        "disruptionsAllowed": (i64::from(healthy) - i64::from(wanted)).max(0),
    }});
    let merge = PatchParams::default();
    budgets
        .patch_status("kv-guard", &merge, &Patch::Merge(status))
        .await?;
    Ok(())
}

/// The HTTP status of an eviction of the guard.
async fn evict(server: &Server, node: &str) -> anyhow::Result<u16> {
    let pods = Api::<Pod>::namespaced(server.without_retries()?, TEAM);
    match pods.evict(&guard(node), &EvictParams::default()).await {
        Ok(_) => Ok(201),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

async fn cordon(harness: &Harness, node: &str, cordoned: bool) -> anyhow::Result<()> {
    let nodes: Api<Node> = harness.cluster_wide();
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The nodes that the DaemonSet excludes.
async fn excluded(harness: &Harness) -> anyhow::Result<Vec<String>> {
    let set = harness.api::<DaemonSet>().get("kv-pool-default").await?;
    let nodes = mooncake_operator::cluster::desired::pool::excluded(&set);
    Ok(nodes.into_iter().collect())
}

async fn excludes(harness: &Harness, wanted: &[&str]) -> anyhow::Result<()> {
    eventually(&format!("the DaemonSet to exclude {wanted:?}"), || async {
        let found = excluded(harness).await?;
        ensure!(found == wanted, "{found:?}");
        Ok(true)
    })
    .await
}

async fn drained_is(harness: &Harness, start: &str) -> anyhow::Result<()> {
    eventually(start, || async {
        let drained = harness.condition("Drained").await?;
        ensure!(drained.starts_with(start), "{drained}");
        Ok(true)
    })
    .await
}

/// A cluster on two nodes whose guards run, with this much in use.
async fn guarded(server: &Server, mib: u64) -> anyhow::Result<(Harness, Master)> {
    let harness = Harness::new(&server.client).await?;
    let spec = json!({
        "master": {"type": "BuiltIn"}, "update": {"onCordon": "Drain"},
        "pools": [{"name": "default", "size": "64Mi", "drainSeconds": 5}],
    });
    harness.change_spec(spec).await?;
    let master = Master::start(&harness).await?;
    master.allocate(mib);
    harness.ready().await?;
    for node in NODES {
        run_guard(&harness, node).await?;
    }
    play_budget(&harness).await?;
    harness.play_daemon_sets().await?;
    eventually("the use of the pools", || async {
        let used = harness.cluster().await?.status.unwrap_or_default().used;
        ensure!(used.is_some(), "unknown");
        Ok(true)
    })
    .await?;
    Ok((harness, master))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn the_eviction_of_a_guard_is_refused_until_its_node_is_drained() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let (harness, master) = guarded(&server, 16).await?;
    let written = harness.quiet().await?;
    harness.reconciled_twice().await?;
    ensure!(
        harness.metrics.writes() == written,
        "writes without a change"
    );
    // Also without a cordon, and before the operator sees it.
    ensure!(evict(&server, "n1").await? == 429, "the guard was evicted");
    ensure!(
        excluded(&harness).await?.is_empty(),
        "drained without a cordon"
    );

    cordon(&harness, "n1", true).await?;
    excludes(&harness, &["n1"]).await?;
    // The controller of DaemonSets has not observed it yet.
    harness.quiet().await?;
    let ready = harness.condition("Ready").await?;
    ensure!(ready.starts_with("True"), "a cordon changed Ready: {ready}");
    // No kubelet runs: the pool pod ends when the test removes it.
    let pods = harness.api::<Pod>();
    let deletion = DeleteParams::default().grace_period(60);
    pods.delete("kv-pool-default-n1", &deletion).await?;
    drained_is(
        &harness,
        "False Draining: the keys of kv-pool-default-n1 (n1) move",
    )
    .await?;
    ensure!(
        evict(&server, "n1").await? == 429,
        "evicted during the drain"
    );

    harness.remove_pool_pod("n1").await?;
    eventually("the guard to be released", || async {
        let leaving = pods.get_opt(&guard("n1")).await?;
        Ok(leaving.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
    })
    .await?;
    let code = evict(&server, "n1").await?;
    ensure!(
        matches!(code, 201 | 404),
        "the eviction after the drain: {code}"
    );
    ensure!(
        evict(&server, "n2").await? == 429,
        "the other guard was evicted"
    );
    let now = DeleteParams::default().grace_period(0);
    if pods.get_opt(&guard("n1")).await?.is_some() {
        pods.delete(&guard("n1"), &now).await?;
    }
    drained_is(&harness, "True AsExpected").await?;
    // A restarted operator goes on from the DaemonSet.
    harness.play_daemon_sets().await?;
    harness.quiet().await?;
    harness.restart_operator().await?;
    excludes(&harness, &["n1"]).await?;

    // The other node has the only pool pod now: its keys have no place.
    cordon(&harness, "n2", true).await?;
    drained_is(
        &harness,
        "False DrainExceedsSpace: pool pods stay on cordoned nodes n2: 16Mi of keys do not fit",
    )
    .await?;
    ensure!(evict(&server, "n2").await? == 429, "evicted with its keys");
    excludes(&harness, &["n1"]).await?;
    let events = harness
        .events("kv", Reason::DrainExceedsSpace, "Drained: ")
        .await?;
    ensure!(events.len() == 1, "{events:?}");

    // Both nodes come back.
    for node in NODES {
        cordon(&harness, node, false).await?;
    }
    excludes(&harness, &[]).await?;
    harness.make_pool_pod("n1").await?;
    harness.serve("n1").await?;
    run_guard(&harness, "n1").await?;
    drained_is(&harness, "True AsExpected").await?;
    drop(master);

    // Without the setting there is no guard and no budget.
    harness
        .change_spec(json!({"update": {"onCordon": "Ignore"}}))
        .await?;
    let found = ListParams::default().labels("mooncake.io/component=guard");
    eventually("no guard and no budget", || async {
        let guards = pods.list(&found).await?;
        let budgets = harness.api::<PodDisruptionBudget>();
        let left = guards
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        ensure!(left.count() == 0, "guards are left");
        ensure!(
            budgets.get_opt("kv-guard").await?.is_none(),
            "the budget is left"
        );
        Ok(true)
    })
    .await?;

    // Another release of the chart takes the cluster over: its role has another name.
    let other = Settings {
        admitted_role: "other-admitted".to_owned(),
        ..settings()
    };
    harness.replace_operator(&other).await?;
    let binding = harness.api::<RoleBinding>().get("kv-master").await?;
    ensure!(binding.role_ref.name == "other-admitted", "{binding:?}");
    let status = harness.cluster().await?.status.unwrap_or_default();
    let stalled = status.conditions.iter().find(|c| c.type_ == "Stalled");
    ensure!(stalled.is_none(), "{stalled:?}");
    harness.quiet().await?;
    Ok(())
}

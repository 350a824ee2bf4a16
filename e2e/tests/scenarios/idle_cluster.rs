//! An idle cluster: nothing is written to the API server except Leases, these seldom, and memory stays below its limit.

use super::engine_process::engine_processes;
use anyhow::ensure;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::scenario::audit::Audit;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::processes::{self, Process};
use mooncake_e2e::scenario::reports::{self, Reports};
use mooncake_e2e::scenario::{Pool, Product, Seen, StockPod, StockWork, TestCluster, eventually};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(90);
/// Time without a write after which the cluster counts as settled.
const SETTLED: Duration = Duration::from_secs(5);
/// Seconds between two writes of the Lease of an elected master with a witness.
const RENEWAL: u64 = 5;
/// Memory limit of an operator, and of an agent with its supervisor.
const MEMORY: u64 = 60 << 20;
/// Memory limit of an engine process.
const ENGINE_MEMORY: u64 = 12 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_idle_cluster_writes_nothing_to_the_api_server() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let watched = product.scale.of("seconds at rest", 60, 300);
    product
        .run("rest", async move |product, namespace| {
            let spec =
                "{pools: [{name: default, size: 256Mi, drainSeconds: 2}], master: {type: BuiltIn}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            StockPod::new("idle", StockWork::Idle)
                .node("n1")
                .inject("kv")
                .start(&namespace)
                .await?;
            namespace.pod_ready("idle", SOON).await?;
            pool.witnessed(SOON).await?;
            let engines = engine_processes(&pool.pods().await?)?;
            let masters = Audit::from_now(&product.cluster)?;
            let begun = Instant::now();
            at_rest(&product, &engines, Duration::from_secs(watched)).await?;
            let lines = masters.writes(&namespace.name)?;
            let lines: Vec<_> = lines.iter().map(ToString::to_string).collect();
            ensure!(
                lines.is_empty(),
                "written by masters at rest:\n{}",
                lines.join("\n")
            );
            let renewals = masters.lease_writes(&namespace.name)?.len();
            let seconds = begun.elapsed().as_secs();
            println!("two masters wrote their Lease {renewals} times in {seconds} s");
            ensure!(
                u64::try_from(renewals)? <= seconds / RENEWAL + 1,
                "{renewals} writes of the Lease in {seconds} s"
            );
            Ok(())
        })
        .await
}

async fn at_rest(product: &Product, engines: &[Process], watched: Duration) -> anyhow::Result<()> {
    // What earlier scenarios have caused is cleared without an event.
    let client = &product.cluster.client;
    reports::cleared(client).await;
    quiet(&product.cluster, reports::CLEAR + SETTLED).await?;
    let reports = Reports::read(client).await?;
    let mut pods = product.pods(COMPONENT_OPERATOR).await?;
    pods.extend(product.pods(COMPONENT_AGENT).await?);
    let before = pods.iter().map(cpu).collect::<anyhow::Result<Vec<_>>>()?;
    let engines_before = engines
        .iter()
        .map(Process::cpu)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let audit = Audit::from_now(&product.cluster)?;
    // The test is that nothing happens for a while.
    tokio::time::sleep(watched).await;
    let writes = audit.writes(NAMESPACE)?;
    println!(
        "{} writes beyond Leases in {} s at rest",
        writes.len(),
        watched.as_secs()
    );
    for (pod, before) in pods.iter().zip(before) {
        let memory = memory(pod)?;
        let used = cpu(pod)?.saturating_sub(before);
        println!(
            "{}: {:.1} MiB, {:.2} % of a core",
            pod.name_any(),
            mebibytes(memory),
            100.0 * used.as_secs_f64() / watched.as_secs_f64()
        );
        ensure!(memory <= MEMORY, "{} uses {memory} bytes", pod.name_any());
    }
    for (engine, before) in engines.iter().zip(engines_before) {
        let memory = engine.memory()?;
        let used = engine.cpu()?.saturating_sub(before);
        println!(
            "engine process: {:.1} MiB, {:.2} % of a core",
            mebibytes(memory),
            100.0 * used.as_secs_f64() / watched.as_secs_f64()
        );
        ensure!(
            memory <= ENGINE_MEMORY,
            "an engine process uses {memory} bytes"
        );
    }
    let lines: Vec<_> = writes.iter().map(ToString::to_string).collect();
    let changes = reports.changes(&Reports::read(client).await?);
    ensure!(
        lines.is_empty(),
        "written at rest:\n{}\nchanged in the statuses of MooncakeNodes:\n{}",
        lines.join("\n"),
        changes.join("\n")
    );
    Ok(())
}

/// Waits until operator and agents no longer write.
pub(super) async fn settled(cluster: &TestCluster) -> anyhow::Result<()> {
    quiet(cluster, SETTLED).await
}

/// Waits until operator and agents have written nothing for so long.
async fn quiet(cluster: &TestCluster, time: Duration) -> anyhow::Result<()> {
    eventually("operator and agents to write nothing", SOON, || async {
        let audit = Audit::from_now(cluster)?;
        tokio::time::sleep(time).await;
        let writes = audit.writes(NAMESPACE)?;
        let last = writes.last().map_or_else(String::new, ToString::to_string);
        Ok(Seen::when(writes.is_empty().then_some(()), last))
    })
    .await
}

fn cpu(pod: &Pod) -> anyhow::Result<Duration> {
    ours(pod)?.iter().map(Process::cpu).sum()
}

fn memory(pod: &Pod) -> anyhow::Result<u64> {
    ours(pod)?.iter().map(Process::memory).sum()
}

/// The pod's processes without the pause process.
fn ours(pod: &Pod) -> anyhow::Result<Vec<Process>> {
    processes::of_pod(pod, "--log=")
}

fn mebibytes(bytes: u64) -> f64 {
    // Exact up to 2^53 bytes.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}

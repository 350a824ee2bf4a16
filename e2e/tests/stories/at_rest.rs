//! Nobody does anything: nothing is written, and it costs next to nothing.

use anyhow::ensure;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::story::audit::Audit;
use mooncake_e2e::story::{Pool, Product, Seen, Stage, StockPod, StockWork, eventually, processes};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);
/// Without a write for this long, all is settled.
const SETTLED: Duration = Duration::from_secs(5);
/// What an operator, and an agent with its supervisor, may keep in memory.
const MEMORY: u64 = 60 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn at_rest_nothing_is_written() -> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let watched = product.scale.of("seconds at rest", 60, 300);
    let told = Arc::clone(&product);
    product
        .tell("rest", async move |namespace| {
            Pool::small(&namespace).await?;
            StockPod::new("idle", StockWork::Idle)
                .node("n1")
                .inject("kv")
                .start(&namespace)
                .await?;
            namespace.pod_ready("idle", SOON).await?;
            at_rest(&told, Duration::from_secs(watched)).await
        })
        .await
}

async fn at_rest(product: &Product, watched: Duration) -> anyhow::Result<()> {
    settled(&product.stage).await?;
    let mut pods = product.pods(COMPONENT_OPERATOR).await?;
    pods.extend(product.pods(COMPONENT_AGENT).await?);
    let before = pods.iter().map(cpu).collect::<anyhow::Result<Vec<_>>>()?;
    let audit = Audit::from_now(&product.stage)?;
    // Nothing can be awaited here: what is tested is a while.
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
        ensure!(memory <= MEMORY, "{} holds {memory} bytes", pod.name_any());
    }
    let told: Vec<_> = writes.iter().map(ToString::to_string).collect();
    ensure!(told.is_empty(), "written at rest:\n{}", told.join("\n"));
    Ok(())
}

/// Waits until neither operator nor agents write anything more.
pub(super) async fn settled(stage: &Stage) -> anyhow::Result<()> {
    eventually("operator and agents to write nothing", SOON, || async {
        let audit = Audit::from_now(stage)?;
        tokio::time::sleep(SETTLED).await;
        let writes = audit.writes(NAMESPACE)?;
        let last = writes.last().map_or_else(String::new, ToString::to_string);
        Ok(Seen::when(writes.is_empty().then_some(()), last))
    })
    .await
}

fn cpu(pod: &Pod) -> anyhow::Result<Duration> {
    ours(pod)?.iter().map(processes::Process::cpu).sum()
}

fn memory(pod: &Pod) -> anyhow::Result<u64> {
    ours(pod)?.iter().map(processes::Process::memory).sum()
}

/// A pod's processes without the one that holds its namespaces.
fn ours(pod: &Pod) -> anyhow::Result<Vec<processes::Process>> {
    processes::of_pod(pod, "--log=")
}

fn mebibytes(bytes: u64) -> f64 {
    // Exact up to 2^53 bytes.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bytes = bytes as f64;
    bytes / f64::from(1 << 20)
}

//! Stock clients on a healthy cluster: data across nodes, and every operation compared with stock segments.

use super::stock_engines;
use anyhow::{Context, ensure};
use crds::names::{POOL_HANDSHAKE_PORT, segment};
use mooncake_e2e::scenario::{Namespace, Pool, Product, StockPod, StockWork, master};
use serde_json::Value;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(120);
const STOCK_ENDPOINT: &str = "master:50051";
const STOCK_MASTER: &str = include_str!("../../manifests/stock-master.yaml");
const OPERATIONS: &str = include_str!("../workload/operations.py");
/// Fewer results mean that the program has ended early.
pub(super) const OPERATIONS_LEAST: usize = 150;
const TENSORS_LEAST: usize = 100;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_stock_pod_reads_what_a_stock_pod_on_another_node_put() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("healthy", async move |product, namespace| {
            let applied = Instant::now();
            let pool = Pool::small(&namespace).await?;
            println!(
                "Ready {:.1} s after kubectl apply",
                applied.elapsed().as_secs_f64()
            );
            let segments = pool.mounted(2, WAIT).await?;
            for (node, mounted) in ["n1", "n2"].into_iter().zip(&segments) {
                ensure!(
                    mounted.name == segment("kv", "default", node, 0),
                    "{mounted:?}"
                );
                ensure!(mounted.size_bytes == 256 * MIB, "{mounted:?}");
                ensure!(
                    mounted
                        .te_endpoint
                        .ends_with(&format!(":{POOL_HANDSHAKE_PORT}")),
                    "{mounted:?}"
                );
            }
            let keys = 128;
            let written = StockPod::new("writer", StockWork::put(keys, MIB))
                .node("n1")
                .inject("kv")
                .run(&namespace, WAIT)
                .await?;
            ensure!(written.done == u64::from(keys), "{written:?}");
            let read = StockPod::new("reader", StockWork::verify(keys, MIB))
                .node("n2")
                .inject("kv")
                .run(&namespace, WAIT)
                .await?;
            ensure!(read.done == u64::from(keys) && read.wrong == 0, "{read:?}");
            let metrics = master::get(
                &pool.master_ip().await?,
                crds::names::MASTER_ADMIN_PORT,
                "/metrics",
            )
            .await?;
            for node in ["n1", "n2"] {
                let line = format!("segment_allocated_bytes{{segment=\"kv.default.{node}.0\"}}");
                let used = metrics
                    .lines()
                    .find_map(|text| text.strip_prefix(&line)?.trim().parse::<f64>().ok());
                ensure!(
                    used.is_some_and(|used| used > 0.0),
                    "{node} stores nothing: {used:?}"
                );
            }
            let there = ["--namespace", &namespace.name];
            let doctor = [&["doctor"][..], &there].concat();
            println!("{}", product.cli(&doctor).await?);
            let why = [&["why", "reader"][..], &there].concat();
            let why = product.cli(&why).await?;
            ensure!(why.contains("was injected and has completed"), "{why}");
            println!(
                "put {:.0} MB/s, get {:.0} MB/s",
                written.megabytes_per_second(),
                read.megabytes_per_second()
            );
            stock_engines::exchange(&namespace).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn every_stock_operation_returns_the_same_as_with_stock_segments() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("matrix", async move |_, namespace| {
            let stock = operations(&namespace, stock_segments(&namespace).await?).await?;
            let pool = Pool::small(&namespace).await?;
            // With another number two replicas can lie in one segment, or in two of one pool pod.
            let segments = pool.mounted(2, WAIT).await?;
            let ours = operations(&namespace, StockPod::new("ours", work()).inject("kv")).await?;
            let after = pool.segments().await?;
            same(&stock, &ours, OPERATIONS_LEAST)
                .with_context(|| format!("mounted before: {segments:?}, after: {after:?}"))
        })
        .await
}

/// Compares the results of at least so many operations on stock segments with those on ours.
pub(super) fn same(stock: &[Value], ours: &[Value], least: usize) -> anyhow::Result<()> {
    ensure!(stock.len() > least, "too few operations: {}", stock.len());
    for (stock, ours) in stock.iter().zip(ours) {
        ensure!(
            stock == ours,
            "stock segments: {stock}; our segments: {ours}"
        );
    }
    ensure!(
        stock.len() == ours.len(),
        "{} against {}",
        stock.len(),
        ours.len()
    );
    println!("{} operations returned the same", ours.len());
    Ok(())
}

/// Compares the operations on tensors, in pods with an image that has torch. The cluster `kv` serves.
pub(super) async fn tensors_are_the_same(namespace: &Namespace, image: &str) -> anyhow::Result<()> {
    let pod = |name: &str| {
        let work = StockWork::Program {
            text: OPERATIONS,
            arguments: vec!["tensor".to_owned(), "tensors".to_owned()],
        };
        StockPod::new(name, work).image(image)
    };
    stock_segments(namespace).await?;
    let stock = pod("stock-tensors").master(STOCK_ENDPOINT);
    let stock = operations(namespace, stock).await?;
    let ours = operations(namespace, pod("our-tensors").inject("kv")).await?;
    same(&stock, &ours, TENSORS_LEAST)?;
    // Two errors are also the same.
    let right = ours.iter().filter(|line| line["answer"] == "right");
    ensure!(right.count() > 20, "too few tensors were read: {ours:?}");
    Ok(())
}

/// Starts a stock master with two stock segments as large as ours. Returns the pod that will use them.
pub(super) async fn stock_segments(namespace: &Namespace) -> anyhow::Result<StockPod> {
    namespace.apply(STOCK_MASTER).await?;
    namespace
        .cluster
        .rolled_out(&namespace.name, "master")
        .await?;
    for node in ["n1", "n2"] {
        let name = format!("segment-{node}");
        StockPod::new(&name, StockWork::Segment { bytes: 256 * MIB })
            .node(node)
            .master(STOCK_ENDPOINT)
            .start(namespace)
            .await?;
        namespace.pod_ready(&name, WAIT).await?;
    }
    Ok(StockPod::new("stock", work()).master(STOCK_ENDPOINT))
}

pub(super) fn work() -> StockWork {
    StockWork::Program {
        text: OPERATIONS,
        arguments: vec!["op".to_owned()],
    }
}

/// Runs every operation in a pod and returns one line per result.
pub(super) async fn operations(namespace: &Namespace, pod: StockPod) -> anyhow::Result<Vec<Value>> {
    let pod = pod.node("n1");
    pod.start(namespace).await?;
    namespace.pod_succeeded(&pod.name, WAIT).await?;
    let log = namespace.logs(&pod.name, "main").await?;
    Ok(log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line.get("operation").is_some())
        .collect())
}

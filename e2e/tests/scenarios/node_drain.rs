//! `kubectl mooncake drain`, and `kubectl drain` with `spec.update.onCordon: Drain`, move the keys of a node's pool pod to the other
//! node; `undrain` and `uncordon` start an empty one.

use super::built_in_master::ledgers;
use anyhow::ensure;
use crds::condition::find;
use crds::names::{COMPONENT_GUARD, LABEL_COMPONENT};
use crds::{ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Effort, Load, Pool, Product, Seen, StockPod, StockWork, eventually};
use serde_json::Value;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const KEYS: u32 = 48;
const WAIT: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn the_keys_of_a_drained_node_move_to_the_other_one() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("drain", async move |product, namespace| {
            let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 120}], master: {type: BuiltIn}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            ledgers(&pool, 2).await?;
            let outcome = drained(&product, &pool).await;
            // The label is not removed with the namespace.
            let undrain = ["label", "node", "n1", "mooncake.io/drain-"];
            let undone = namespace.kubectl(&undrain).await;
            outcome?;
            undone?;
            Ok(())
        })
        .await
}

async fn drained(product: &Product, pool: &Pool) -> anyhow::Result<()> {
    let run = async |name: &str, node: &str, work: StockWork| {
        let pod = StockPod::new(name, work).node(node).inject("kv");
        let report = pod.run(&pool.namespace, WAIT).await?;
        let all = report.done == u64::from(KEYS) && report.failed == 0 && report.wrong == 0;
        ensure!(all, "{name}: {report:?}");
        anyhow::Ok(())
    };
    run("writer", "n1", StockWork::put(KEYS, MIB)).await?;
    println!("{}", product.cli(&["drain", "n1"]).await?);
    let drained = pool.object().await?.status.unwrap_or_default().conditions;
    let drained = find(&drained, ConditionType::Drained).map(|one| one.message.clone());
    ensure!(drained.is_some(), "no condition Drained");
    let left = pods(pool).await?;
    ensure!(left == ["n2"], "pool pods on {left:?}");
    run("reader", "n2", StockWork::verify(KEYS, MIB)).await?;
    let words = ["keys", &pool.name, "-n", &pool.namespace.name, "-o=json"];
    let found: Value = serde_json::from_str(&product.cli(&words).await?)?;
    let segments = found["segments"].as_array().cloned().unwrap_or_default();
    ensure!(
        found["count"] == KEYS && segments.iter().all(|segment| segment["node"] == "n2"),
        "{found}"
    );
    // The drained node does not count.
    pool.ready(READY).await?;
    product.cli(&["undrain", "n1"]).await?;
    eventually("a pool pod on n1", WAIT, || async {
        let on = pods(pool).await?;
        let seen = format!("{on:?}");
        Ok(Seen::when((on == ["n1", "n2"]).then_some(()), seen))
    })
    .await?;
    pool.ready(READY).await?;
    run("late", "n1", StockWork::verify(KEYS, MIB)).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn kubectl_drain_waits_until_the_keys_of_the_node_have_moved() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("cordon", async move |product, namespace| {
            // The master stays: its eviction is another scenario.
            let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 120}], update: {onCordon: Drain}, master: {type: BuiltIn, \
                podTemplate: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: \
                [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n2]}]}]}}}}}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            ledgers(&pool, 2).await?;
            let outcome = evicted(&pool).await;
            let mut undone = Ok(String::new());
            for node in ["n1", "n2"] {
                undone = undone.and(namespace.kubectl(&["uncordon", node]).await);
            }
            outcome?;
            undone?;
            product.wait_ready(READY).await?;
            product.spread_operators(READY).await
        })
        .await
}

async fn evicted(pool: &Pool) -> anyhow::Result<()> {
    let namespace = &pool.namespace;
    let run = async |name: &str, node: &str, work: StockWork| {
        let pod = StockPod::new(name, work).node(node).inject("kv");
        let report = pod.run(namespace, WAIT).await?;
        let all = report.done == u64::from(KEYS) && report.failed == 0 && report.wrong == 0;
        ensure!(all, "{name}: {report:?}");
        anyhow::Ok(())
    };
    guards_on(pool, &["n1", "n2"]).await?;
    run("writer", "n1", StockWork::put(KEYS, MIB)).await?;
    let load = Load::start(namespace, "n2", "kv", Effort::default()).await?;
    let begun = Instant::now();
    let drain = [
        "drain",
        "n1",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=300s",
    ];
    let progress = namespace.kubectl(&drain).await?;
    println!(
        "kubectl drain took {:.1} s: {progress}",
        begun.elapsed().as_secs_f64()
    );
    // As soon as it returns: a reboot may follow.
    let left = pods(pool).await?;
    ensure!(left == ["n2"], "pool pods on {left:?}");
    run("reader", "n2", StockWork::verify(KEYS, MIB)).await?;
    guards_on(pool, &["n2"]).await?;
    pool.ready(READY).await?;

    // The keys of the last pool pod have no place: it stays, and the drain of its node waits.
    namespace.kubectl(&["cordon", "n2"]).await?;
    let held = pool
        .condition(ConditionType::Drained, "held", WAIT, |condition| {
            condition.reason == Reason::DrainExceedsSpace.as_str()
        })
        .await?;
    println!("{}", held.message);
    let guards = format!("{LABEL_COMPONENT}={COMPONENT_GUARD}");
    let selector = format!("--pod-selector={guards}");
    let refused = ["drain", "n2", "--timeout=15s", &selector];
    let refused = namespace.kubectl(&refused).await;
    ensure!(refused.is_err(), "the last guard was evicted: {refused:?}");
    namespace.kubectl(&["uncordon", "n2"]).await?;

    let report = load.finish(namespace).await?;
    report.nothing_failed()?;
    namespace.kubectl(&["uncordon", "n1"]).await?;
    eventually("a pool pod on n1", WAIT, || async {
        let on = pods(pool).await?;
        let seen = format!("{on:?}");
        Ok(Seen::when((on == ["n1", "n2"]).then_some(()), seen))
    })
    .await?;
    pool.ready(READY).await?;
    guards_on(pool, &["n1", "n2"]).await?;
    run("late", "n1", StockWork::verify(KEYS, MIB)).await
}

/// Waits until guards run on exactly these nodes.
async fn guards_on(pool: &Pool, nodes: &[&str]) -> anyhow::Result<()> {
    let found = ListParams::default().labels(&format!("{LABEL_COMPONENT}={COMPONENT_GUARD}"));
    let api = pool.namespace.api::<Pod>();
    eventually(format!("guards on {nodes:?}"), WAIT, || async {
        let mut on = Vec::new();
        let mut seen = Vec::new();
        for pod in api.list(&found).await? {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            seen.push(format!("{} {phase:?}", pod.name_any()));
            let runs = phase.as_deref() == Some("Running");
            let node = pod.spec.and_then(|spec| spec.node_name).filter(|_| runs);
            on.push(node.unwrap_or_default());
        }
        on.sort();
        Ok(Seen::when((on == nodes).then_some(()), seen.join("; ")))
    })
    .await
}

/// The nodes of the pool pods.
async fn pods(pool: &Pool) -> anyhow::Result<Vec<String>> {
    let pods = pool.pods().await?.into_iter();
    let mut nodes: Vec<String> = pods.filter_map(|pod| pod.spec?.node_name).collect();
    nodes.sort();
    Ok(nodes)
}

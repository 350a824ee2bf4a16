//! The size of a pool changes: with the built-in master every key moves to the other pool pod before its pod is replaced.

use super::built_in_master::ledgers;
use anyhow::{Context, ensure};
use crds::names::MASTER_OPEN_PORT;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{
    Effort, Load, Pool, Product, Seen, StockPod, StockWork, eventually, master,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Far less than half of one pool pod, with the keys of the load.
const KEYS: u32 = 64;
const BEFORE: &str = "256Mi";
const AFTER: &str = "320Mi";
const DRAIN: u32 = 120;
const WAIT: Duration = Duration::from_secs(180);
/// Both pods are replaced one after the other.
const ROLLOUT: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn no_key_is_lost_when_the_size_of_a_pool_changes_under_load() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("resize", async move |product, namespace| {
            let spec = format!(
                "{{pools: [{{name: default, size: {BEFORE}, drainSeconds: {DRAIN}}}], master: {{type: BuiltIn}}}}"
            );
            let pool = Pool::apply(&namespace, "kv", &spec).await?;
            pool.ready(READY).await?;
            ledgers(&pool, 2).await?;
            let run = async |name: &str, node: &str, work: StockWork| {
                let pod = StockPod::new(name, work).node(node).inject("kv");
                let report = pod.run(&namespace, WAIT).await?;
                let all = report.done == u64::from(KEYS) && report.failed == 0 && report.wrong == 0;
                ensure!(all, "{name}: {report:?}");
                anyhow::Ok(())
            };
            run("writer", "n1", StockWork::put(KEYS, MIB)).await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            resize(&pool).await?;
            // From the other node, while the load goes on.
            run("reader", "n2", StockWork::verify(KEYS, MIB)).await?;
            let report = load.finish(&namespace).await?;
            report.nothing_failed()?;
            run("late", "n1", StockWork::verify(KEYS, MIB)).await?;
            listed(&product, &pool).await?;
            moved(&pool).await
        })
        .await
}

/// Changes the size, and waits until both pods have it and serve.
async fn resize(pool: &Pool) -> anyhow::Result<()> {
    let pools = json!([{"name": "default", "size": AFTER, "drainSeconds": DRAIN}]);
    let patch = json!({"spec": {"pools": pools}}).to_string();
    let words = [
        "patch",
        "mooncakecluster",
        &pool.name,
        "--type=merge",
        "--patch",
        &patch,
    ];
    pool.namespace.kubectl(&words).await?;
    let begun = Instant::now();
    let wanted = format!("--bytes={}", 320 * MIB);
    eventually("both pods to have the new size", ROLLOUT, || async {
        let pods = pool.pods().await?;
        let args = |pod: &k8s_openapi::api::core::v1::Pod| {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let args = containers.flat_map(|container| container.args.iter().flatten());
            args.clone().any(|arg| *arg == wanted)
        };
        let new = pods.iter().filter(|pod| args(pod)).count();
        let seen = format!("{new} of {} pods", pods.len());
        Ok(Seen::when(
            (new == 2 && pods.len() == 2).then_some(()),
            seen,
        ))
    })
    .await?;
    pool.ready(READY).await?;
    ledgers(pool, 2).await?;
    println!(
        "both pods were replaced after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// `kubectl mooncake keys` counts the keys and finds their pool pods.
async fn listed(product: &Product, pool: &Pool) -> anyhow::Result<()> {
    let namespace = &pool.namespace.name;
    let words = ["keys", &pool.name, "-n", namespace, "--limit=3", "-o=json"];
    let found: Value = serde_json::from_str(&product.cli(&words).await?)?;
    let count = found["count"].as_u64().unwrap_or(0);
    let bytes = found["bytes"].as_u64().unwrap_or(0);
    let keys = found["keys"].as_array().context("keys")?;
    let placed = keys.iter().all(|key| {
        let node = key["replicas"][0]["node"].as_str();
        node.is_some_and(|node| ["n1", "n2"].contains(&node))
    });
    ensure!(
        count >= u64::from(KEYS)
            && bytes >= u64::from(KEYS) * MIB
            && (keys.len(), placed) == (3, true)
            && found["complete"] == true,
        "{found}"
    );
    let words = ["keys", &pool.name, "-n", namespace, "--prefix=no such key"];
    let text = product.cli(&words).await?;
    ensure!(text.contains(": 0 keys, 0 B"), "{text}");
    Ok(())
}

/// The master has moved keys and lost none.
async fn moved(pool: &Pool) -> anyhow::Result<()> {
    let metrics = master::get(&pool.master_ip().await?, MASTER_OPEN_PORT, "/metrics").await?;
    let counts: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("mooncake_drain_") || line.starts_with("master_evicted_"))
        .collect();
    println!("{}", counts.join("; "));
    let is = |line: &str| counts.contains(&line);
    ensure!(
        is("mooncake_drain_lost_objects_total 0")
            && is("master_evicted_key_count 0")
            && !is("mooncake_drain_moved_replicas_total 0"),
        "{counts:?}"
    );
    Ok(())
}

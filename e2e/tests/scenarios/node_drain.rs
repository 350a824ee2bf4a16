//! `kubectl mooncake drain` moves the keys of a node's pool pod to the other node, and `undrain` starts an empty one.

use super::built_in_master::ledgers;
use anyhow::ensure;
use crds::ConditionType;
use crds::condition::find;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Pool, Product, Seen, StockPod, StockWork, eventually};
use serde_json::Value;
use std::time::Duration;

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

/// The nodes of the pool pods.
async fn pods(pool: &Pool) -> anyhow::Result<Vec<String>> {
    let pods = pool.pods().await?.into_iter();
    let mut nodes: Vec<String> = pods.filter_map(|pod| pod.spec?.node_name).collect();
    nodes.sort();
    Ok(nodes)
}

//! A MooncakeCluster with the built-in master: stock pods get the results that they get from stock masters.

use super::master_restart::replace;
use super::stock_operations::{operations, same, stock_segments, work};
use anyhow::ensure;
use crds::cluster::MasterType;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Pool, Product, StockPod, StockWork};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(180);

/// Applies the cluster `kv` with a built-in master and waits until it is Ready.
async fn pool(namespace: &Namespace) -> anyhow::Result<Pool> {
    let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 2}], master: {type: BuiltIn}}";
    let pool = Pool::apply(namespace, "kv", spec).await?;
    pool.ready(READY).await?;
    let status = pool.object().await?.status.unwrap_or_default();
    ensure!(
        status.master_type == Some(MasterType::BuiltIn.into()),
        "status.masterType: {:?}",
        status.master_type
    );
    Ok(pool)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn stock_pods_put_get_and_remove_through_the_built_in_master() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("builtin", async move |_, namespace| {
            let stock = operations(&namespace, stock_segments(&namespace).await?).await?;
            let pool = pool(&namespace).await?;
            pool.mounted(2, WAIT).await?;
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
            let ours = operations(&namespace, StockPod::new("ours", work()).inject("kv")).await?;
            same(&stock, &ours)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn every_key_is_read_again_after_the_built_in_master_was_replaced() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("ledger", async move |_, namespace| {
            let pool = pool(&namespace).await?;
            pool.mounted(2, WAIT).await?;
            let keys = 128;
            let written = StockPod::new("writer", StockWork::put(keys, MIB))
                .node("n1")
                .inject("kv")
                .run(&namespace, WAIT)
                .await?;
            ensure!(written.done == u64::from(keys), "{written:?}");
            let returned = replace(&pool).await?;
            pool.mounted(2, WAIT).await?;
            println!(
                "mounted again {:.1} s after the new master was Ready",
                returned.elapsed().as_secs_f64()
            );
            let read = StockPod::new("reader", StockWork::verify(keys, MIB))
                .node("n2")
                .inject("kv")
                .run(&namespace, WAIT)
                .await?;
            ensure!(read.done == u64::from(keys) && read.wrong == 0, "{read:?}");
            Ok(())
        })
        .await
}

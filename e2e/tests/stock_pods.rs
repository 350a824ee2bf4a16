//! Stock pods exchange data across nodes: what everything else is compared with.

use anyhow::ensure;
use mooncake_e2e::scenario::{StockPod, StockWork, TestCluster, with_namespace};
use std::time::Duration;

const MASTER: &str = include_str!("../manifests/stock-master.yaml");
const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 2 GiB of memory"]
async fn a_stock_pod_reads_what_a_stock_pod_on_another_node_wrote_without_the_product()
-> anyhow::Result<()> {
    let cluster = TestCluster::get().await?;
    with_namespace(&cluster, "stock", async |namespace| {
        namespace.apply(MASTER).await?;
        let master = "master:50051";
        let wait = Duration::from_secs(90);
        namespace
            .cluster
            .rolled_out(&namespace.name, "master")
            .await?;
        StockPod::new("segment", StockWork::Segment { bytes: 256 * MIB })
            .node("n1")
            .master(master)
            .start(&namespace)
            .await?;
        namespace.pod_ready("segment", wait).await?;
        let written = StockPod::new("writer", StockWork::put(64, MIB))
            .node("n1")
            .master(master)
            .run(&namespace, wait)
            .await?;
        ensure!(written.done == 64, "{written:?}");
        let read = StockPod::new("reader", StockWork::verify(64, MIB))
            .node("n2")
            .master(master)
            .run(&namespace, wait)
            .await?;
        ensure!(read.done == 64 && read.wrong == 0, "{read:?}");
        println!(
            "put {:.0} MB/s, get {:.0} MB/s",
            written.megabytes_per_second(),
            read.megabytes_per_second()
        );
        Ok(())
    })
    .await
}

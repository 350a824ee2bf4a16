//! What stock pods do with an installed pool.

use anyhow::ensure;
use mooncake_e2e::scenario::{Namespace, StockPod, StockWork};
use std::time::Duration;

/// The MooncakeCluster of README.md.
const CLUSTER: &str = "demo";
const COUNT: u32 = 64;
const SIZE: u64 = 1 << 20;
/// Includes the pull of the stock image.
const WAIT: Duration = Duration::from_secs(180);

/// A stock pod puts objects, and one on the other node gets them and compares every byte.
pub(crate) async fn exchange(namespace: &Namespace, image: &str) -> anyhow::Result<()> {
    let pod = |name, node, work| {
        StockPod::new(name, work)
            .image(image)
            .node(node)
            .inject(CLUSTER)
    };
    let written = pod("writer", "n1", StockWork::put(COUNT, SIZE))
        .run(namespace, WAIT)
        .await?;
    let read = pod("reader", "n2", StockWork::verify(COUNT, SIZE))
        .run(namespace, WAIT)
        .await?;
    for report in [&written, &read] {
        ensure!(
            report.done == u64::from(COUNT) && report.failed == 0 && report.wrong == 0,
            "put: {written:?}; get: {read:?}"
        );
    }
    Ok(())
}

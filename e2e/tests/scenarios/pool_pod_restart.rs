//! Pool pods that are killed or deleted: their segments are unmounted at once and the next pod serves.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{Effort, Load, Pool, Product, Seen, eventually, master, processes};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Far less than the master's client TTL of 120 s, after which it drops segments by itself.
const AT_ONCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn killing_a_pool_process_unmounts_its_segments_at_once_and_its_restart_serves()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("poolkill", async move |_, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, AT_ONCE).await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let process = processes::of_pod(&pool.pod_on("n2").await?, "/pool serve")?;
            process
                .iter()
                .for_each(|process| process.recorded.signal(Signal::KILL));
            old_segments_unmounted(&pool, "n2", &before).await?;
            pool.mounted(2, READY).await?;
            pool.ready(READY).await?;
            // Keys of the killed pool are lost; `finish` rejects wrong bytes.
            let report = load.finish(&namespace).await?;
            ensure!(
                report.unread < report.kept,
                "keys of the other pool are lost too: {report:?}"
            );
            serves_again(&pool).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn deleting_a_pool_pod_unmounts_its_segments_at_once_and_its_replacement_serves()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("pooldel", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, AT_ONCE).await?;
            let old = pool.pod_on("n2").await?;
            let pods: Api<Pod> = namespace.api();
            pods.delete(&old.name_any(), &DeleteParams::default())
                .await?;
            old_segments_unmounted(&pool, "n2", &before).await?;
            let new = eventually("a replacement on n2", READY, || async {
                let now = pool.pod_on("n2").await?;
                Ok(Seen::when(
                    (now.uid() != old.uid()).then(|| now.clone()),
                    "the old pod",
                ))
            })
            .await?;
            namespace.pod_ready(&new.name_any(), READY).await?;
            let after = pool.mounted(2, AT_ONCE).await?;
            pool.ready(READY).await?;
            let former = on_n2(&before)?;
            let present = on_n2(&after)?;
            ensure!(
                former != present,
                "the replacement has the address and port of the old pod"
            );
            let words = product.cli(&["segment", &present]).await?;
            ensure!(
                words.contains("is served") && words.contains(&new.name_any()),
                "{words}"
            );
            let words = product.cli(&["segment", &former]).await?;
            ensure!(words.contains("SegmentUnknown"), "{words}");
            println!("{words}");
            serves_again(&pool).await
        })
        .await
}

/// The server name of the pool pod on n2, as stock clients write it into their errors.
fn on_n2(segments: &[master::Segment]) -> anyhow::Result<String> {
    let found = segments
        .iter()
        .find(|segment| segment.name.contains(".n2."));
    Ok(found.context("no segment on n2")?.te_endpoint.clone())
}

/// Waits until the master has none of the node's earlier segments.
async fn old_segments_unmounted(
    pool: &Pool,
    node: &str,
    before: &[master::Segment],
) -> anyhow::Result<()> {
    let started = Instant::now();
    let old: Vec<_> = before
        .iter()
        .filter(|segment| segment.name.contains(&format!(".{node}.")))
        .map(|segment| segment.segment_id.clone())
        .collect();
    ensure!(!old.is_empty(), "{node} had no segment: {before:?}");
    eventually(
        format!("the segments of the old pod on {node} to go"),
        AT_ONCE,
        || async {
            let now = pool.segments().await?;
            let gone = now.iter().all(|segment| !old.contains(&segment.segment_id));
            Ok(Seen::when(gone.then_some(()), format!("{now:?}")))
        },
    )
    .await?;
    println!(
        "its segments were unmounted after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Checks that a new client puts and verifies without a failure, and that there is one pool pod per node.
async fn serves_again(pool: &Pool) -> anyhow::Result<()> {
    let load = Load::start(&pool.namespace, "n2", &pool.name, Effort::default()).await?;
    load.finish(&pool.namespace).await?.nothing_failed()?;
    ensure!(
        !ip(&pool.pod_on("n2").await?)?.is_empty(),
        "it has no address"
    );
    ensure!(
        pool.pods().await?.len() == 2,
        "there are more pool pods than nodes"
    );
    Ok(())
}

//! A pool pod ends: its segments leave at once, its successor serves, and no byte of one life is
//! another's.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::story::pool::{READY, ip};
use mooncake_e2e::story::{Effort, Load, Pool, Product, Seen, eventually, master, processes};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Well under the master's client TTL of 120 s, after which it would forget by itself.
const AT_ONCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn the_segments_of_a_killed_pool_process_go_at_once_and_its_next_life_serves()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .tell("poolkill", async |namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, AT_ONCE).await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let process = processes::of_pod(&pool.pod_on("n2").await?, "serve")?;
            process
                .iter()
                .for_each(|process| process.recorded.signal(Signal::KILL));
            old_life_gone(&pool, "n2", &before).await?;
            pool.mounted(2, READY).await?;
            pool.ready(READY).await?;
            // Keys on the dead half are gone; wrong bytes are refused inside.
            let report = load.finish(&namespace).await?;
            ensure!(
                report.unread < report.kept,
                "the other half is gone as well: {report:?}"
            );
            serves_anew(&pool).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn the_segments_of_a_deleted_pool_pod_go_at_once_and_its_replacement_serves()
-> anyhow::Result<()> {
    let product = Arc::new(Product::shared().await?);
    product
        .tell("pooldel", async |namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, AT_ONCE).await?;
            let old = pool.pod_on("n2").await?;
            let pods: Api<Pod> = namespace.api();
            pods.delete(&old.name_any(), &DeleteParams::default())
                .await?;
            old_life_gone(&pool, "n2", &before).await?;
            let new = eventually("a replacement on n2", READY, || async {
                let now = pool.pod_on("n2").await?;
                Ok(Seen::when(
                    (now.uid() != old.uid()).then(|| now.clone()),
                    "the old one",
                ))
            })
            .await?;
            namespace.pod_ready(&new.name_any(), READY).await?;
            pool.mounted(2, AT_ONCE).await?;
            pool.ready(READY).await?;
            serves_anew(&pool).await
        })
        .await
}

/// Waits until no segment of a node's earlier life is at the master.
async fn old_life_gone(pool: &Pool, node: &str, before: &[master::Segment]) -> anyhow::Result<()> {
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
        "its segments were gone after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A new client puts and verifies on both nodes, without a failure; the memory is charged once.
async fn serves_anew(pool: &Pool) -> anyhow::Result<()> {
    let load = Load::start(&pool.namespace, "n2", &pool.name, Effort::default()).await?;
    load.finish(&pool.namespace).await?.undisturbed()?;
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

//! A replaced master: every segment is mounted again, at new addresses.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Effort, Load, Pool, Product, Seen, eventually, is_ready};
use std::time::{Duration, Instant};

const BACK: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_replaced_master_mounts_every_segment_again_within_five_seconds() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("master", async move |_, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, READY).await?;
            let pods_before = pool.pods().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let returned = replace(&pool).await?;
            let after = pool.mounted(2, BACK).await?;
            println!(
                "mounted again {:.1} s after the new master was Ready",
                returned.elapsed().as_secs_f64()
            );
            for segment in &after {
                let old_place = before.iter().any(|old| {
                    old.base_address == segment.base_address || old.segment_id == segment.segment_id
                });
                ensure!(
                    !old_place,
                    "a new epoch uses an old address: {before:?} then {after:?}"
                );
            }
            pool.ready(READY).await?;
            // The index is lost with the master.
            load.finish(&namespace).await?;
            let load = Load::start(&namespace, "n2", "kv", Effort::default()).await?;
            load.finish(&namespace).await?.nothing_failed()?;
            super::agent_restart::none_restarted(&pods_before, &pool.pods().await?)
        })
        .await
}

/// Deletes the master's pod and waits for a new one that answers. Returns the time at which it did.
pub(super) async fn replace(pool: &Pool) -> anyhow::Result<Instant> {
    replace_pod(pool).await?;
    eventually("a new master that answers", READY, || async {
        let segments = pool.segments().await?;
        Ok(Seen::Done(segments))
    })
    .await?;
    Ok(Instant::now())
}

/// Deletes the master's pod and waits for a new Ready one.
pub(super) async fn replace_pod(pool: &Pool) -> anyhow::Result<()> {
    let old = pool.master().await?;
    let pods: Api<Pod> = pool.namespace.api();
    pods.delete(&old.name_any(), &DeleteParams::default())
        .await?;
    eventually("a new master that is Ready", READY, || async {
        let now = pool.master().await?;
        let new = now.uid() != old.uid() && is_ready(&now);
        Ok(Seen::when(new.then_some(()), "no new Ready pod"))
    })
    .await
}

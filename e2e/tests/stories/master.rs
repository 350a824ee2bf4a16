//! The master is replaced.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Effort, Load, Pool, Product, Seen, eventually};
use std::time::{Duration, Instant};

const BACK: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_deleted_master_has_every_segment_again_within_five_seconds_of_its_return()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .tell("master", async |namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, READY).await?;
            let lives = pool.pods().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let returned = replace(&pool).await?;
            let after = pool.mounted(2, BACK).await?;
            println!(
                "mounted again {:.1} s after its return",
                returned.elapsed().as_secs_f64()
            );
            for segment in &after {
                let old_place = before.iter().any(|old| {
                    old.base_address == segment.base_address || old.segment_id == segment.segment_id
                });
                ensure!(
                    !old_place,
                    "a new data epoch has an old address: {before:?} then {after:?}"
                );
            }
            pool.ready(READY).await?;
            // The index is lost with the master; what is put now is all there is.
            load.finish(&namespace).await?;
            let load = Load::start(&namespace, "n2", "kv", Effort::default()).await?;
            load.finish(&namespace).await?.undisturbed()?;
            super::agent::same_lives(&lives, &pool.pods().await?)
        })
        .await
}

/// Deletes the master's pod; when another served and answered.
pub(super) async fn replace(pool: &Pool) -> anyhow::Result<Instant> {
    let old = pool.master().await?;
    let pods: Api<Pod> = pool.namespace.api();
    pods.delete(&old.name_any(), &DeleteParams::default())
        .await?;
    eventually("a master that serves and answers", READY, || async {
        let now = pool.master().await?;
        let new = now.uid() != old.uid() && serves(&now);
        let answers = new && pool.segments().await.is_ok();
        Ok(Seen::when(
            answers.then_some(()),
            "no new Ready pod that answers",
        ))
    })
    .await?;
    Ok(Instant::now())
}

fn serves(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

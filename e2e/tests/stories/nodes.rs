//! Nodes that are too small, or not there.

use anyhow::{Context, ensure};
use crds::{ConditionType, Reason};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Effort, Load, Pool, Product};
use serde_json::json;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_selector_that_no_node_matches_is_told() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .tell("nomatch", async |namespace| {
            let spec = "{pools: [{name: default, nodeSelector: {disk: none-has-this}}]}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            let message = pool.unready(Some(Reason::NoNodeMatches), READY).await?;
            ensure!(
                message.contains("disk") && message.contains("none-has-this"),
                "which selector? {message}"
            );
            Ok(())
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn on_a_node_without_room_the_pool_pod_is_pending_and_named_and_the_others_serve()
-> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let told = Arc::clone(&product);
    product
        .tell("noroom", async move |namespace| {
            let nodes: Api<Node> = Api::all(told.stage.client.clone());
            let room = nodes
                .get("n2")
                .await?
                .status
                .and_then(|status| status.allocatable?.get("memory").cloned())
                .context("n2 does not tell its memory")?;
            let kibibytes: u64 = room.0.trim_end_matches("Ki").parse()?;
            // What runs there already has requested less than 2 GiB; what is left is less than the pool.
            let pool_bytes = format!("{}Ki", kibibytes - (3 << 20));
            let filler: Pod = serde_json::from_value(json!({
                "metadata": {"name": "filler"},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": "n2"},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": mooncake_e2e::images::PAUSE,
                        "resources": {"requests": {"memory": pool_bytes}}}],
                },
            }))?;
            namespace
                .api::<Pod>()
                .create(&PostParams::default(), &filler)
                .await?;
            namespace.pod_ready("filler", READY).await?;
            let pool =
                Pool::apply(&namespace, "kv", "{pools: [{name: default, size: 4Gi}]}").await?;
            let told = pool
                .condition(ConditionType::PoolsReady, "False", READY, |condition| {
                    condition.reason == Reason::PoolPodPending.as_str()
                        && condition.message.contains("n2")
                        && condition.message.contains("Insufficient memory")
                })
                .await?;
            println!("{}", told.message);
            let segments = pool.mounted(1, READY).await?;
            ensure!(segments[0].name.contains("n1"), "{segments:?}");
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            load.finish(&namespace).await?.undisturbed()
        })
        .await
}

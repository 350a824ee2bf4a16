//! Pool pods that cannot be scheduled: no node matches, or a node has too little memory.

use anyhow::{Context, ensure};
use crds::{ConditionType, Reason};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Effort, Load, Pool, Product};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_node_selector_that_matches_no_node_is_reported() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("nomatch", async move |_, namespace| {
            let spec = "{pools: [{name: default, nodeSelector: {disk: none-has-this}}]}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            let message = pool.unready(Some(Reason::NoNodeMatches), READY).await?;
            ensure!(
                message.contains("disk") && message.contains("none-has-this"),
                "the message does not name the selector: {message}"
            );
            Ok(())
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_pool_pod_pending_for_lack_of_memory_is_reported_and_the_other_nodes_serve()
-> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("noroom", async move |product, namespace| {
            let nodes: Api<Node> = Api::all(product.cluster.client.clone());
            let room = nodes
                .get("n2")
                .await?
                .status
                .and_then(|status| status.allocatable?.get("memory").cloned())
                .context("n2 reports no allocatable memory")?;
            let kibibytes: u64 = room.0.trim_end_matches("Ki").parse()?;
            // Pods there request less than 2 GiB already; less memory than the pool needs is left.
            let pool_bytes = format!("{}Ki", kibibytes - (3 << 20));
            let filler: Pod = serde_json::from_value(json!({
                "metadata": {"name": "filler"},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": "n2"},
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": local_cluster::images::PAUSE,
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
            let condition = pool
                .condition(ConditionType::PoolsReady, "False", READY, |condition| {
                    condition.reason == Reason::PoolPodPending.as_str()
                        && condition.message.contains("n2")
                        && condition.message.contains("Insufficient memory")
                })
                .await?;
            println!("{}", condition.message);
            let segments = pool.mounted(1, READY).await?;
            ensure!(segments[0].name.contains("n1"), "{segments:?}");
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            load.finish(&namespace).await?.nothing_failed()
        })
        .await
}

//! Nodes that are cut off, replaced, too small, or not there.

use anyhow::{Context, ensure};
use crds::{ConditionType, MooncakeNode, Reason};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use mooncake_e2e::Part;
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Effort, Load, Pool, Product, Seen, eventually};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CUT_OFF: Duration = Duration::from_secs(70);
const BACK: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_node_that_is_cut_off_is_named_leaves_the_pool_in_time_and_comes_back_clean()
-> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("cutoff", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let home = node_of(&pool.master().await?)?;
            // The master stays, or all would be gone with it.
            let lost = if home == "n1" { "n2" } else { "n1" };
            let load = Load::start(&namespace, &home, "kv", Effort::default()).await?;
            product.stage.with(move |cluster| cluster.cut(lost)).await?;
            let started = Instant::now();
            let left = pool.mounted(1, CUT_OFF).await?;
            println!(
                "its segment was gone after {:.0} s",
                started.elapsed().as_secs_f64()
            );
            ensure!(left[0].name.contains(&home), "the wrong one left: {left:?}");
            let message = pool.unready(None, Duration::from_secs(60)).await?;
            ensure!(message.contains(lost), "{lost} is not named: {message}");
            product
                .stage
                .with(move |cluster| cluster.heal(lost))
                .await?;
            pool.mounted(2, BACK).await?;
            pool.ready(BACK).await?;
            load.finish(&namespace).await?;
            let load = Load::start(&namespace, lost, "kv", Effort::default()).await?;
            load.finish(&namespace).await?.undisturbed()
        })
        .await;
    for node in ["n1", "n2"] {
        product
            .stage
            .with(move |cluster| cluster.heal(node))
            .await?;
    }
    outcome
}

fn node_of(pod: &Pod) -> anyhow::Result<String> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .with_context(|| format!("{} is on no node", pod.name_any()))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn of_a_node_that_is_deleted_and_made_again_no_verdict_and_no_id_survives()
-> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("renode", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let nodes: Api<Node> = Api::all(product.stage.client.clone());
            let ours: Api<MooncakeNode> = Api::all(product.stage.client.clone());
            let old = (nodes.get("n2").await?.uid(), ours.get("n2").await?.uid());
            product
                .stage
                .with(|cluster| cluster.stop(Part::Kubelet(2)))
                .await?;
            nodes.delete("n2", &DeleteParams::default()).await?;
            eventually("MooncakeNode n2 to go with its Node", BACK, || async {
                let now = ours.get_opt("n2").await?;
                Ok(Seen::when(
                    now.is_none_or(|now| now.uid() != old.1).then_some(()),
                    "it is there",
                ))
            })
            .await?;
            product
                .stage
                .with(|cluster| cluster.start(Part::Kubelet(2)))
                .await?;
            let new = eventually("a report on the new n2", BACK, || async {
                let node = nodes.get("n2").await?;
                let report = ours.get("n2").await?;
                let told = report.status.clone().unwrap_or_default().node_uid;
                let done = node.uid() != old.0 && node.uid().as_deref() == Some(told.as_str());
                Ok(Seen::when(
                    done.then(|| report.clone()),
                    format!("{:?}", report.status),
                ))
            })
            .await?;
            ensure!(new.uid() != old.1, "the old MooncakeNode is still there");
            pool.ready(BACK).await?;
            pool.mounted(2, BACK).await?;
            Ok(())
        })
        .await;
    product
        .stage
        .with(|cluster| cluster.start(Part::Kubelet(2)))
        .await?;
    outcome
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_selector_that_no_node_matches_is_told() -> anyhow::Result<()> {
    let product = Product::installed().await?;
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
    let product = Arc::new(Product::installed().await?);
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

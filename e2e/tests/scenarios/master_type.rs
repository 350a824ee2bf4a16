//! Type and number of the masters of a MooncakeCluster that states none, on an API server with the webhook.

use anyhow::ensure;
use crds::MooncakeCluster;
use crds::cluster::MasterType;
use kube::api::{Api, Patch, PatchParams, PostParams};
use mooncake_e2e::scenario::{Product, Seen, eventually};
use serde_json::{Value, json};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(30);

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Applies the object by the server, as GitOps tools do.
async fn apply(clusters: &Api<MooncakeCluster>, object: &Value) -> kube::Result<MooncakeCluster> {
    let by = PatchParams::apply("gitops").force();
    clusters.patch("kv", &by, &Patch::Apply(object)).await
}

/// Type and number of the masters in the stored object.
fn stated(object: &MooncakeCluster) -> (Option<MasterType>, Option<u32>) {
    let master = &object.spec.master;
    (master.kind, master.replicas)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_new_cluster_gets_two_built_in_masters_and_keeps_them_when_applied_or_replaced_without_a_type()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("master-type", async move |_, namespace| {
            let clusters = namespace.api::<MooncakeCluster>();
            // On no node, so nothing is started beside the masters.
            let nowhere =
                json!([{"name": "default", "size": "64Mi", "nodeSelector": {"none": "here"}}]);
            let spec = json!({"pools": nowhere});
            let two = (Some(MasterType::BuiltIn), Some(2));
            for attempt in ["create", "apply", "apply with a change"] {
                let paused = attempt != "create";
                let spec = json!({"pools": nowhere, "paused": paused});
                let applied = apply(&clusters, &object("kv", &spec)).await?;
                let masters = stated(&applied);
                ensure!(masters == two, "{attempt}: {masters:?}");
            }
            // The status changes meanwhile, so the version may be old.
            eventually("a replacement without type and number", WAIT, || async {
                let mut object = clusters.get("kv").await?;
                object.spec.master.kind = None;
                object.spec.master.replicas = None;
                let replaced = clusters
                    .replace("kv", &PostParams::default(), &object)
                    .await?;
                let masters = stated(&replaced);
                Ok(Seen::when(
                    (masters == two).then_some(()),
                    format!("{masters:?}"),
                ))
            })
            .await?;

            let mut stock = spec.clone();
            stock["master"] = json!({"image": "localhost/none:0.3.13"});
            let stock = serde_json::from_value(object("stock", &stock))?;
            let created = clusters.create(&PostParams::default(), &stock).await?;
            let masters = stated(&created);
            ensure!(
                masters == (None, None),
                "with the image of a stock master: {masters:?}"
            );
            Ok(())
        })
        .await
}

//! Deletion of clusters and namespaces: everything created for them is deleted too.

use anyhow::ensure;
use crds::MooncakeCluster;
use kube::api::DeleteParams;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Pool, Product, Seen, StockPod, StockWork, eventually};
use std::collections::BTreeSet;
use std::time::Duration;

const DELETED: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn deleting_a_cluster_deletes_everything_created_for_it() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("delete", async move |_, namespace| {
            let before = objects(&namespace).await?;
            let spec =
                "{pools: [{name: default, size: 64Mi, drainSeconds: 2}], master: {type: BuiltIn}}";
            Pool::apply(&namespace, "kv", spec)
                .await?
                .ready(READY)
                .await?;
            let created = objects(&namespace).await?.difference(&before).count();
            ensure!(created > 10, "only {created} objects were created");
            delete(&namespace).await?;
            nothing_left(&namespace, &before).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn deleting_a_namespace_deletes_its_pools_and_stock_pods() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("whole", async move |_, namespace| {
            Pool::small(&namespace).await?;
            StockPod::new("idle", StockWork::Idle)
                .inject("kv")
                .start(&namespace)
                .await?;
            namespace.pod_ready("idle", DELETED).await?;
            namespace.delete().await
        })
        .await
}

async fn delete(namespace: &Namespace) -> anyhow::Result<()> {
    namespace
        .api::<MooncakeCluster>()
        .delete("kv", &DeleteParams::default())
        .await?;
    Ok(())
}

/// Waits until the namespace has only what it had before the cluster.
async fn nothing_left(namespace: &Namespace, before: &BTreeSet<String>) -> anyhow::Result<()> {
    eventually("everything of the cluster to be gone", DELETED, || async {
        let now = objects(namespace).await?;
        let left: Vec<_> = now.difference(before).cloned().collect();
        Ok(Seen::when(left.is_empty().then_some(()), left.join(", ")))
    })
    .await
}

/// Every object of the namespace except Events, which outlive their objects.
async fn objects(namespace: &Namespace) -> anyhow::Result<BTreeSet<String>> {
    let words = [
        "api-resources",
        "--verbs=list,delete",
        "--namespaced=true",
        "--output=name",
    ];
    let kinds = namespace.kubectl(&words).await?;
    let kinds: Vec<_> = kinds
        .lines()
        .filter(|kind| !kind.starts_with("events"))
        .collect();
    let found = namespace
        .kubectl(&["get", &kinds.join(","), "--output=name"])
        .await?;
    Ok(found.lines().map(str::to_owned).collect())
}

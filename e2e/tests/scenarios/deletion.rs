//! Deletion of clusters and namespaces: everything created for them is deleted too.

use crds::MooncakeCluster;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use mooncake_e2e::scenario::{Namespace, Pool, Product, Seen, StockPod, StockWork, eventually};
use std::time::Duration;

const DELETED: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn deleting_a_cluster_deletes_everything_created_for_it() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("delete", async move |_, namespace| {
            Pool::small(&namespace).await?;
            delete(&namespace).await?;
            nothing_left(&namespace).await
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

/// Waits until the cluster and everything created for it no longer exist.
async fn nothing_left(namespace: &Namespace) -> anyhow::Result<()> {
    eventually("everything of the cluster to be gone", DELETED, || async {
        let mut left = Vec::new();
        left.extend(names::<MooncakeCluster>(namespace).await?);
        left.extend(names::<Deployment>(namespace).await?);
        left.extend(names::<DaemonSet>(namespace).await?);
        left.extend(names::<Service>(namespace).await?);
        left.extend(names::<Pod>(namespace).await?);
        Ok(Seen::when(left.is_empty().then_some(()), left.join(", ")))
    })
    .await
}

async fn names<K>(namespace: &Namespace) -> anyhow::Result<Vec<String>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    let found = namespace.api::<K>().list(&ListParams::default()).await?;
    let kind = K::kind(&Default::default()).into_owned();
    Ok(found
        .iter()
        .map(|object| format!("{kind} {}", object.name_any()))
        .collect())
}

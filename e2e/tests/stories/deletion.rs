//! Whatever is deleted goes, in any order, whoever is away.

use super::control_plane::scale_operator;
use anyhow::ensure;
use crds::MooncakeCluster;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use mooncake_e2e::product::{NAMESPACE, RELEASE};
use mooncake_e2e::story::{Namespace, Pool, Product, Seen, eventually};
use std::sync::Arc;
use std::time::Duration;

const GOODBYE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn with_a_deleted_cluster_goes_everything_that_was_made_for_it() -> anyhow::Result<()> {
    let product = Product::installed().await?;
    product
        .tell("delete", async |namespace| {
            Pool::small(&namespace).await?;
            delete(&namespace).await?;
            nothing_left(&namespace).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_namespace_goes_with_its_cluster_while_the_operator_is_away() -> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("nsgone", async move |namespace| {
            Pool::small(&namespace).await?;
            // The namespace goes at the end of the story, and must be gone within a minute.
            scale_operator(&told, 0).await
        })
        .await;
    scale_operator(&product, 2).await?;
    outcome
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn the_release_goes_before_its_clusters_and_they_can_still_be_deleted() -> anyhow::Result<()>
{
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("helmless", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            product
                .helm(&["uninstall", RELEASE, "--wait", "--timeout=60s"])
                .await?;
            let pods: Api<Pod> = product.in_namespace();
            eventually(
                format!("the pods of {NAMESPACE} to go"),
                GOODBYE,
                || async {
                    let left = pods.list(&ListParams::default()).await?.items;
                    let names: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
                    Ok(Seen::when(names.is_empty().then_some(()), names.join(", ")))
                },
            )
            .await?;
            ensure!(
                pool.object().await.is_ok(),
                "uninstalling took the user's cluster with it"
            );
            delete(&namespace).await?;
            nothing_left(&namespace).await
        })
        .await;
    product.install(&[]).await?;
    product.whole(Duration::from_secs(180)).await?;
    outcome
}

async fn delete(namespace: &Namespace) -> anyhow::Result<()> {
    namespace
        .api::<MooncakeCluster>()
        .delete("kv", &DeleteParams::default())
        .await?;
    Ok(())
}

/// Waits until neither the cluster nor anything of its is there, Terminating or not.
async fn nothing_left(namespace: &Namespace) -> anyhow::Result<()> {
    eventually("everything of the cluster to go", GOODBYE, || async {
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

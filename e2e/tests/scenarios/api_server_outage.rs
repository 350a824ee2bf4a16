//! An outage of the API server: transfers continue, also with one of two elected masters, nothing restarts, and reconciliation
//! resumes afterwards.

use super::agent_restart::none_restarted;
use anyhow::{Context, ensure};
use crds::MooncakeCluster;
use crds::names::{ANNOTATION_EPOCH, COMPONENT_AGENT, COMPONENT_OPERATOR};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use local_cluster::Part;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Effort, Load, Namespace, Pool, Product, watches_resume};
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn transfers_continue_without_the_api_server() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let outage = product.scale.of("seconds without the API server", 20, 120);
    let outcome = product
        .run("noapi", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let elected = two_masters(&namespace).await?;
            let outage = Duration::from_secs(outage);
            without_api_server(&product, &pool, &elected, outage).await
        })
        .await;
    product
        .cluster
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    outcome
}

/// A cluster whose elected master may serve for 4 s after a write of its Lease, unless the other elector promises more. That one is
/// its witness.
async fn two_masters(namespace: &Namespace) -> anyhow::Result<Pool> {
    let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 2}],
        master: {type: BuiltIn, leaseSeconds: 5}}";
    let pool = Pool::apply(namespace, "elected", spec).await?;
    pool.ready(READY).await?;
    pool.witnessed(READY).await?;
    Ok(pool)
}

async fn epoch(pool: &Pool) -> anyhow::Result<Option<String>> {
    let annotations = pool.lease().await?.metadata.annotations;
    Ok(annotations.and_then(|all| all.get(ANNOTATION_EPOCH).cloned()))
}

async fn without_api_server(
    product: &Product,
    pool: &Pool,
    elected: &Pool,
    outage: Duration,
) -> anyhow::Result<()> {
    let load = Load::start(&pool.namespace, "n1", &pool.name, Effort::default()).await?;
    let other = Load::start(&pool.namespace, "n2", &elected.name, Effort::default()).await?;
    let before = product_pods(product, &[pool, elected]).await?;
    let term = epoch(elected).await?;
    product
        .cluster
        .with(|cluster| cluster.stop(Part::ApiServer))
        .await?;
    // The load runs without API server for a while.
    tokio::time::sleep(outage).await;
    product
        .cluster
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    product.wait_ready(SOON).await?;
    watches_resume(&pool.namespace, &["n1", "n2"]).await?;
    // The leader of the operator reconciles again.
    let spec = json!({"spec": {"access": {"addresses": ["192.0.2.1"]}}});
    pool.namespace
        .api::<MooncakeCluster>()
        .patch(&pool.name, &PatchParams::default(), &Patch::Merge(spec))
        .await?;
    pool.ready(SOON).await?;
    load.finish(&pool.namespace).await?.nothing_failed()?;
    let done = other.finish(&pool.namespace).await?;
    done.nothing_failed().context("with two masters")?;
    ensure!(epoch(elected).await? == term, "another term has begun");
    none_restarted(&before, &product_pods(product, &[pool, elected]).await?)
}

/// Every pod of the product.
async fn product_pods(product: &Product, pools: &[&Pool]) -> anyhow::Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for pool in pools {
        pods.extend(pool.pods().await?);
        pods.extend(pool.masters().await?);
    }
    for component in [COMPONENT_OPERATOR, COMPONENT_AGENT] {
        pods.extend(product.pods(component).await?);
    }
    Ok(pods)
}

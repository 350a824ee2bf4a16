//! An outage of the API server: transfers continue, nothing restarts, and reconciliation resumes afterwards.

use super::agent_restart::none_restarted;
use crds::MooncakeCluster;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use local_cluster::Part;
use mooncake_e2e::scenario::{Effort, Load, Pool, Product, watches_resume};
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
            without_api_server(&product, &pool, Duration::from_secs(outage)).await
        })
        .await;
    product
        .cluster
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    outcome
}

async fn without_api_server(
    product: &Product,
    pool: &Pool,
    outage: Duration,
) -> anyhow::Result<()> {
    let load = Load::start(&pool.namespace, "n1", &pool.name, Effort::default()).await?;
    let before = product_pods(product, pool).await?;
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
    none_restarted(&before, &product_pods(product, pool).await?)
}

/// Every pod of the product.
async fn product_pods(product: &Product, pool: &Pool) -> anyhow::Result<Vec<Pod>> {
    let mut pods = pool.pods().await?;
    pods.push(pool.master().await?);
    for component in [COMPONENT_OPERATOR, COMPONENT_AGENT] {
        pods.extend(product.pods(component).await?);
    }
    Ok(pods)
}

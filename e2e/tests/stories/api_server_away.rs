//! The API server is away: transfers go on, nothing restarts, and all work as before when it is back.

use super::agent::same_lives;
use crds::MooncakeCluster;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use mooncake_e2e::Part;
use mooncake_e2e::story::{Effort, Load, Pool, Product};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn without_the_api_server_everything_goes_on() -> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let away = product.scale.of("seconds without the API server", 20, 120);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("noapi", async move |namespace| {
            let pool = Pool::small(&namespace).await?;
            without_api_server(&told, &pool, Duration::from_secs(away)).await
        })
        .await;
    product
        .stage
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    outcome
}

async fn without_api_server(product: &Product, pool: &Pool, away: Duration) -> anyhow::Result<()> {
    let load = Load::start(&pool.namespace, "n1", &pool.name, Effort::default()).await?;
    let lives = everyone(product, pool).await?;
    product
        .stage
        .with(|cluster| cluster.stop(Part::ApiServer))
        .await?;
    // Time for the load to work without it: what is tested is a while, not a state.
    tokio::time::sleep(away).await;
    product
        .stage
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    product.whole(SOON).await?;
    pool.namespace.everyone_listens(&["n1", "n2"], SOON).await?;
    // Whoever leads the operator works as before.
    let spec = json!({"spec": {"access": {"addresses": ["192.0.2.1"]}}});
    pool.namespace
        .api::<MooncakeCluster>()
        .patch(&pool.name, &PatchParams::default(), &Patch::Merge(spec))
        .await?;
    pool.ready(SOON).await?;
    load.finish(&pool.namespace).await?.undisturbed()?;
    same_lives(&lives, &everyone(product, pool).await?)
}

/// Every pod of ours.
async fn everyone(product: &Product, pool: &Pool) -> anyhow::Result<Vec<Pod>> {
    let mut pods = pool.pods().await?;
    pods.push(pool.master().await?);
    for component in [COMPONENT_OPERATOR, COMPONENT_AGENT] {
        pods.extend(product.pods(component).await?);
    }
    Ok(pods)
}

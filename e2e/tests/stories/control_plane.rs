//! The operator is replaced; who stores and transfers does not notice.

use super::agent::same_lives;
use anyhow::ensure;
use crds::names::COMPONENT_OPERATOR;
use kube::ResourceExt;
use mooncake_e2e::story::{Effort, Load, Pool, Product};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_upgrade_of_the_operator_restarts_no_pool_pod() -> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    product
        .tell("upgrade", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let lives = pool.pods().await?;
            let master = pool.master().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let old = product.pods(COMPONENT_OPERATOR).await?;
            product.install(&["operator.log=debug".to_owned()]).await?;
            product.whole(Duration::from_secs(120)).await?;
            let new = product.pods(COMPONENT_OPERATOR).await?;
            ensure!(
                old.iter()
                    .all(|old| new.iter().all(|new| new.uid() != old.uid())),
                "the operator was not replaced"
            );
            pool.ready(SOON).await?;
            load.finish(&namespace).await?.undisturbed()?;
            same_lives(&lives, &pool.pods().await?)?;
            same_lives(&[master], &[pool.master().await?])
        })
        .await
}

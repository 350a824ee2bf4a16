//! The Helm release is upgraded, uninstalled and installed again.

use super::agent_restart::none_restarted;
use anyhow::ensure;
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR};
use kube::ResourceExt;
use mooncake_e2e::product::{NAMESPACE, RELEASE};
use mooncake_e2e::scenario::{Pool, Product, Seen, StockPod, StockWork, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);
const DELETED: Duration = Duration::from_secs(60);
/// What Kubernetes itself puts into every namespace.
const OF_EVERY_NAMESPACE: [&str; 2] = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
const KEYS: u32 = 48;
const BYTES: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn pools_survive_helm_upgrade_uninstall_and_reinstall() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let outcome = product
        .run("release", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let written = StockPod::new("writer", StockWork::put(KEYS, BYTES))
                .inject("kv")
                .run(&namespace, SOON)
                .await?;
            ensure!(written.done == u64::from(KEYS), "{written:?}");
            let mut before = pool.pods().await?;
            before.push(pool.master().await?);

            // Another scenario may have set the log level to debug.
            let old = pods(&product).await?;
            product
                .install(&["operator.log=warn", "agent.log=warn"].map(str::to_owned))
                .await?;
            product.wait_ready(SOON).await?;
            let new = pods(&product).await?;
            ensure!(
                old.iter().all(|old| !new.contains(old)),
                "not all were replaced: {old:?}, {new:?}"
            );

            uninstall(&product).await?;
            product.install(&[]).await?;
            product.wait_ready(SOON).await?;
            pool.ready(SOON).await?;
            let read = StockPod::new("reader", StockWork::verify(KEYS, BYTES))
                .inject("kv")
                .run(&namespace, SOON)
                .await?;
            ensure!(read.done == u64::from(KEYS) && read.wrong == 0, "{read:?}");
            let mut now = pool.pods().await?;
            now.push(pool.master().await?);
            none_restarted(&before, &now)?;
            // The namespace is deleted next, without operator and agents.
            uninstall(&product).await
        })
        .await;
    product.install(&[]).await?;
    outcome
}

/// UIDs of operators and agents.
async fn pods(product: &Product) -> anyhow::Result<Vec<Option<String>>> {
    let mut pods = product.pods(COMPONENT_OPERATOR).await?;
    pods.extend(product.pods(COMPONENT_AGENT).await?);
    Ok(pods.iter().map(ResourceExt::uid).collect())
}

/// Uninstalls, and waits until only the CRDs are left.
async fn uninstall(product: &Product) -> anyhow::Result<()> {
    product.helm(&["uninstall", RELEASE]).await?;
    let cluster = &product.cluster;
    let kinds = async |namespaced: &str| -> anyhow::Result<String> {
        let scope = format!("--namespaced={namespaced}");
        let words = ["api-resources", "--verbs=list,delete", &scope, "-o", "name"];
        let names = cluster.kubectl(words).await?;
        // Events outlive their objects.
        let names = names.lines().filter(|name| !name.starts_with("events"));
        Ok(names.collect::<Vec<_>>().join(","))
    };
    let (inside, outside) = (kinds("true").await?, kinds("false").await?);
    let label = format!("--selector=app.kubernetes.io/instance={RELEASE}");
    eventually("nothing of the release to be left", DELETED, || async {
        let mut left = cluster
            .kubectl(["get", &inside, "--namespace", NAMESPACE, "-o", "name"])
            .await?;
        left += &cluster
            .kubectl(["get", &outside, &label, "-o", "name"])
            .await?;
        let left: Vec<_> = left
            .lines()
            .filter(|name| !OF_EVERY_NAMESPACE.contains(name))
            .collect();
        Ok(Seen::when(left.is_empty().then_some(()), left.join(", ")))
    })
    .await?;
    let crds = cluster.kubectl(["get", "crds", "-o", "name"]).await?;
    for kept in [
        "mooncakeclusters",
        "mooncakenodes",
        "mooncakeinventories",
        "mooncakenodepolicies",
    ] {
        ensure!(crds.contains(kept), "{kept} was deleted: {crds}");
    }
    Ok(())
}

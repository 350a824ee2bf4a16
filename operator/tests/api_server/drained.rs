//! The condition `Drained` and its Events, while a pool pod ends and afterwards.

use anyhow::ensure;
use crds::Reason;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::json;

use super::harness::{Harness, eventually};
use super::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn begin_and_end_of_a_drain_are_reported_once() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    // With the default of drainSeconds that the pods have already: none of them is replaced.
    let spec = json!({
        "master": {"type": "BuiltIn"}, "pools": [{"name": "default", "size": "64Mi", "drainSeconds": 5}],
    });
    harness.change_spec(spec).await?;
    harness.ready().await?;
    let before = harness.condition("Drained").await?;
    ensure!(before.is_empty(), "{before} before the first drain");

    // No kubelet runs: the pod stays until the test removes it.
    let pods = harness.api::<Pod>();
    let deletion = DeleteParams::default().grace_period(60);
    pods.delete("kv-pool-default-n1", &deletion).await?;
    eventually("the drain to be reported", || async {
        let drained = harness.condition("Drained").await?;
        Ok(drained.starts_with("False Draining: the keys of kv-pool-default-n1 (n1) move"))
    })
    .await?;
    let written = harness.quiet().await?;
    harness.reconciled_twice().await?;
    ensure!(
        harness.metrics.writes() == written,
        "writes without a change"
    );
    let begun = harness.events("kv", Reason::Draining, "Drained: ").await?;
    ensure!(
        begun.len() == 1 && begun[0].type_.as_deref() == Some("Normal"),
        "{begun:?}"
    );

    harness.remove_pool_pod("n1").await?;
    harness.make_pool_pod("n1").await?;
    harness.serve("n1").await?;
    eventually("the end of the drain", || async {
        let drained = harness.condition("Drained").await?;
        Ok(drained == "True AsExpected: no pool pod ends")
    })
    .await?;
    harness.quiet().await?;
    let ended = harness
        .events("kv", Reason::AsExpected, "Drained: ")
        .await?;
    ensure!(ended.len() == 1, "{ended:?}");
    Ok(())
}

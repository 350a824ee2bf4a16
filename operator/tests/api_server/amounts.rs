//! Amounts in forms that the API server does not return, such as `0.5` for `500m`.

use anyhow::ensure;
use serde_json::json;

use crate::harness::{Harness, eventually};
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn amounts_that_the_api_server_rewrites_become_ready_and_are_written_once()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let requests = json!({"cpu": "0.5", "memory": "2e8"});
    let spec = json!({
        "master": {"resources": {"requests": requests}},
        "pools": [{"name": "default", "size": "64Mi", "cpu": "0.5"}],
    });
    harness.change_spec(spec).await?;
    for node in ["n1", "n2"] {
        eventually("the deletion of an outdated pod", || async {
            harness.play_daemon_sets().await?;
            let pod = harness.pool_pod_on(node).await?;
            Ok(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
        })
        .await?;
        harness.remove_pool_pod(node).await?;
        harness.make_pool_pod(node).await?;
        harness.serve(node).await?;
    }
    harness.play_daemon_sets().await?;
    harness.ready().await?;
    // The same amount in another form replaces no pod.
    let pods = harness.pool_pods().await?;
    let same = json!({"pools": [{"name": "default", "size": "64Mi", "cpu": "500m"}]});
    harness.change_spec(same).await?;
    harness.ready().await?;
    harness.reconciled_twice().await?;
    ensure!(harness.pool_pods().await? == pods, "a pod was replaced");
    let after = harness.quiet().await?;
    harness.reconciled_twice().await?;
    ensure!(
        harness.quiet().await? == after,
        "it is written again at each reconcile"
    );
    Ok(())
}

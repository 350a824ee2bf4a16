//! Waits until kubelets and controllers have resumed their watches after an outage of the API server.

use super::namespace::Namespace;
use super::stock_pod::{StockPod, StockWork};
use std::time::Duration;

/// Waits until the kubelets of these nodes start a new pod and a deleted namespace goes. client-go retries a lost
/// watch after pauses that grow to a minute.
///
/// # Errors
/// When a pod is not Ready in time, or the namespace stays.
pub async fn watches_resume(
    namespace: &Namespace,
    nodes: &[&str],
    deadline: Duration,
) -> anyhow::Result<()> {
    let name = |node: &str| format!("watch-{node}");
    for node in nodes {
        let pod = StockPod::new(&name(node), StockWork::Idle).node(node);
        pod.start(namespace).await?;
    }
    let empty = format!("{}-watch", namespace.name);
    let cluster = &namespace.cluster;
    cluster.kubectl(["create", "namespace", &empty]).await?;
    cluster
        .kubectl(["delete", "namespace", &empty, "--wait=false"])
        .await?;
    for node in nodes {
        namespace.pod_ready(&name(node), deadline).await?;
    }
    namespace.gone(&empty, deadline).await
}

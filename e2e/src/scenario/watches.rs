//! Waits until kubelets and controllers have resumed their watches after an outage of the API server.

use super::namespace::Namespace;
use super::stock_pod::{StockPod, StockWork};
use std::time::Duration;

/// client-go retries a lost watch after pauses that grow to a minute, and an API server that has just started may refuse
/// the first attempt: a kubelet was seen to need 95 s after an outage of 20 s.
const RESUMED: Duration = Duration::from_secs(180);

/// Waits until the kubelets of these nodes start a new pod and a deleted namespace goes.
///
/// # Errors
/// When a pod is not Ready in three minutes, or the namespace stays.
pub async fn watches_resume(namespace: &Namespace, nodes: &[&str]) -> anyhow::Result<()> {
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
        namespace.pod_ready(&name(node), RESUMED).await?;
    }
    namespace.gone(&empty, RESUMED).await
}

//! Preflight checks of one cluster: its pod waits on a node with a warning, names the check, and starts after the repair.
//! The pod of another cluster starts at once.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use local_cluster::images;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Node, Pool, Product, Seen, eventually};
use serde_json::json;
use std::time::Duration;

use super::node_policy::{NARROW, range, set_range};

const SOON: Duration = Duration::from_secs(60);
const POOLS: &str = "pools: [{name: default, size: 64Mi, drainSeconds: 2}]";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_pod_waits_for_the_preflight_checks_of_its_own_cluster_only() -> anyhow::Result<()> {
    // All pods of a node share its ephemeral ports.
    let product = Product::exclusive().await?;
    product
        .run("preflight", async move |_, namespace| {
            let node = Node::new(&namespace.cluster, "n2");
            let before = range(&node).await?;
            set_range(&node, NARROW).await?;
            let outcome = run(&namespace, &node, &before).await;
            // Also after a failure, because other scenarios use the same node.
            set_range(&node, &before).await?;
            outcome
        })
        .await
}

async fn run(namespace: &Namespace, node: &Node, before: &str) -> anyhow::Result<()> {
    let careful = format!(
        "{{{POOLS}, preflight: {{checks: [EphemeralPorts]}}, injection: {{deadlineSeconds: 600, onDeadline: Fail}}}}"
    );
    let pools = [("careful", careful), ("easy", format!("{{{POOLS}}}"))];
    for (name, spec) in &pools {
        let pool = Pool::apply(namespace, name, spec).await?;
        pool.ready(READY).await?;
    }
    let refused = Pool::apply(namespace, "wrong", "{preflight: {checks: [PodMemlock]}}").await;
    let message = refused
        .err()
        .context("PodMemlock is not a check of nodes")?;
    ensure!(
        format!("{message:#}").contains("spec.preflight"),
        "{message:#}"
    );
    for (cluster, _) in &pools {
        start_injected(namespace, cluster).await?;
    }
    namespace.pod_ready("easy", SOON).await?;
    let pods: Api<Pod> = namespace.api();
    let text = eventually(
        "the pod to name the check that it waits for",
        SOON,
        || async {
            let pod = pods.get("careful").await?;
            let text = gate(&pod).unwrap_or_default();
            let named = text.contains("EphemeralPortsLow") && text.contains("n2");
            Ok(Seen::when(named.then(|| text.clone()), text))
        },
    )
    .await?;
    println!("{text}");
    // The gate reads the findings from a file that the kubelet projects.
    eventually("the gate to log the check", SOON, || async {
        let log = namespace.logs("careful", "mooncake-gate").await?;
        let named = log.contains("EphemeralPortsLow");
        Ok(Seen::when(named.then_some(()), log))
    })
    .await?;
    set_range(node, before).await?;
    // The kubelet projects the change of the file after up to a minute, on a busy machine later.
    namespace.pod_ready("careful", 2 * SOON).await?;
    Ok(())
}

/// Starts an idle pod on n2, injected for the cluster of the same name.
async fn start_injected(namespace: &Namespace, cluster: &str) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": cluster, "labels": {"mooncake.io/inject": cluster}},
        "spec": {
            "nodeName": "n2",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "user", "image": images::DEBIAN,
                "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1; done"],
            }],
        },
    });
    namespace.apply(&pod.to_string()).await?;
    Ok(())
}

fn gate(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    let gate = conditions.find(|condition| condition.type_ == "mooncake.io/GateReady")?;
    gate.message.clone()
}

//! A cluster that asks more of its pods' nodes than everybody does: its pod waits on a node where a check warns, says
//! for what, and starts when the node is repaired; another cluster's starts at once.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use mooncake_e2e::images;
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Namespace, Node, Pool, Product, Seen, eventually};
use serde_json::json;
use std::time::Duration;

use super::policy::{NARROW, range, set_range};

const SOON: Duration = Duration::from_secs(60);
const POOLS: &str = "pools: [{name: default, size: 64Mi, drainSeconds: 2}]";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_pod_waits_for_the_checks_that_its_own_cluster_asks_for_and_no_other_pod_does()
-> anyhow::Result<()> {
    // Ephemeral ports of a node are everybody's who connects from there.
    let product = Product::alone().await?;
    product
        .tell("preflight", async |namespace| {
            let node = namespace.stage.node("n2");
            let before = range(&node).await?;
            set_range(&node, NARROW).await?;
            let told = tell(&namespace, &node, &before).await;
            // Also where it has failed: the cluster is that of other stories too.
            set_range(&node, &before).await?;
            told
        })
        .await
}

async fn tell(namespace: &Namespace, node: &Node, before: &str) -> anyhow::Result<()> {
    let careful = format!(
        "{{{POOLS}, preflight: {{checks: [EphemeralPorts]}}, injection: {{deadlineSeconds: 600, onDeadline: Fail}}}}"
    );
    let pools = [("careful", careful), ("easy", format!("{{{POOLS}}}"))];
    for (name, spec) in &pools {
        let pool = Pool::apply(namespace, name, spec).await?;
        pool.ready(READY).await?;
    }
    let refused = Pool::apply(namespace, "wrong", "{preflight: {checks: [PodMemlock]}}").await;
    let words = refused.err().context("PodMemlock is no check of a node")?;
    ensure!(
        format!("{words:#}").contains("look at containers that run already"),
        "{words:#}"
    );
    for (cluster, _) in &pools {
        injected(namespace, cluster).await?;
    }
    namespace.pod_ready("easy", SOON).await?;
    let pods: Api<Pod> = namespace.api();
    let said = eventually("the pod to say for what it waits", SOON, || async {
        let pod = pods.get("careful").await?;
        let said = gate(&pod).unwrap_or_default();
        let is_so = said.contains("EphemeralPortsLow: node n2: check EphemeralPorts");
        Ok(Seen::when(is_so.then(|| said.clone()), said))
    })
    .await?;
    println!("{said}");
    // The gate's own words, which come from the file that the kubelet shows it.
    eventually("the gate to know it", SOON, || async {
        let log = namespace.logs("careful", "mooncake-gate").await?;
        let is_so = log.contains("EphemeralPortsLow");
        Ok(Seen::when(is_so.then_some(()), log))
    })
    .await?;
    set_range(node, before).await?;
    namespace.pod_ready("careful", SOON).await?;
    Ok(())
}

/// A pod on n2 that does nothing, injected for the cluster of its name.
async fn injected(namespace: &Namespace, cluster: &str) -> anyhow::Result<()> {
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
    let gate = conditions.find(|said| said.type_ == "mooncake.io/GateReady")?;
    gate.message.clone()
}

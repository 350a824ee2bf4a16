//! Nodes with unhealthy RDMA devices on a real API server: which are cordoned, which exceed the limit,
//! which are uncordoned, and that manually cordoned nodes are not changed.

use std::time::Duration;

use anyhow::ensure;
use crds::{MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::harness::{Harness, eventually};
use crate::policies::apply;

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const CORDONED: &str = "mooncake.io/cordoned";
const REPAIR: &str = "mooncake.io/repair-requested";

/// Three intervals of a policy's reconciles: after them a pending change would be visible.
const SETTLED: Duration = Duration::from_secs(3);

/// Whether the node is unschedulable, and the operator's two annotations.
type Cordon = (bool, Option<String>, Option<String>);

async fn cordon(harness: &Harness, node: &str) -> anyhow::Result<Cordon> {
    let node = harness.cluster_wide::<Node>().get(node).await?;
    let annotation = |name: &str| node.annotations().get(name).cloned();
    let spec = node.spec.clone().unwrap_or_default();
    let unschedulable = spec.unschedulable == Some(true);
    Ok((unschedulable, annotation(CORDONED), annotation(REPAIR)))
}

/// Fails if the operator has annotated or changed the node.
async fn untouched(harness: &Harness, node: &str, unschedulable: bool) -> anyhow::Result<()> {
    let found = cordon(harness, node).await?;
    ensure!(found == (unschedulable, None, None), "{node}: {found:?}");
    Ok(())
}

/// Waits until the operator has cordoned the node, with the reason and the requested repair.
async fn cordoned(harness: &Harness, node: &str) -> anyhow::Result<()> {
    eventually(&format!("{node} to be cordoned"), || async {
        let (unschedulable, why, repair) = cordon(harness, node).await?;
        let why = why.unwrap_or_default();
        ensure!(unschedulable, "{why}");
        ensure!(why.starts_with("MkeyExhausted since 20"), "{why}");
        ensure!(why.ends_with("Z: mlx5_0, mlx5_1"), "{why}");
        let wanted = "Reboot: mlx5_0 MkeyExhausted, mlx5_1 MkeyExhausted";
        ensure!(repair.as_deref() == Some(wanted), "{repair:?}");
        Ok(true)
    })
    .await
}

async fn uncordoned(harness: &Harness, node: &str) -> anyhow::Result<()> {
    eventually(&format!("{node} to be uncordoned"), || async {
        untouched(harness, node, false).await?;
        Ok(true)
    })
    .await
}

/// Waits until the policy's condition UnhealthyNodesCordoned is `Status Reason: message`.
async fn reports(harness: &Harness, wanted: &str) -> anyhow::Result<()> {
    eventually(wanted, || async {
        let policies = harness.cluster_wide::<MooncakeNodePolicy>();
        let status = policies.get("unhealthy").await?.status.unwrap_or_default();
        let mut conditions = status.conditions.iter();
        let found = conditions.find(|c| c.type_ == "UnhealthyNodesCordoned");
        let found = found.map(|c| format!("{} {}: {}", c.status, c.reason, c.message));
        ensure!(found.as_deref() == Some(wanted), "{found:?}");
        Ok(true)
    })
    .await
}

pub(crate) async fn cordon_and_uncordon(harness: &Harness) -> anyhow::Result<()> {
    for node in &NODES[2..] {
        harness.make_node(node).await?;
        harness.make_agent(node).await?;
    }
    let nodes = harness.cluster_wide::<Node>();
    let mooncake_nodes = harness.cluster_wide::<MooncakeNode>();
    for node in NODES {
        eventually(&format!("the report of {node}"), || async {
            Ok(mooncake_nodes.get_opt(node).await?.is_some())
        })
        .await?;
        harness.report_devices(node, 0).await?;
    }
    let manual_cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let merge = PatchParams::default();
    nodes.patch("n4", &merge, &manual_cordon).await?;
    let client = nodes.clone().into_client();
    let spec = "{unhealthyDevices: {cordonWhen: AllUnhealthy, afterSeconds: 0, maxNodes: 1, repair: Reboot}}";
    apply(client, "unhealthy", spec).await?;
    reports(
        harness,
        "True AsExpected: 0 of at most 1 nodes are cordoned",
    )
    .await?;

    harness.report_devices("n1", 1).await?;
    tokio::time::sleep(SETTLED).await;
    untouched(harness, "n1", false).await?;
    harness.report_devices("n1", 2).await?;
    cordoned(harness, "n1").await?;
    reports(
        harness,
        "True AsExpected: 1 of at most 1 nodes are cordoned",
    )
    .await?;

    harness.report_devices("n2", 2).await?;
    let full = "False CordonLimitReached: not cordoned: n2; 1 of at most 1 nodes are cordoned";
    reports(harness, full).await?;
    untouched(harness, "n2", false).await?;

    // The third unhealthy node is manually cordoned.
    harness.report_devices("n4", 2).await?;
    let most = "False MostNodesUnhealthy: not cordoned: n2; 3 of 4 nodes have unhealthy RDMA devices, and 1 of at \
                most 1 nodes are cordoned";
    reports(harness, most).await?;
    untouched(harness, "n4", true).await?;
    harness.report_devices("n4", 0).await?;
    reports(harness, full).await?;
    untouched(harness, "n4", true).await?;

    harness.report_devices("n1", 0).await?;
    uncordoned(harness, "n1").await?;
    cordoned(harness, "n2").await?;
    for (node, reason) in [
        ("n1", Reason::NodeCordoned),
        ("n1", Reason::RepairRequested),
        ("n1", Reason::NodeUncordoned),
        ("n2", Reason::NodeCordoned),
    ] {
        eventually(&format!("the event {reason} of {node}"), || async {
            Ok(harness.events(node, reason, "").await?.len() == 1)
        })
        .await?;
    }

    // No more writes, also by a restarted operator.
    reports(
        harness,
        "True AsExpected: 1 of at most 1 nodes are cordoned",
    )
    .await?;
    let before = harness.quiet().await?;
    harness.touch_everything(0).await?;
    harness.reconciled_twice().await?;
    harness.restart_operator().await?;
    tokio::time::sleep(SETTLED).await;
    let after = harness.quiet().await?;
    ensure!(
        after == before,
        "{} writes without a change",
        after - before
    );
    cordoned(harness, "n2").await?;

    let policies = harness.cluster_wide::<MooncakeNodePolicy>();
    policies
        .delete("unhealthy", &DeleteParams::default())
        .await?;
    uncordoned(harness, "n2").await?;
    untouched(harness, "n4", true).await
}

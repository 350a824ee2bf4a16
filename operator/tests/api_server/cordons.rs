//! Nodes with sick RDMA devices on a real API server: who is cordoned, who waits, who is given back, and
//! who is left alone.

use std::time::Duration;

use anyhow::ensure;
use crds::{MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::policies::apply;
use crate::world::{World, eventually};

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const CORDONED: &str = "mooncake.io/cordoned";
const REPAIR: &str = "mooncake.io/repair-requested";

/// A policy's pace is a second; after three of them it has looked.
const LOOKED: Duration = Duration::from_secs(3);

/// Whether it takes no pods, and our two marks.
type Marks = (bool, Option<String>, Option<String>);

async fn marks(world: &World, node: &str) -> anyhow::Result<Marks> {
    let node = world.cluster_wide::<Node>().get(node).await?;
    let mark = |name: &str| node.annotations().get(name).cloned();
    let spec = node.spec.clone().unwrap_or_default();
    let unschedulable = spec.unschedulable == Some(true);
    Ok((unschedulable, mark(CORDONED), mark(REPAIR)))
}

/// As no hand of ours has touched it.
async fn untouched(world: &World, node: &str, unschedulable: bool) -> anyhow::Result<()> {
    let found = marks(world, node).await?;
    ensure!(found == (unschedulable, None, None), "{node}: {found:?}");
    Ok(())
}

/// Waits until the node is cordoned by us, with why and what is to be done.
async fn cordoned(world: &World, node: &str) -> anyhow::Result<()> {
    eventually(&format!("{node} to be cordoned"), || async {
        let (unschedulable, why, repair) = marks(world, node).await?;
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

async fn given_back(world: &World, node: &str) -> anyhow::Result<()> {
    eventually(&format!("{node} to be given back"), || async {
        untouched(world, node, false).await?;
        Ok(true)
    })
    .await
}

/// Waits until the policy says so of the nodes that it wants cordoned.
async fn says(world: &World, words: &str) -> anyhow::Result<()> {
    eventually(words, || async {
        let policies = world.cluster_wide::<MooncakeNodePolicy>();
        let status = policies.get("sick").await?.status.unwrap_or_default();
        let mut said = status.conditions.iter();
        let said = said.find(|said| said.type_ == "SickNodesCordoned");
        let said = said.map(|said| format!("{} {}: {}", said.status, said.reason, said.message));
        ensure!(said.as_deref() == Some(words), "{said:?}");
        Ok(true)
    })
    .await
}

pub(crate) async fn come_and_go(world: &World) -> anyhow::Result<()> {
    for node in &NODES[2..] {
        world.make_node(node).await?;
        world.make_agent(node).await?;
    }
    let nodes = world.cluster_wide::<Node>();
    let reports = world.cluster_wide::<MooncakeNode>();
    for node in NODES {
        eventually(&format!("the report of {node}"), || async {
            Ok(reports.get_opt(node).await?.is_some())
        })
        .await?;
        world.try_devices(node, 0).await?;
    }
    let by_hand = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    let merge = PatchParams::default();
    nodes.patch("n4", &merge, &by_hand).await?;
    let client = nodes.clone().into_client();
    let spec =
        "{sickDevices: {cordonWhen: AllAreSick, afterSeconds: 0, maxNodes: 1, repair: Reboot}}";
    apply(client, "sick", spec).await?;
    says(world, "True AsExpected: 0 of at most 1 nodes are cordoned").await?;

    world.try_devices("n1", 1).await?;
    tokio::time::sleep(LOOKED).await;
    untouched(world, "n1", false).await?;
    world.try_devices("n1", 2).await?;
    cordoned(world, "n1").await?;
    says(world, "True AsExpected: 1 of at most 1 nodes are cordoned").await?;

    world.try_devices("n2", 2).await?;
    let full = "False CordonBudgetSpent: not cordoned: n2; 1 of at most 1 nodes are cordoned";
    says(world, full).await?;
    untouched(world, "n2", false).await?;

    // The third that is sick is one that a person has cordoned.
    world.try_devices("n4", 2).await?;
    let most = "False MostNodesSick: not cordoned: n2; 3 of 4 nodes have sick RDMA devices, and 1 of at \
                most 1 nodes are cordoned";
    says(world, most).await?;
    untouched(world, "n4", true).await?;
    world.try_devices("n4", 0).await?;
    says(world, full).await?;
    untouched(world, "n4", true).await?;

    world.try_devices("n1", 0).await?;
    given_back(world, "n1").await?;
    cordoned(world, "n2").await?;
    for (node, reason) in [
        ("n1", Reason::NodeCordoned),
        ("n1", Reason::RepairRequested),
        ("n1", Reason::NodeUncordoned),
        ("n2", Reason::NodeCordoned),
    ] {
        eventually(&format!("the event {reason} of {node}"), || async {
            Ok(world.told(node, reason, "").await?.len() == 1)
        })
        .await?;
    }

    // Nothing more is written, also by an operator that begins anew.
    says(world, "True AsExpected: 1 of at most 1 nodes are cordoned").await?;
    let before = world.quiet().await?;
    world.touch_everything(0).await?;
    world.looked_again().await?;
    world.restart_operator().await?;
    tokio::time::sleep(LOOKED).await;
    let after = world.quiet().await?;
    ensure!(after == before, "{} writes at rest", after - before);
    cordoned(world, "n2").await?;

    let policies = world.cluster_wide::<MooncakeNodePolicy>();
    policies.delete("sick", &DeleteParams::default()).await?;
    given_back(world, "n2").await?;
    untouched(world, "n4", true).await
}

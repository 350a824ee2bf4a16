//! What the operator counts of a node's pods while its agent has hugepages to decide on, and that it is
//! calm about it.

use anyhow::ensure;
use crds::{FixId, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{World, eventually};

/// The agent on n1 says what became of the fix.
async fn agent_says(world: &World, reason: Reason) -> anyhow::Result<()> {
    let fix = json!({
        "id": FixId::Hugepages, "reason": reason, "message": "hugepages: words",
        "before": "2Mi: node0 0", "after": "2Mi: node0 2048",
    });
    let status = Patch::Merge(json!({"status": {"fixes": [fix]}}));
    world
        .cluster_wide::<MooncakeNode>()
        .patch_status("n1", &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// The kubelet of n1 says how many bytes of hugepages it gives to pods.
async fn kubelet_says(world: &World, small: &str) -> anyhow::Result<()> {
    let amounts = json!({"memory": "8Gi", "hugepages-2Mi": small, "hugepages-1Gi": "0"});
    let status = Patch::Merge(json!({"status": {"allocatable": amounts, "capacity": amounts}}));
    world
        .cluster_wide::<Node>()
        .patch_status("n1", &PatchParams::default(), &status)
        .await?;
    Ok(())
}

async fn room(world: &World, wanted: Value) -> anyhow::Result<()> {
    eventually(&format!("room {wanted}"), || async {
        let told = serde_json::to_value(world.report("n1").await?.spec.room)?;
        ensure!(told == wanted, "{told}");
        ensure!(world.report("n2").await?.spec.room.is_none());
        Ok(true)
    })
    .await
}

pub(crate) async fn is_counted_while_it_decides(world: &World) -> anyhow::Result<()> {
    let pages =
        |small: u64| json!([{"pageSize": "2Mi", "pages": small}, {"pageSize": "1Gi", "pages": 0}]);
    let merge = PatchParams::default();
    let label = Patch::Merge(json!({"metadata": {"labels": {"huge": "yes"}}}));
    let nodes = world.cluster_wide::<Node>();
    nodes.patch("n1", &merge, &label).await?;
    kubelet_says(world, "0").await?;
    let work = json!({
        "metadata": {"name": "work"},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "work", "image": "w", "resources": {"requests": {"memory": "5Gi"}}},
        ]},
    });
    let pods = world.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(work)?)
        .await?;
    let policy = json!({
        "apiVersion": MooncakeNodePolicy::api_version(&()),
        "kind": MooncakeNodePolicy::kind(&()),
        "metadata": {"name": "huge"},
        "spec": {
            "nodeSelector": {"huge": "yes"},
            "fixes": [{"id": "Hugepages", "mode": "Apply"}],
            "hugepages": [{"pageSize": "2Mi", "perNumaNode": "4Gi"}],
        },
    });
    let policies = world.cluster_wide::<MooncakeNodePolicy>();
    policies
        .create(&PostParams::default(), &serde_json::from_value(policy)?)
        .await?;
    room(world, json!({"hugepages": pages(0)})).await?;

    agent_says(world, Reason::PodRequestsUnknown).await?;
    // 8 GiB without the 5 of that pod and the little of the pool's.
    room(world, json!({"memory": "2816Mi", "hugepages": pages(0)})).await?;
    agent_says(world, Reason::FixRefused).await?;
    let before = world.quiet().await?;
    world.touch_everything(0).await?;
    world.looked_again().await?;
    world.restart_operator().await?;
    let after = world.quiet().await?;
    ensure!(after == before, "{} writes at rest", after - before);

    let now = DeleteParams::default().grace_period(0);
    pods.delete("work", &now).await?;
    // Who begins anew counts at once, others a little later.
    world.restart_operator().await?;
    room(world, json!({"memory": "7936Mi", "hugepages": pages(0)})).await?;

    agent_says(world, Reason::KubeletRestartRequired).await?;
    room(world, json!({"hugepages": pages(0)})).await?;
    kubelet_says(world, "4Gi").await?;
    room(world, json!({"hugepages": pages(2048)})).await?;
    policies.delete("huge", &DeleteParams::default()).await?;
    room(world, Value::Null).await
}

//! The memory that a node's pods leave for hugepages: reported while the agent's fix is undecided, and
//! without writes when nothing changes.

use anyhow::ensure;
use crds::{FixId, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Harness, eventually};

/// Reports the outcome of the fix from the agent of n1.
async fn report_fix(harness: &Harness, reason: Reason) -> anyhow::Result<()> {
    let fix = json!({
        "id": FixId::Hugepages, "reason": reason, "message": "hugepages: message",
        "before": "2Mi: node0 0", "after": "2Mi: node0 2048",
    });
    let status = Patch::Merge(json!({"status": {"fixes": [fix]}}));
    harness
        .cluster_wide::<MooncakeNode>()
        .patch_status("n1", &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// Sets the allocatable bytes of 2Mi hugepages of n1.
async fn set_allocatable(harness: &Harness, small: &str) -> anyhow::Result<()> {
    let amounts = json!({"memory": "8Gi", "hugepages-2Mi": small, "hugepages-1Gi": "0"});
    let status = Patch::Merge(json!({"status": {"allocatable": amounts, "capacity": amounts}}));
    harness
        .cluster_wide::<Node>()
        .patch_status("n1", &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// Waits until the MooncakeNode of n1 has this headroom.
async fn headroom(harness: &Harness, wanted: Value) -> anyhow::Result<()> {
    eventually(&format!("headroom {wanted}"), || async {
        let found = serde_json::to_value(harness.report("n1").await?.spec.headroom)?;
        ensure!(found == wanted, "{found}");
        ensure!(harness.report("n2").await?.spec.headroom.is_none());
        Ok(true)
    })
    .await
}

pub(crate) async fn is_reported_while_undecided(harness: &Harness) -> anyhow::Result<()> {
    let pages =
        |small: u64| json!([{"pageSize": "2Mi", "pages": small}, {"pageSize": "1Gi", "pages": 0}]);
    let merge = PatchParams::default();
    let label = Patch::Merge(json!({"metadata": {"labels": {"huge": "yes"}}}));
    let nodes = harness.cluster_wide::<Node>();
    nodes.patch("n1", &merge, &label).await?;
    set_allocatable(harness, "0").await?;
    let work = json!({
        "metadata": {"name": "work"},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "work", "image": "w", "resources": {"requests": {"memory": "5Gi"}}},
        ]},
    });
    let pods = harness.api::<Pod>();
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
    let policies = harness.cluster_wide::<MooncakeNodePolicy>();
    policies
        .create(&PostParams::default(), &serde_json::from_value(policy)?)
        .await?;
    headroom(harness, json!({"hugepages": pages(0)})).await?;

    report_fix(harness, Reason::PodRequestsUnknown).await?;
    // 8 GiB, less the requests of that pod (5 GiB) and of the pool pod.
    headroom(harness, json!({"memory": "2816Mi", "hugepages": pages(0)})).await?;
    report_fix(harness, Reason::FixRefused).await?;
    let before = harness.quiet().await?;
    harness.touch_everything(0).await?;
    harness.reconciled_twice().await?;
    harness.restart_operator().await?;
    let after = harness.quiet().await?;
    ensure!(
        after == before,
        "{} writes without a change",
        after - before
    );

    let now = DeleteParams::default().grace_period(0);
    pods.delete("work", &now).await?;
    // A restarted operator counts at once, a running one after its interval.
    harness.restart_operator().await?;
    headroom(harness, json!({"memory": "7936Mi", "hugepages": pages(0)})).await?;

    report_fix(harness, Reason::KubeletRestartRequired).await?;
    headroom(harness, json!({"hugepages": pages(0)})).await?;
    set_allocatable(harness, "4Gi").await?;
    headroom(harness, json!({"hugepages": pages(2048)})).await?;
    policies.delete("huge", &DeleteParams::default()).await?;
    headroom(harness, Value::Null).await
}

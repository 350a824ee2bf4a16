//! Hugepages of a policy on a virtual machine node: proposed, allocated, counted after a kubelet restart, released.
//! Only the soak runs this.

use anyhow::ensure;
use crds::{FixId, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use mooncake_e2e::scenario::Policy;

use super::vm_node::{SLOW, VmNode, with_vm_node};

const PAGES: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
/// Pages in addition to those of the boot command line.
const MORE: u64 = 32;

/// Restarts the kubelet with the command line of the node's init script.
const RESTART: &str = ". /etc/node/node.env; kill $(busybox pidof kubelet); \
    while busybox pidof kubelet; do sleep 1; done; \
    busybox setsid kubelet --config=/etc/node/kubelet.yaml --kubeconfig=/etc/node/kubelet.kubeconfig \
    --hostname-override=$NODE --node-ip=$IP </dev/null >>/var/log/kubelet.log 2>&1 &";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual vm: root and 8 GiB of memory"]
async fn hugepages_of_a_policy_are_allocated_counted_by_the_kubelet_and_released()
-> anyhow::Result<()> {
    with_vm_node("hugepages", async |vm: VmNode| {
        let policy = Policy::of(&vm.node, "hugepages");
        policy.delete_after(run(&vm, &policy).await).await
    })
    .await
}

async fn run(vm: &VmNode, policy: &Policy) -> anyhow::Result<()> {
    let (node, fix) = (&vm.node, FixId::Hugepages);
    let before = pages(vm).await?;
    let after = before + MORE;
    policy.apply(&fields("DryRun", after)).await?;
    let shown = node.fix(fix, Reason::FixProposed, SLOW).await?;
    let proposal = (shown.before, shown.after);
    let wanted = (
        format!("2Mi: node0 {before}"),
        format!("2Mi: node0 {after}"),
    );
    ensure!(proposal == wanted, "{proposal:?}");
    ensure!(pages(vm).await? == before, "a dry run changed the pages");

    policy.apply(&fields("Apply", after)).await?;
    node.fix(fix, Reason::KubeletRestartRequired, SLOW).await?;
    ensure!(pages(vm).await? == after, "the pages are not as proposed");
    ensure!(
        allocatable(vm).await? == before,
        "the kubelet counts the pages before its restart"
    );
    vm.run(RESTART).await?;
    node.fix(fix, Reason::FixApplied, SLOW).await?;
    ensure!(
        allocatable(vm).await? == after,
        "the kubelet does not count the pages"
    );

    policy.delete().await?;
    node.no_fix(fix, SLOW).await?;
    ensure!(pages(vm).await? == before, "the fix was not reverted");
    Ok(())
}

async fn pages(vm: &VmNode) -> anyhow::Result<u64> {
    Ok(vm.run(&format!("cat {PAGES}")).await?.trim().parse()?)
}

/// Pages that the kubelet reports as allocatable.
async fn allocatable(vm: &VmNode) -> anyhow::Result<u64> {
    let nodes = Api::<Node>::all(vm.product.cluster.client.clone());
    let status = nodes.get(&vm.node.name).await?.status.unwrap_or_default();
    let amount = status.allocatable.unwrap_or_default();
    let amount = amount.get("hugepages-2Mi").map_or("0", |amount| &amount.0);
    let crds::ByteSize(bytes) = amount.parse()?;
    Ok(bytes >> 21)
}

fn fields(mode: &str, pages: u64) -> String {
    format!(
        "fixes: [{{id: Hugepages, mode: {mode}}}], hugepages: [{{pageSize: 2Mi, perNumaNode: {}Mi}}]",
        pages * 2
    )
}

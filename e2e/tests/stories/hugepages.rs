//! Hugepages that a policy has set aside on a machine with memory of its own: shown, done, of use when the
//! kubelet has started anew, and undone. Told in the soak alone, as the machine is emulated.

use anyhow::ensure;
use crds::{FixId, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use mooncake_e2e::story::Policy;

use super::machine::{Machine, SLOW, with_a_machine};

const PAGES: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
/// So many more than the machine boots with.
const MORE: u64 = 32;

/// As the machine's first process starts it.
const RESTART: &str = ". /etc/node/node.env; kill $(busybox pidof kubelet); \
    while busybox pidof kubelet; do sleep 1; done; \
    busybox setsid kubelet --config=/etc/node/kubelet.yaml --kubeconfig=/etc/node/kubelet.kubeconfig \
    --hostname-override=$NODE --node-ip=$IP </dev/null >>/var/log/kubelet.log 2>&1 &";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn s26_hugepages_of_a_policy_are_set_aside_counted_by_a_new_kubelet_and_given_back()
-> anyhow::Result<()> {
    with_a_machine("hugepages", async |machine: Machine| {
        let policy = Policy::of(&machine.node, "hugepages");
        policy.after(tell(&machine, &policy).await).await
    })
    .await
}

async fn tell(machine: &Machine, policy: &Policy) -> anyhow::Result<()> {
    let (node, fix) = (&machine.node, FixId::Hugepages);
    let before = pages(machine).await?;
    let after = before + MORE;
    policy.apply(&asks("DryRun", after)).await?;
    let shown = node.fix(fix, Reason::FixProposed, SLOW).await?;
    let words = (shown.before, shown.after);
    let wanted = (
        format!("2Mi: node0 {before}"),
        format!("2Mi: node0 {after}"),
    );
    ensure!(words == wanted, "{words:?}");
    ensure!(pages(machine).await? == before, "shown only");

    policy.apply(&asks("Apply", after)).await?;
    node.fix(fix, Reason::KubeletRestartRequired, SLOW).await?;
    ensure!(pages(machine).await? == after, "done as shown");
    ensure!(allocatable(machine).await? == before, "nobody was told");
    machine.run(RESTART).await?;
    node.fix(fix, Reason::FixApplied, SLOW).await?;
    ensure!(allocatable(machine).await? == after, "the kubelet counts");

    policy.delete().await?;
    node.no_fix(fix, SLOW).await?;
    ensure!(pages(machine).await? == before, "undone");
    Ok(())
}

async fn pages(machine: &Machine) -> anyhow::Result<u64> {
    Ok(machine.run(&format!("cat {PAGES}")).await?.trim().parse()?)
}

/// What the kubelet gives to pods, in pages.
async fn allocatable(machine: &Machine) -> anyhow::Result<u64> {
    let nodes = Api::<Node>::all(machine.product.stage.client.clone());
    let status = nodes
        .get(&machine.node.name)
        .await?
        .status
        .unwrap_or_default();
    let amount = status.allocatable.unwrap_or_default();
    let amount = amount.get("hugepages-2Mi").map_or("0", |amount| &amount.0);
    let crds::ByteSize(bytes) = amount.parse()?;
    Ok(bytes >> 21)
}

fn asks(mode: &str, pages: u64) -> String {
    format!(
        "fixes: [{{id: Hugepages, mode: {mode}}}], hugepages: [{{pageSize: 2Mi, perNumaNode: {}Mi}}]",
        pages * 2
    )
}

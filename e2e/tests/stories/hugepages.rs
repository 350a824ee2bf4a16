//! Hugepages that a policy has set aside on a machine with memory of its own: shown, done, of use when the
//! kubelet has started anew, and undone. Told in the soak alone, as the machine is emulated.

use anyhow::ensure;
use crds::{FixId, FixReport, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use mooncake_e2e::story::{Seen, eventually};
use serde_json::json;

use super::machine::{Machine, SLOW, with_a_machine};

const NAME: &str = "hugepages";
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
        let told = tell(&machine).await;
        let client = machine.product.stage.client.clone();
        let policies = Api::<MooncakeNodePolicy>::all(client);
        // Also where it has failed: the cluster is that of other stories too.
        policies.delete(NAME, &DeleteParams::default()).await.ok();
        told
    })
    .await
}

async fn tell(machine: &Machine) -> anyhow::Result<()> {
    let before = pages(machine).await?;
    let after = before + MORE;
    policy(machine, "DryRun", after).await?;
    let shown = fixed(machine, Some(Reason::FixProposed)).await?;
    let words = shown.map(|fix| (fix.before, fix.after));
    let wanted = (
        format!("2Mi: node0 {before}"),
        format!("2Mi: node0 {after}"),
    );
    ensure!(words == Some(wanted), "{words:?}");
    ensure!(pages(machine).await? == before, "shown only");

    policy(machine, "Apply", after).await?;
    fixed(machine, Some(Reason::KubeletRestartRequired)).await?;
    ensure!(pages(machine).await? == after, "done as shown");
    ensure!(allocatable(machine).await? == before, "nobody was told");
    machine.run(RESTART).await?;
    fixed(machine, Some(Reason::FixApplied)).await?;
    ensure!(allocatable(machine).await? == after, "the kubelet counts");

    let policies = Api::<MooncakeNodePolicy>::all(machine.product.stage.client.clone());
    policies.delete(NAME, &DeleteParams::default()).await?;
    fixed(machine, None).await?;
    ensure!(pages(machine).await? == before, "undone");
    Ok(())
}

async fn pages(machine: &Machine) -> anyhow::Result<u64> {
    Ok(machine.run(&format!("cat {PAGES}")).await?.trim().parse()?)
}

/// What the kubelet gives to pods, in pages.
async fn allocatable(machine: &Machine) -> anyhow::Result<u64> {
    let nodes = Api::<Node>::all(machine.product.stage.client.clone());
    let status = nodes.get(&machine.node).await?.status.unwrap_or_default();
    let amount = status.allocatable.unwrap_or_default();
    let amount = amount.get("hugepages-2Mi").map_or("0", |amount| &amount.0);
    let crds::ByteSize(bytes) = amount.parse()?;
    Ok(bytes >> 21)
}

async fn policy(machine: &Machine, mode: &str, pages: u64) -> anyhow::Result<()> {
    let policies = Api::<MooncakeNodePolicy>::all(machine.product.stage.client.clone());
    let body = json!({
        "apiVersion": MooncakeNodePolicy::api_version(&()),
        "kind": MooncakeNodePolicy::kind(&()),
        "metadata": {"name": NAME},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": machine.node},
            "fixes": [{"id": "Hugepages", "mode": mode}],
            "hugepages": [{"pageSize": "2Mi", "perNumaNode": format!("{}Mi", pages * 2)}],
        },
    });
    let ours = PatchParams::apply("story").force();
    policies.patch(NAME, &ours, &Patch::Apply(body)).await?;
    Ok(())
}

async fn fixed(machine: &Machine, wanted: Option<Reason>) -> anyhow::Result<Option<FixReport>> {
    let nodes = Api::<MooncakeNode>::all(machine.product.stage.client.clone());
    eventually(&format!("the fix to be {wanted:?}"), SLOW, || async {
        let status = nodes.get(&machine.node).await?.status.unwrap_or_default();
        let mut fixes = status.fixes.iter();
        let found = fixes.find(|fix| fix.id == FixId::Hugepages).cloned();
        let is_so = found.as_ref().map(|fix| fix.reason) == wanted;
        let said = format!("{:?}", status.fixes);
        Ok(Seen::when(is_so.then_some(found), said))
    })
    .await
}

//! An RDMA port whose interface has neither IPv4 nor IPv6, on a machine of its own: named, and set right by a policy as far as that
//! goes, which is IPv6 switched on; an address comes from elsewhere. Undone when the policy goes.

use anyhow::{Context, ensure};
use crds::{CheckId, FixId, MooncakeNode, MooncakeNodePolicy, Reason};
use kube::api::{Api, DeleteParams};
use mooncake_e2e::story::{Seen, eventually};

use super::machine::{Machine, SLOW};

const NAME: &str = "ipv6";
const SWITCH: &str = "/proc/sys/net/ipv6/conf/rail0/disable_ipv6";
const CAUSE: &str = "ip addr flush dev rail0 scope global && echo 1 > ";
/// What a router would have told the node.
const ADDRESS: &str = "ip addr add 2001:db8::1/64 dev rail0 nodad";
const CURE: &str =
    "ip addr flush dev rail0 scope global; ip addr add 198.19.254.1/24 dev rail0; echo 0 > ";

/// The second device of the machine is there and well; so it is again at the end.
pub(super) async fn set_right(machine: &Machine) -> anyhow::Result<()> {
    let policies: Api<MooncakeNodePolicy> = Api::all(machine.product.stage.client.clone());
    machine.run(&format!("{CAUSE}{SWITCH}")).await?;
    let told = tell(machine, &policies).await;
    if told.is_err() {
        policies.delete(NAME, &DeleteParams::default()).await.ok();
    }
    machine.run(&format!("{CURE}{SWITCH}")).await?;
    told?;
    without_a_gid(machine, |words| words.is_none()).await?;
    Ok(())
}

async fn tell(machine: &Machine, policies: &Api<MooncakeNodePolicy>) -> anyhow::Result<()> {
    let words = without_a_gid(machine, |words| words.is_some()).await?;
    let words = words.context("no finding")?;
    println!("{words}");
    ensure!(words.contains("IPv6 is off on rail0"), "{words}");
    machine
        .namespace
        .apply(&format!(
            "apiVersion: mooncake.io/v1alpha1\nkind: MooncakeNodePolicy\nmetadata: {{name: {NAME}}}\nspec:\n  \
             nodeSelector: {{kubernetes.io/hostname: {}}}\n  fixes: [{{id: InterfaceIpv6, mode: Apply}}]\n",
            machine.node
        ))
        .await?;
    let said = fixed(machine, Some(Reason::FixApplied)).await?;
    ensure!(said.as_deref() == Some("rail0 1 to rail0 0"), "{said:?}");
    ensure!(switch(machine).await? == "0", "done as told");
    machine.run(ADDRESS).await?;
    without_a_gid(machine, |words| words.is_none()).await?;
    println!("IPv6 was switched on for rail0, and its port has a GID that peers can reach");
    policies.delete(NAME, &DeleteParams::default()).await?;
    fixed(machine, None).await?;
    ensure!(switch(machine).await? == "1", "undone");
    Ok(())
}

async fn switch(machine: &Machine) -> anyhow::Result<String> {
    let text = machine.run(&format!("cat {SWITCH}")).await?;
    Ok(text.trim().to_owned())
}

/// What is said of the second device's GIDs, once it is as wanted.
async fn without_a_gid(
    machine: &Machine,
    wanted: impl Fn(Option<&String>) -> bool,
) -> anyhow::Result<Option<String>> {
    let nodes: Api<MooncakeNode> = Api::all(machine.product.stage.client.clone());
    eventually("a word on rxe1's GIDs", SLOW, || async {
        let status = nodes.get(&machine.node).await?.status.unwrap_or_default();
        let told = status
            .findings
            .iter()
            .find(|finding| finding.check == CheckId::PortGid && finding.subject == "rxe1 port 1");
        let words = told.map(|finding| finding.message.clone());
        let seen = format!("{:?}", status.findings);
        Ok(Seen::when(wanted(words.as_ref()).then_some(words), seen))
    })
    .await
}

/// From what to what, once the fix is so.
async fn fixed(machine: &Machine, wanted: Option<Reason>) -> anyhow::Result<Option<String>> {
    let nodes: Api<MooncakeNode> = Api::all(machine.product.stage.client.clone());
    eventually(format!("the fix to be {wanted:?}"), SLOW, || async {
        let status = nodes.get(&machine.node).await?.status.unwrap_or_default();
        let mut fixes = status.fixes.iter();
        let found = fixes.find(|fix| fix.id == FixId::InterfaceIpv6);
        let words = found.map(|fix| format!("{} to {}", fix.before, fix.after));
        let is_so = found.map(|fix| fix.reason) == wanted;
        Ok(Seen::when(
            is_so.then_some(words),
            format!("{:?}", status.fixes),
        ))
    })
    .await
}

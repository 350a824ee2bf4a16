//! An RDMA port whose interface has neither IPv4 nor IPv6, on a virtual machine node: it is reported, a policy enables IPv6
//! on the interface, and deleting the policy disables it again.

use anyhow::ensure;
use crds::{CheckId, FixId, Reason};
use mooncake_e2e::scenario::Policy;

use super::vm_node::{SLOW, VmNode};

/// Check and subject of the second device's GIDs.
const PORT: (CheckId, &str) = (CheckId::PortGid, "rxe1 port 1");
const SWITCH: &str = "/proc/sys/net/ipv6/conf/rail0/disable_ipv6";
const CAUSE: &str = "ip addr flush dev rail0 scope global && echo 1 > ";
/// An address as a router would advertise.
const ADDRESS: &str = "ip addr add 2001:db8::1/64 dev rail0 nodad";
const REPAIR: &str =
    "ip addr flush dev rail0 scope global; ip addr add 198.19.254.1/24 dev rail0; echo 0 > ";

/// The second device is healthy before and afterwards.
pub(super) async fn is_enabled_by_a_policy(vm: &VmNode) -> anyhow::Result<()> {
    let policy = Policy::of(&vm.node, "ipv6");
    vm.run(&format!("{CAUSE}{SWITCH}")).await?;
    let outcome = policy.delete_after(run(vm, &policy).await).await;
    vm.run(&format!("{REPAIR}{SWITCH}")).await?;
    outcome?;
    vm.node.no_finding(PORT, SLOW, |_| true).await
}

async fn run(vm: &VmNode, policy: &Policy) -> anyhow::Result<()> {
    let node = &vm.node;
    let message = node.finding(PORT, SLOW, |_| true).await?.message;
    println!("{message}");
    ensure!(
        message.contains("IPv6") && message.contains("rail0"),
        "{message}"
    );
    policy
        .apply("fixes: [{id: InterfaceIpv6, mode: Apply}]")
        .await?;
    let fix = FixId::InterfaceIpv6;
    let report = node.fix(fix, Reason::FixApplied, SLOW).await?;
    ensure!(
        (report.before.as_str(), report.after.as_str()) == ("rail0 1", "rail0 0"),
        "{report:?}"
    );
    ensure!(switch(vm).await? == "0", "the fix did not enable IPv6");
    vm.run(ADDRESS).await?;
    node.no_finding(PORT, SLOW, |_| true).await?;
    println!("IPv6 is enabled on rail0, and its port has a GID that peers can reach");
    policy.delete().await?;
    node.no_fix(fix, SLOW).await?;
    ensure!(switch(vm).await? == "1", "the fix was not reverted");
    Ok(())
}

async fn switch(vm: &VmNode) -> anyhow::Result<String> {
    let text = vm.run(&format!("cat {SWITCH}")).await?;
    Ok(text.trim().to_owned())
}

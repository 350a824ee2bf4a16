//! An RDMA port whose interface has neither IPv4 nor IPv6, on a machine of its own: named, and set right by a policy as far as that
//! goes, which is IPv6 switched on; an address comes from elsewhere. Undone when the policy goes.

use anyhow::ensure;
use crds::{CheckId, FixId, Reason};
use mooncake_e2e::story::Policy;

use super::machine::{Machine, SLOW};

/// Where the second device's GIDs are judged.
const PORT: (CheckId, &str) = (CheckId::PortGid, "rxe1 port 1");
const SWITCH: &str = "/proc/sys/net/ipv6/conf/rail0/disable_ipv6";
const CAUSE: &str = "ip addr flush dev rail0 scope global && echo 1 > ";
/// What a router would have told the node.
const ADDRESS: &str = "ip addr add 2001:db8::1/64 dev rail0 nodad";
const CURE: &str =
    "ip addr flush dev rail0 scope global; ip addr add 198.19.254.1/24 dev rail0; echo 0 > ";

/// The second device of the machine is there and well; so it is again at the end.
pub(super) async fn set_right(machine: &Machine) -> anyhow::Result<()> {
    let policy = Policy::of(&machine.node, "ipv6");
    machine.run(&format!("{CAUSE}{SWITCH}")).await?;
    let told = policy.after(tell(machine, &policy).await).await;
    machine.run(&format!("{CURE}{SWITCH}")).await?;
    told?;
    machine.node.no_finding(PORT, SLOW, |_| true).await
}

async fn tell(machine: &Machine, policy: &Policy) -> anyhow::Result<()> {
    let node = &machine.node;
    let words = node.finding(PORT, SLOW, |_| true).await?.message;
    println!("{words}");
    ensure!(words.contains("IPv6 is off on rail0"), "{words}");
    policy
        .apply("fixes: [{id: InterfaceIpv6, mode: Apply}]")
        .await?;
    let fix = FixId::InterfaceIpv6;
    let said = node.fix(fix, Reason::FixApplied, SLOW).await?;
    ensure!(
        (said.before.as_str(), said.after.as_str()) == ("rail0 1", "rail0 0"),
        "{said:?}"
    );
    ensure!(switch(machine).await? == "0", "done as told");
    machine.run(ADDRESS).await?;
    node.no_finding(PORT, SLOW, |_| true).await?;
    println!("IPv6 was switched on for rail0, and its port has a GID that peers can reach");
    policy.delete().await?;
    node.no_fix(fix, SLOW).await?;
    ensure!(switch(machine).await? == "1", "undone");
    Ok(())
}

async fn switch(machine: &Machine) -> anyhow::Result<String> {
    let text = machine.run(&format!("cat {SWITCH}")).await?;
    Ok(text.trim().to_owned())
}

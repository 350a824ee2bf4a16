//! An administrator says how nodes are judged and what may be set right on them. The range of ephemeral
//! ports is that of a node's own network namespace: nothing of the machine below is touched.

use std::time::Duration;

use anyhow::ensure;
use crds::{ConditionType, FixId, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mooncake_e2e::story::{Node, Policy, Product};

const SOON: Duration = Duration::from_secs(60);
const COMMAND: Duration = Duration::from_secs(20);
const FIX: FixId = FixId::LocalPortRange;
/// Of the ephemeral ports.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Too few for the check to call it a warning.
pub(super) const NARROW: &str = "60000\t60899";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn s17_a_policy_ignores_warns_and_sets_right_what_a_check_finds_and_leaves_no_trace()
-> anyhow::Result<()> {
    // Ephemeral ports of a node are everybody's who connects from there.
    let product = Product::alone().await?;
    product
        .tell("policy", async |namespace| {
            let node = namespace.stage.node("n2");
            let policy = Policy::of(&node, "story");
            let before = range(&node).await?;
            set_range(&node, NARROW).await?;
            let told = policy.after(tell(&node, &policy).await).await;
            if told.is_err() {
                node.no_fix(FIX, SOON).await.ok();
            }
            set_range(&node, &before).await?;
            told
        })
        .await
}

async fn tell(node: &Node, policy: &Policy) -> anyhow::Result<()> {
    judged(node, "the finding", |said| {
        said.starts_with("False EphemeralPortsLow")
    })
    .await?;

    policy
        .apply("checks: [{id: EphemeralPorts, action: Warn}]")
        .await?;
    judged(node, "it to be a warning", |said| said.starts_with("True ")).await?;

    policy
        .apply("checks: [{id: EphemeralPorts, action: Ignore}]")
        .await?;
    let said = judged(node, "it to be ignored", |said| {
        !said.contains("EphemeralPortsLow") && said.contains("1 ignored by policy")
    })
    .await?;
    println!("ignored: {said}");

    policy
        .apply("fixes: [{id: LocalPortRange, mode: DryRun}]")
        .await?;
    node.fix(FIX, Reason::FixProposed, SOON).await?;
    let stands = range(node).await?;
    ensure!(stands == NARROW, "shown only: {stands}");

    policy
        .apply("fixes: [{id: LocalPortRange, mode: Apply}]")
        .await?;
    node.fix(FIX, Reason::FixApplied, SOON).await?;
    let stands = range(node).await?;
    ensure!(stands == "32768\t60999", "done as shown: {stands}");
    judged(node, "the finding to go", |said| {
        !said.contains("EphemeralPortsLow")
    })
    .await?;

    policy.delete().await?;
    node.no_fix(FIX, SOON).await?;
    let stands = range(node).await?;
    ensure!(stands == NARROW, "undone: {stands}");
    Ok(())
}

/// Of the ephemeral ports, in the node's own network namespace.
pub(super) async fn range(node: &Node) -> anyhow::Result<String> {
    let text = node.shell(&format!("cat {RANGE}"), COMMAND).await?;
    Ok(text.trim().to_owned())
}

pub(super) async fn set_range(node: &Node, range: &str) -> anyhow::Result<()> {
    let write = format!("printf '{range}' > {RANGE}");
    node.shell(&write, COMMAND).await?;
    Ok(())
}

/// `NodeHealthy` once it is so: status, reason and message.
async fn judged(node: &Node, what: &str, is_so: impl Fn(&str) -> bool) -> anyhow::Result<String> {
    let words = |said: &Condition| format!("{} {} {}", said.status, said.reason, said.message);
    let healthy = ConditionType::NodeHealthy;
    let said = node
        .condition(healthy, what, SOON, |said| is_so(&words(said)))
        .await?;
    Ok(words(&said))
}

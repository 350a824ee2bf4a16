//! A MooncakeNodePolicy that ignores, downgrades or fixes a finding. The fix changes the range of ephemeral ports in the
//! node's own network namespace, not on this machine.

use std::time::Duration;

use anyhow::ensure;
use crds::{CheckId, ConditionType, FixId, Reason, Verdict};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mooncake_e2e::scenario::{Metrics, Node, Policy, Product};

const SOON: Duration = Duration::from_secs(60);
const COMMAND: Duration = Duration::from_secs(20);
const FIX: FixId = FixId::LocalPortRange;
/// Range of ephemeral ports.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// A range that the check reports as a failure.
pub(super) const NARROW: &str = "60000\t60899";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_policy_ignores_downgrades_or_fixes_a_finding_and_deleting_it_reverts_the_fix()
-> anyhow::Result<()> {
    // All pods of a node share its ephemeral ports.
    let product = Product::exclusive().await?;
    product
        .run("policy", async move |product, namespace| {
            let metrics = Metrics::reader(&product, &namespace).await?;
            let node = Node::new(&namespace.cluster, "n2");
            let policy = Policy::of(&node, "scenario");
            let before = range(&node).await?;
            set_range(&node, NARROW).await?;
            let outcome = policy
                .delete_after(run(&node, &policy, &metrics).await)
                .await;
            if outcome.is_err() {
                node.no_fix(FIX, SOON).await.ok();
            }
            set_range(&node, &before).await?;
            outcome
        })
        .await
}

async fn run(node: &Node, policy: &Policy, metrics: &Metrics) -> anyhow::Result<()> {
    let counted = async |verdict: Verdict, present: bool| {
        let labels = (CheckId::EphemeralPorts, verdict, Reason::EphemeralPortsLow);
        metrics.findings(&node.name, labels, present, SOON).await
    };
    healthy(node, "the finding", |text| {
        text.starts_with("False EphemeralPortsLow")
    })
    .await?;
    counted(Verdict::Fail, true).await?;

    policy
        .apply("checks: [{id: EphemeralPorts, action: Warn}]")
        .await?;
    healthy(node, "it to be a warning", |text| text.starts_with("True ")).await?;
    counted(Verdict::Warn, true).await?;
    counted(Verdict::Fail, false).await?;

    policy
        .apply("checks: [{id: EphemeralPorts, action: Ignore}]")
        .await?;
    let text = healthy(node, "it to be ignored", |text| {
        !text.contains("EphemeralPortsLow") && text.contains("ignored")
    })
    .await?;
    println!("ignored: {text}");

    policy
        .apply("fixes: [{id: LocalPortRange, mode: DryRun}]")
        .await?;
    node.fix(FIX, Reason::FixProposed, SOON).await?;
    let now = range(node).await?;
    ensure!(now == NARROW, "a dry run changed the range to {now}");

    policy
        .apply("fixes: [{id: LocalPortRange, mode: Apply}]")
        .await?;
    node.fix(FIX, Reason::FixApplied, SOON).await?;
    let now = range(node).await?;
    ensure!(now == "32768\t60999", "the fix set {now}");
    healthy(node, "the finding to be cleared", |text| {
        !text.contains("EphemeralPortsLow")
    })
    .await?;
    counted(Verdict::Warn, false).await?;
    counted(Verdict::Fail, false).await?;

    policy.delete().await?;
    node.no_fix(FIX, SOON).await?;
    let now = range(node).await?;
    ensure!(now == NARROW, "the fix was reverted to {now}");
    Ok(())
}

/// The range of ephemeral ports in the node's own network namespace.
pub(super) async fn range(node: &Node) -> anyhow::Result<String> {
    let text = node.shell(&format!("cat {RANGE}"), COMMAND).await?;
    Ok(text.trim().to_owned())
}

pub(super) async fn set_range(node: &Node, range: &str) -> anyhow::Result<()> {
    let write = format!("printf '{range}' > {RANGE}");
    node.shell(&write, COMMAND).await?;
    Ok(())
}

/// Waits until the condition `NodeHealthy` matches, and returns its status, reason and message.
async fn healthy(
    node: &Node,
    what: &str,
    matches: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    let text = |found: &Condition| format!("{} {} {}", found.status, found.reason, found.message);
    let kind = ConditionType::NodeHealthy;
    let found = node
        .condition(kind, what, SOON, |found| matches(&text(found)))
        .await?;
    Ok(text(&found))
}

//! An administrator says how nodes are judged and what may be set right on them. The range of ephemeral
//! ports is that of a node's own network namespace: nothing of the machine below is touched.

use std::time::Duration;

use anyhow::{Context, ensure};
use crds::{FixId, MooncakeNode, MooncakeNodePolicy, Reason};
use kube::api::{Api, DeleteParams};
use mooncake_e2e::story::{Namespace, Product, Seen, eventually};

const SOON: Duration = Duration::from_secs(60);
const COMMAND: Duration = Duration::from_secs(20);
const NAME: &str = "story";
/// Too few for the check to call it a warning.
const NARROW: &str = "60000\t60899";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn s17_a_policy_ignores_warns_and_sets_right_what_a_check_finds_and_leaves_no_trace()
-> anyhow::Result<()> {
    // Ephemeral ports of a node are everybody's who connects from there.
    let product = Product::alone().await?;
    product
        .tell("policy", async |namespace| {
            let range = "/proc/sys/net/ipv4/ip_local_port_range";
            let before = on_n2(&namespace, &format!("cat {range}")).await?;
            on_n2(&namespace, &format!("printf '{NARROW}' > {range}")).await?;
            let told = tell(&namespace, range).await;
            let policies = Api::<MooncakeNodePolicy>::all(namespace.stage.client.clone());
            // Also where it has failed: the cluster is that of other stories too.
            policies.delete(NAME, &DeleteParams::default()).await.ok();
            if told.is_err() {
                fixed(&namespace, None).await.ok();
            }
            on_n2(&namespace, &format!("printf '{}' > {range}", before.trim())).await?;
            told
        })
        .await
}

async fn tell(namespace: &Namespace, range: &str) -> anyhow::Result<()> {
    judged(namespace, "the finding", |said| {
        said.starts_with("False EphemeralPortsLow")
    })
    .await?;

    policy(namespace, "checks: [{id: EphemeralPorts, action: Warn}]").await?;
    judged(namespace, "it to be a warning", |said| {
        said.starts_with("True ")
    })
    .await?;

    policy(namespace, "checks: [{id: EphemeralPorts, action: Ignore}]").await?;
    let said = judged(namespace, "it to be ignored", |said| {
        !said.contains("EphemeralPortsLow") && said.contains("1 ignored by policy")
    })
    .await?;
    println!("ignored: {said}");

    policy(namespace, "fixes: [{id: LocalPortRange, mode: DryRun}]").await?;
    fixed(namespace, Some(Reason::FixProposed)).await?;
    let stands = on_n2(namespace, &format!("cat {range}")).await?;
    ensure!(stands.trim() == NARROW, "shown only: {stands}");

    policy(namespace, "fixes: [{id: LocalPortRange, mode: Apply}]").await?;
    fixed(namespace, Some(Reason::FixApplied)).await?;
    let stands = on_n2(namespace, &format!("cat {range}")).await?;
    ensure!(stands.trim() == "32768\t60999", "done as shown: {stands}");
    judged(namespace, "the finding to go", |said| {
        !said.contains("EphemeralPortsLow")
    })
    .await?;

    namespace
        .kubectl(&["delete", "mooncakenodepolicy", NAME])
        .await?;
    fixed(namespace, None).await?;
    let stands = on_n2(namespace, &format!("cat {range}")).await?;
    ensure!(stands.trim() == NARROW, "undone: {stands}");
    Ok(())
}

async fn policy(namespace: &Namespace, asks: &str) -> anyhow::Result<()> {
    namespace
        .apply(&format!(
            "apiVersion: mooncake.io/v1alpha1\nkind: MooncakeNodePolicy\nmetadata: {{name: {NAME}}}\n\
             spec:\n  nodeSelector: {{kubernetes.io/hostname: n2}}\n  {asks}\n"
        ))
        .await?;
    Ok(())
}

/// A shell in the node's own network namespace.
async fn on_n2(namespace: &Namespace, command: &str) -> anyhow::Result<String> {
    let words = ["sh", "-c", command].map(ToOwned::to_owned);
    namespace
        .stage
        .with(move |cluster| cluster.run_on("n2", &words, COMMAND))
        .await
}

async fn report(namespace: &Namespace) -> anyhow::Result<MooncakeNode> {
    let nodes = Api::<MooncakeNode>::all(namespace.stage.client.clone());
    nodes.get("n2").await.context("MooncakeNode n2")
}

/// `NodeHealthy` once it is so: status, reason and message.
async fn judged(
    namespace: &Namespace,
    what: &str,
    is_so: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    eventually(what, SOON, || async {
        let status = report(namespace).await?.status.unwrap_or_default();
        let said = status
            .conditions
            .iter()
            .find(|said| said.type_ == "NodeHealthy")
            .map(|said| format!("{} {} {}", said.status, said.reason, said.message))
            .unwrap_or_default();
        Ok(Seen::when(is_so(&said).then(|| said.clone()), said))
    })
    .await
}

async fn fixed(namespace: &Namespace, wanted: Option<Reason>) -> anyhow::Result<()> {
    eventually(&format!("the fix to be {wanted:?}"), SOON, || async {
        let status = report(namespace).await?.status.unwrap_or_default();
        let fixes = status.fixes.iter();
        let found = fixes.clone().find(|fix| fix.id == FixId::LocalPortRange);
        let is_so = found.map(|fix| fix.reason) == wanted;
        Ok(Seen::when(
            is_so.then_some(()),
            format!("{:?}", status.fixes),
        ))
    })
    .await
}

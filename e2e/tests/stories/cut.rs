//! A node is cut off from everyone, or what it sends crawls, and it comes back.

use super::agent::same_lives;
use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason};
use mooncake_e2e::story::master::Segment;
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::{Effort, Load, Namespace, Pool, Product, Seen, Stage, eventually};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [&str; 2] = ["n1", "n2"];
/// From the cut to the end of the node's segments.
const OUT: Duration = Duration::from_secs(70);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_node_that_is_cut_off_is_named_leaves_the_pool_and_comes_back_clean() -> anyhow::Result<()>
{
    let product = Arc::new(Product::alone().await?);
    let stage = product.stage.clone();
    let outcome = product
        .tell("cutoff", async move |namespace| {
            cut_off(&stage, namespace).await
        })
        .await;
    for node in NODES {
        product
            .stage
            .with(move |cluster| cluster.heal(node))
            .await?;
    }
    outcome
}

async fn cut_off(stage: &Stage, namespace: Namespace) -> anyhow::Result<()> {
    let pool = Pool::small(&namespace).await?;
    let before = pool.mounted(2, READY).await?;
    let lives = pool.pods().await?;
    let master = pool.master().await?;
    let home = master
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .context("the master is on no node")?;
    let node = NODES
        .into_iter()
        .find(|node| *node != home)
        .context("there is no other node")?;
    let load = Load::start(&namespace, home, "kv", Effort::default()).await?;
    let cut = Instant::now();
    stage.with(move |cluster| cluster.cut(node)).await?;
    eventually(
        format!("the segments of {node} to leave the pool"),
        OUT,
        || async {
            let now = pool.segments().await?;
            let gone = now.iter().all(|segment| !is_on(node, segment));
            Ok(Seen::when(gone.then_some(()), format!("{now:?}")))
        },
    )
    .await?;
    println!(
        "{node}: out of the pool {:.1} s after it was cut off",
        cut.elapsed().as_secs_f64()
    );
    let named = pool
        .condition(ConditionType::Ready, &format!("names {node}"), READY, |c| {
            c.status != "True" && c.message.contains(node)
        })
        .await?;
    println!("{}: {}", named.reason, named.message);
    let told = way(stage, home, node, READY, |told| told.is_some()).await?;
    println!("{home}: {told:?}");
    stage.with(move |cluster| cluster.heal(node)).await?;
    let healed = Instant::now();
    let after = pool.mounted(2, READY).await?;
    pool.ready(READY).await?;
    println!(
        "whole again {:.1} s after it was connected",
        healed.elapsed().as_secs_f64()
    );
    for (from, to) in [(home, node), (node, home)] {
        way(stage, from, to, READY, |told| told.is_none()).await?;
    }
    let place = |segments: &[Segment]| {
        let found = segments.iter().find(|segment| is_on(node, segment));
        found.map(|segment| (segment.segment_id.clone(), segment.base_address.clone()))
    };
    let (old, new) = (
        place(&before).context("no segment before")?,
        place(&after).context("no segment after")?,
    );
    ensure!(
        old.0 != new.0 && old.1 != new.1,
        "addresses that the master had given up are answered again: {old:?}, {new:?}"
    );
    // What lay there alone is lost with it; wrong bytes are refused inside.
    load.finish(&namespace).await?;
    let load = Load::start(&namespace, node, "kv", Effort::default()).await?;
    load.finish(&namespace).await?.undisturbed()?;
    same_lives(&lives, &pool.pods().await?)?;
    same_lives(&[master], &[pool.master().await?])
}

/// What leaves a node: enough for its kubelet, and a fifth of a second for one proof.
const CRAWL: &str = "tc qdisc add dev eth0 root tbf rate 512kbit burst 4kb latency 3s";
const RUN: &str = "tc qdisc del dev eth0 root";
const COMMAND: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_way_between_nodes_that_is_slow_is_named_until_it_is_fast() -> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let stage = product.stage.clone();
    let outcome = product
        .tell("crawls", async move |_| {
            way(&stage, "n1", "n2", READY, |told| told.is_none()).await?;
            let node = stage.node("n2");
            node.shell(CRAWL, COMMAND).await?;
            let began = Instant::now();
            let told = way(&stage, "n1", "n2", READY, |told| {
                told.is_some_and(|told| told.reason == Reason::TransportDegraded)
            })
            .await?;
            println!("told after {} s: {told:?}", began.elapsed().as_secs());
            node.shell(RUN, COMMAND).await?;
            way(&stage, "n1", "n2", READY, |told| told.is_none()).await?;
            Ok(())
        })
        .await;
    if outcome.is_err() {
        // It may not be there any more.
        product.stage.node("n2").shell(RUN, COMMAND).await.ok();
    }
    outcome
}

/// What the agent of one node says of the way to another, once it is as wanted.
async fn way(
    stage: &Stage,
    from: &str,
    to: &str,
    deadline: Duration,
    wanted: impl Fn(Option<&CheckFinding>) -> bool,
) -> anyhow::Result<Option<CheckFinding>> {
    let speaker = stage.node(from);
    eventually(format!("{from} to say so of {to}"), deadline, || async {
        let node = speaker.report().await?;
        ensure!(
            node.spec.probes.iter().any(|probe| probe.node == to),
            "{from} is not told to prove its way to {to}"
        );
        let findings = node
            .status
            .map(|status| status.findings)
            .unwrap_or_default();
        let of = |finding: &&CheckFinding| {
            finding.check == CheckId::PeerReachable && finding.subject == to
        };
        let told = findings.iter().find(of);
        let seen = format!("{told:?}");
        Ok(Seen::when(wanted(told).then(|| told.cloned()), seen))
    })
    .await
}

fn is_on(node: &str, segment: &Segment) -> bool {
    segment.name.contains(&format!(".{node}."))
}

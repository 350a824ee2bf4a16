//! A node without network or with a slow one: it is reported, leaves the pool, and rejoins.

use super::agent_restart::none_restarted;
use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::{CheckId, ConditionType, Reason};
use mooncake_e2e::scenario::master::Segment;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{
    Effort, Load, Namespace, Node, Pool, Product, Seen, TestCluster, eventually,
};
use std::time::{Duration, Instant};

const NODES: [&str; 2] = ["n1", "n2"];
/// Time limit from the partition to the unmount of the node's segments.
const OUT: Duration = Duration::from_secs(70);
/// Time limit for the end of a finding. One that other scenarios have raised before is flapping and ends after 300 s.
const CLEARED: Duration = Duration::from_secs(360);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_partitioned_node_is_reported_leaves_the_pool_and_rejoins() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let cluster = product.cluster.clone();
    let outcome = product
        .run("cutoff", async move |_, namespace| {
            cut_off(&cluster, namespace).await
        })
        .await;
    for node in NODES {
        product
            .cluster
            .with(move |cluster| cluster.heal(node))
            .await?;
    }
    outcome
}

async fn cut_off(cluster: &TestCluster, namespace: Namespace) -> anyhow::Result<()> {
    let pool = Pool::small(&namespace).await?;
    let before = pool.mounted(2, READY).await?;
    let pods_before = pool.pods().await?;
    let master = pool.master().await?;
    let home = master
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .context("the master has no node")?;
    let node = NODES
        .into_iter()
        .find(|node| *node != home)
        .context("there is no other node")?;
    let load = Load::start(&namespace, home, "kv", Effort::default()).await?;
    let cut = Instant::now();
    cluster.with(move |cluster| cluster.cut(node)).await?;
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
    let found = path(cluster, home, node, READY, |found| found.is_some()).await?;
    println!("{home}: {found:?}");
    cluster.with(move |cluster| cluster.heal(node)).await?;
    let healed = Instant::now();
    let after = pool.mounted(2, READY).await?;
    pool.ready(READY).await?;
    println!(
        "recovered {:.1} s after it was connected again",
        healed.elapsed().as_secs_f64()
    );
    for (from, to) in [(home, node), (node, home)] {
        path(cluster, from, to, CLEARED, |found| found.is_none()).await?;
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
        "the node serves addresses again that the master had dropped: {old:?}, {new:?}"
    );
    // Keys that were only on this node are lost; `finish` rejects wrong bytes.
    load.finish(&namespace).await?;
    let load = Load::start(&namespace, node, "kv", Effort::default()).await?;
    load.finish(&namespace).await?.nothing_failed()?;
    none_restarted(&pods_before, &pool.pods().await?)?;
    none_restarted(&[master], &[pool.master().await?])
}

/// Limits what a node sends: enough for its kubelet, 0.2 s for one peer probe.
const SLOW_DOWN: &str = "tc qdisc add dev eth0 root tbf rate 512kbit burst 4kb latency 3s";
const SPEED_UP: &str = "tc qdisc del dev eth0 root";
const COMMAND: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_slow_path_between_nodes_is_reported_until_it_recovers() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let cluster = product.cluster.clone();
    let outcome = product
        .run("crawls", async move |_, _| {
            path(&cluster, "n1", "n2", CLEARED, |found| found.is_none()).await?;
            let node = Node::new(&cluster, "n2");
            node.shell(SLOW_DOWN, COMMAND).await?;
            let began = Instant::now();
            let found = path(&cluster, "n1", "n2", READY, |found| {
                found.is_some_and(|found| found.reason == Reason::TransportDegraded)
            })
            .await?;
            println!("reported after {} s: {found:?}", began.elapsed().as_secs());
            node.shell(SPEED_UP, COMMAND).await?;
            path(&cluster, "n1", "n2", CLEARED, |found| found.is_none()).await?;
            Ok(())
        })
        .await;
    if outcome.is_err() {
        // The rule may be gone already.
        Node::new(&product.cluster, "n2")
            .shell(SPEED_UP, COMMAND)
            .await
            .ok();
    }
    outcome
}

/// Waits until the finding of one node's agent about the path to another node is as wanted, and returns it.
async fn path(
    cluster: &TestCluster,
    from: &str,
    to: &str,
    deadline: Duration,
    wanted: impl Fn(Option<&CheckFinding>) -> bool,
) -> anyhow::Result<Option<CheckFinding>> {
    let reporter = Node::new(cluster, from);
    eventually(
        format!("the path from {from} to {to}"),
        deadline,
        || async {
            let node = reporter.report().await?;
            ensure!(
                node.spec.probes.iter().any(|probe| probe.node == to),
                "{from} does not probe {to}"
            );
            let findings = node
                .status
                .map(|status| status.findings)
                .unwrap_or_default();
            let of = |finding: &&CheckFinding| {
                finding.check == CheckId::PeerReachable && finding.subject == to
            };
            let found = findings.iter().find(of);
            let seen = format!("{found:?}");
            Ok(Seen::when(wanted(found).then(|| found.cloned()), seen))
        },
    )
    .await
}

fn is_on(node: &str, segment: &Segment) -> bool {
    segment.name.contains(&format!(".{node}."))
}

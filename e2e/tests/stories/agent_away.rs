//! A node has no agent any more, or is another one under its old name.

use anyhow::{Context, ensure};
use crds::condition::find;
use crds::{ConditionType, Reason};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use mooncake_e2e::Part;
use mooncake_e2e::story::product::AGENT;
use mooncake_e2e::story::{Namespace, Pool, Product, Seen, StockPod, StockWork, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is gone must be told within.
const TOLD: Duration = Duration::from_secs(60);
const BACK: Duration = Duration::from_secs(90);
const KEYS: u32 = 48;
const BYTES: u64 = 1 << 20;
const LABEL: &str = "mooncake.io/story";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_node_whose_agent_is_gone_is_named_within_a_minute_and_comes_back_clean()
-> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("noagent", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let before = pool.segments().await?;
            stock(&namespace, "writer", StockWork::put(KEYS, BYTES)).await?;
            let undisturbed = condition(&product, "n1", ConditionType::AgentAlive).await?;

            let gone = Instant::now();
            let earlier = events(&product, "n2").await?;
            agents_on(&product, &json!({LABEL: "agent"})).await?;
            let message = pool.unready(Some(Reason::AgentMissing), TOLD).await?;
            println!("{:.1} s: {message}", gone.elapsed().as_secs_f64());
            ensure!(message.contains("n2"), "which node? {message}");
            doubted(&product, &pool).await?;

            agents_on(&product, &Value::Null).await?;
            product.whole(BACK).await?;
            pool.ready(BACK).await?;
            eventually("the agent to speak for itself again", BACK, || async {
                let serving = condition(&product, "n2", ConditionType::PoolsServing).await?;
                let done = serving.status == "True";
                Ok(Seen::when(done.then_some(()), format!("{serving:?}")))
            })
            .await?;
            ensure!(
                pool.segments().await? == before,
                "the segments are others now"
            );
            stock(&namespace, "reader", StockWork::verify(KEYS, BYTES)).await?;
            let told = news(&earlier, &events(&product, "n2").await?);
            let of_agent = told
                .iter()
                .filter(|(event, _)| event.action.starts_with("AgentAlive"));
            let mut transitions = BTreeMap::new();
            for (event, times) in of_agent {
                *transitions.entry(event.reason.as_str()).or_default() += times;
            }
            // A new agent that is seen before it is ready is another cause of the same state.
            transitions.remove("AgentNotReady");
            ensure!(
                transitions == BTreeMap::from([("AgentMissing", 1), ("AsExpected", 1)]),
                "one event for each transition, not {told:?}"
            );
            // Its agent was replaced twice, which takes seconds and is told to nobody.
            let now = condition(&product, "n1", ConditionType::AgentAlive).await?;
            ensure!(
                now.last_transition_time == undisturbed.last_transition_time,
                "n1 was doubted: {now:?}"
            );
            another_node(&product, &pool).await
        })
        .await;
    agents_on(&product, &Value::Null).await?;
    product
        .stage
        .kubectl(["label", "node", "n1", &format!("{LABEL}-")])
        .await?;
    product
        .stage
        .with(|cluster| cluster.start(Part::Kubelet(2)))
        .await?;
    outcome
}

async fn stock(namespace: &Namespace, name: &str, work: StockWork) -> anyhow::Result<()> {
    let pod = StockPod::new(name, work).node("n1").inject("kv");
    let report = pod.run(namespace, BACK).await?;
    ensure!(
        report.done == u64::from(KEYS) && report.wrong == 0,
        "{report:?}"
    );
    Ok(())
}

/// Agents run only on nodes with these labels, of which n1 has one; null: on every node.
async fn agents_on(product: &Product, selector: &Value) -> anyhow::Result<()> {
    product
        .stage
        .kubectl([
            "label",
            "node",
            "n1",
            "--overwrite",
            &format!("{LABEL}=agent"),
        ])
        .await?;
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}});
    product
        .in_namespace::<DaemonSet>()
        .patch(AGENT, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

async fn condition(
    product: &Product,
    node: &str,
    kind: ConditionType,
) -> anyhow::Result<Condition> {
    let report = product.stage.node(node).report().await?;
    let status = report.status.unwrap_or_default();
    find(&status.conditions, kind)
        .cloned()
        .with_context(|| format!("{node} has no {}", kind.as_str()))
}

/// Nothing that the agent said last is held for true anywhere.
async fn doubted(product: &Product, pool: &Pool) -> anyhow::Result<()> {
    let alive = condition(product, "n2", ConditionType::AgentAlive).await?;
    ensure!(
        alive.status == "False" && alive.reason == "AgentMissing",
        "{alive:?}"
    );
    let serving = condition(product, "n2", ConditionType::PoolsServing).await?;
    ensure!(serving.status == "Unknown", "{serving:?}");
    let status = pool.object().await?.status.unwrap_or_default();
    for kind in [ConditionType::Ready, ConditionType::PoolsReady] {
        let said = find(&status.conditions, kind).context("no condition")?;
        ensure!(
            said.status == "Unknown" && said.message.contains("n2"),
            "{said:?}"
        );
    }
    ensure!(status.nodes.as_deref() == Some("1/2"), "{status:?}");
    Ok(())
}

/// What an Event says, without when.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Told {
    action: String,
    reason: String,
    note: String,
}

/// What was told since, and how often; what another story was told on this cluster stands there too.
fn news(earlier: &BTreeMap<Told, i32>, now: &BTreeMap<Told, i32>) -> BTreeMap<Told, i32> {
    let since = |told: &Told| earlier.get(told).copied().unwrap_or_default();
    let counted = now
        .iter()
        .map(|(told, times)| (told.clone(), times - since(told)));
    counted.filter(|(_, times)| *times > 0).collect()
}

/// Each word of Events about a node's MooncakeNode, and how often it was told so far.
async fn events(product: &Product, node: &str) -> anyhow::Result<BTreeMap<Told, i32>> {
    let mut told = BTreeMap::new();
    for event in product.stage.node(node).events().await? {
        let times = event.series.as_ref().map_or(1, |series| series.count);
        let word = Told {
            action: event.action.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            note: event.note.unwrap_or_default(),
        };
        *told.entry(word).or_default() += times;
    }
    Ok(told)
}

/// n2 is deleted and its kubelet makes a new Node of that name: nothing said of the old one stands.
async fn another_node(product: &Product, pool: &Pool) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(product.stage.client.clone());
    let old = nodes.get("n2").await?.uid();
    let node = product.stage.node("n2");
    let before = node.report().await?.uid();
    let deleted = Timestamp::now();
    nodes.delete("n2", &DeleteParams::default()).await?;
    product
        .stage
        .with(|cluster| {
            cluster.kill(Part::Kubelet(2))?;
            cluster.start(Part::Kubelet(2))
        })
        .await?;
    let new = eventually("another Node n2", BACK, || async {
        let new = nodes.get("n2").await?.uid();
        Ok(Seen::when(
            new.filter(|new| Some(new) != old.as_ref()),
            "the old one",
        ))
    })
    .await?;
    product.whole(BACK).await?;
    let what = "a MooncakeNode of the new Node, with new words alone";
    eventually(what, BACK, || async {
        let report = node.report().await?;
        let owned = report.meta().owner_references.iter().flatten();
        let owned = owned.clone().count() == 1 && owned.clone().all(|owner| owner.uid == new);
        let seen = format!("{report:?}");
        let status = report.status.clone().unwrap_or_default();
        let fresh = status
            .conditions
            .iter()
            // Kept in whole seconds.
            .all(|said| said.last_transition_time.0.as_second() >= deleted.as_second());
        let pods = pool.pods().await?;
        let known = status.pools.iter().all(|told| {
            pods.iter()
                .any(|pod| pod.uid().as_ref() == Some(&told.pod_uid))
        });
        let done = report.uid() != before
            && owned
            && report.spec.node_uid == new
            && status.node_uid == new
            && status.conditions.len() == 3
            && fresh
            && known;
        Ok(Seen::when(done.then_some(()), seen))
    })
    .await?;
    pool.ready(BACK).await?;
    stock(&pool.namespace, "again", StockWork::verify(KEYS, BYTES)).await
}

//! A node without agent, and a new Node object under the name of a deleted one.

use anyhow::{Context, ensure};
use crds::condition::find;
use crds::{ConditionType, Reason};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node as CoreNode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use local_cluster::Part;
use mooncake_e2e::scenario::product::AGENT;
use mooncake_e2e::scenario::{
    Metrics, Namespace, Node, Pool, Product, Seen, StockPod, StockWork, eventually,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time limit to report a missing agent.
const REPORTED: Duration = Duration::from_secs(60);
const BACK: Duration = Duration::from_secs(90);
const KEYS: u32 = 48;
const BYTES: u64 = 1 << 20;
const LABEL: &str = "mooncake.io/scenario";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_missing_agent_is_reported_within_a_minute_and_the_node_recovers() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let outcome = product
        .run("noagent", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.segments().await?;
            stock(&namespace, "writer", StockWork::put(KEYS, BYTES)).await?;
            let undisturbed = condition(&product, "n1", ConditionType::AgentAlive).await?;

            let gone = Instant::now();
            let earlier = events(&product, "n2").await?;
            agents_on(&product, &json!({LABEL: "agent"})).await?;
            let message = pool.unready(Some(Reason::AgentMissing), REPORTED).await?;
            println!("{:.1} s: {message}", gone.elapsed().as_secs_f64());
            ensure!(
                message.contains("n2"),
                "the message does not name n2: {message}"
            );
            is_unknown(&product, &pool).await?;
            let metrics = Metrics::reader(&product, &namespace).await?;
            let ready = ConditionType::Ready;
            let unknown = ("Unknown", Reason::AgentMissing);
            metrics.condition(&pool, ready, unknown, BACK).await?;

            agents_on(&product, &Value::Null).await?;
            product.wait_ready(BACK).await?;
            pool.ready(BACK).await?;
            metrics
                .condition(&pool, ready, ("True", Reason::AsExpected), BACK)
                .await?;
            eventually("the agent to report again", BACK, || async {
                let serving = condition(&product, "n2", ConditionType::PoolsServing).await?;
                let done = serving.status == "True";
                Ok(Seen::when(done.then_some(()), format!("{serving:?}")))
            })
            .await?;
            ensure!(pool.segments().await? == before, "the segments changed");
            stock(&namespace, "reader", StockWork::verify(KEYS, BYTES)).await?;
            let new = since(&earlier, &events(&product, "n2").await?);
            let of_agent = new
                .iter()
                .filter(|(event, _)| event.action.starts_with("AgentAlive"));
            let mut transitions = BTreeMap::new();
            for (event, times) in of_agent {
                *transitions.entry(event.reason.as_str()).or_default() += times;
            }
            // An agent that is observed before it is ready has another reason for the same state.
            transitions.remove("AgentNotReady");
            ensure!(
                transitions == BTreeMap::from([("AgentMissing", 1), ("AsExpected", 1)]),
                "one event for each transition, not {new:?}"
            );
            // Its agent was replaced twice, which takes seconds and is not reported.
            let now = condition(&product, "n1", ConditionType::AgentAlive).await?;
            ensure!(
                now.last_transition_time == undisturbed.last_transition_time,
                "the condition of n1 changed: {now:?}"
            );
            node_is_recreated(&product, &pool).await
        })
        .await;
    agents_on(&product, &Value::Null).await?;
    product
        .cluster
        .kubectl(["label", "node", "n1", &format!("{LABEL}-")])
        .await?;
    product
        .cluster
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

/// Restricts agents to nodes with these labels, of which n1 has one; null: to no labels.
async fn agents_on(product: &Product, selector: &Value) -> anyhow::Result<()> {
    product
        .cluster
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
    let report = Node::new(&product.cluster, node).report().await?;
    let status = report.status.unwrap_or_default();
    find(&status.conditions, kind)
        .cloned()
        .with_context(|| format!("{node} has no {}", kind.as_str()))
}

/// Checks that the last report of the missing agent counts nowhere.
async fn is_unknown(product: &Product, pool: &Pool) -> anyhow::Result<()> {
    let alive = condition(product, "n2", ConditionType::AgentAlive).await?;
    ensure!(
        alive.status == "False" && alive.reason == "AgentMissing",
        "{alive:?}"
    );
    let serving = condition(product, "n2", ConditionType::PoolsServing).await?;
    ensure!(serving.status == "Unknown", "{serving:?}");
    let status = pool.object().await?.status.unwrap_or_default();
    for kind in [ConditionType::Ready, ConditionType::PoolsReady] {
        let condition = find(&status.conditions, kind).context("no condition")?;
        ensure!(
            condition.status == "Unknown" && condition.message.contains("n2"),
            "{condition:?}"
        );
    }
    ensure!(status.nodes.as_deref() == Some("1/2"), "{status:?}");
    Ok(())
}

/// The text of an Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EventText {
    action: String,
    reason: String,
    note: String,
}

/// Events that are new or counted up since `earlier`. Other scenarios on this cluster leave Events too.
fn since(
    earlier: &BTreeMap<EventText, i32>,
    now: &BTreeMap<EventText, i32>,
) -> BTreeMap<EventText, i32> {
    let before = |event: &EventText| earlier.get(event).copied().unwrap_or_default();
    let counted = now
        .iter()
        .map(|(event, times)| (event.clone(), times - before(event)));
    counted.filter(|(_, times)| *times > 0).collect()
}

/// The Events about a node's MooncakeNode with their counts.
async fn events(product: &Product, node: &str) -> anyhow::Result<BTreeMap<EventText, i32>> {
    let mut counts = BTreeMap::new();
    for event in Node::new(&product.cluster, node).events().await? {
        let times = event.series.as_ref().map_or(1, |series| series.count);
        let text = EventText {
            action: event.action.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            note: event.note.unwrap_or_default(),
        };
        *counts.entry(text).or_default() += times;
    }
    Ok(counts)
}

/// Deletes the Node n2, which its kubelet creates again: no report of the old one remains.
async fn node_is_recreated(product: &Product, pool: &Pool) -> anyhow::Result<()> {
    let nodes: Api<CoreNode> = Api::all(product.cluster.client.clone());
    let old = nodes.get("n2").await?.uid();
    let node = Node::new(&product.cluster, "n2");
    let before = node.report().await?.uid();
    let deleted = Timestamp::now();
    nodes.delete("n2", &DeleteParams::default()).await?;
    product
        .cluster
        .with(|cluster| {
            cluster.kill(Part::Kubelet(2))?;
            cluster.start(Part::Kubelet(2))
        })
        .await?;
    let new = eventually("a new Node n2", BACK, || async {
        let new = nodes.get("n2").await?.uid();
        Ok(Seen::when(
            new.filter(|new| Some(new) != old.as_ref()),
            "the old Node",
        ))
    })
    .await?;
    product.wait_ready(BACK).await?;
    let what = "a MooncakeNode of the new Node, with new conditions only";
    eventually(what, BACK, || async {
        let report = node.report().await?;
        let owned = report.meta().owner_references.iter().flatten();
        let owned = owned.clone().count() == 1 && owned.clone().all(|owner| owner.uid == new);
        let seen = format!("{report:?}");
        let status = report.status.clone().unwrap_or_default();
        let fresh = status
            .conditions
            .iter()
            // The API stores whole seconds.
            .all(|condition| condition.last_transition_time.0.as_second() >= deleted.as_second());
        let pods = pool.pods().await?;
        let known = status.pools.iter().all(|report| {
            pods.iter()
                .any(|pod| pod.uid().as_ref() == Some(&report.pod_uid))
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

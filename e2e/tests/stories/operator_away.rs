//! No operator runs: pods start as they are, whatever is deleted goes, and what was missed is told
//! when it is back.

use anyhow::ensure;
use crds::{ConditionType, MooncakeCluster, Reason};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::product::OPERATOR;
use mooncake_e2e::story::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, with_namespace,
};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const GOODBYE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);
const REPLICAS: u32 = 2;
const KINDS: &str = "deployments,replicasets,daemonsets,pods,services,endpointslices,\
                     networkpolicies,serviceaccounts";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn while_the_operator_is_away_pods_start_and_deletions_end_and_then_it_tells_who_was_left_out()
-> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("away", async move |namespace| {
            let small = "nodeSelector: {kubernetes.io/hostname: n2}, size: 64Mi, drainSeconds: 2";
            let spec = format!("{{pools: [{{name: default, {small}}}]}}");
            let pools = [
                Pool::apply(&namespace, "kv", &spec).await?,
                Pool::apply(&namespace, "old", &spec).await?,
            ];
            let product = Arc::clone(&told);
            // It is deleted when this returns, and must go.
            with_namespace(&told.stage, "goes", async move |goes| {
                let pool = Pool::apply(&goes, "kv", &spec).await?;
                for pool in pools.iter().chain([&pool]) {
                    pool.ready(READY).await?;
                }
                scale(&product, 0).await
            })
            .await?;
            let missed = StockPod::new("missed", StockWork::Idle).inject("kv");
            missed.start(&namespace).await?;
            namespace.pod_ready("missed", SOON).await?;
            delete(&namespace, "old").await?;

            scale(&told, REPLICAS).await?;
            told.whole(READY).await?;
            is_told(&namespace).await?;
            let seen = StockPod::new("seen", StockWork::Idle).inject("kv");
            seen.start(&namespace).await?;
            let pod = namespace.pod_ready("seen", SOON).await?;
            ensure!(injected(&pod), "the webhook is back and did nothing");
            Ok(())
        })
        .await;
    scale(&product, REPLICAS).await?;
    outcome
}

/// Waits until so many operator pods are there, and none is still leaving.
async fn scale(product: &Product, replicas: u32) -> anyhow::Result<()> {
    let patch = json!({"spec": {"replicas": replicas}});
    product
        .in_namespace::<Deployment>()
        .patch(OPERATOR, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    let all = format!(
        "{}={}",
        crds::names::LABEL_COMPONENT,
        crds::names::COMPONENT_OPERATOR
    );
    eventually(format!("{replicas} operators"), SOON, || async {
        let pods = product.in_namespace::<Pod>();
        let pods = pods.list(&ListParams::default().labels(&all)).await?.items;
        let there = u32::try_from(pods.len())?;
        Ok(Seen::when((there == replicas).then_some(()), there))
    })
    .await
}

async fn delete(namespace: &Namespace, cluster: &str) -> anyhow::Result<()> {
    let clusters = namespace.api::<MooncakeCluster>();
    clusters.delete(cluster, &DeleteParams::default()).await?;
    let selector = format!("--selector={}={cluster}", crds::names::LABEL_CLUSTER);
    let what = format!("everything of cluster {cluster} to go");
    eventually(what, GOODBYE, || async {
        let there = clusters.get_opt(cluster).await?.is_some();
        let left = namespace
            .kubectl(&["get", KINDS, &selector, "-o", "name"])
            .await?;
        let gone = !there && left.trim().is_empty();
        Ok(Seen::when(gone.then_some(()), left))
    })
    .await
}

fn injected(pod: &Pod) -> bool {
    pod.labels().contains_key(crds::names::LABEL_ACCESS)
}

/// The pod that the webhook did not see is named by its cluster and knows of itself.
async fn is_told(namespace: &Namespace) -> anyhow::Result<()> {
    let pool = Pool {
        namespace: namespace.clone(),
        name: "kv".to_owned(),
    };
    let named = |message: &str| message.contains(&format!("{}/missed", namespace.name));
    let told = pool
        .condition(ConditionType::PodsInjected, "False", SOON, |condition| {
            condition.reason == Reason::NotInjected.as_str() && named(&condition.message)
        })
        .await?;
    println!("{}", told.message);
    eventually("the pod to be told, by one event", SOON, || async {
        let pod = namespace.api::<Pod>().get("missed").await?;
        ensure!(!injected(&pod), "it was injected after all");
        let status = pod.status.unwrap_or_default();
        let condition = status
            .conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "mooncake.io/Injected");
        let stands = condition.as_ref().is_some_and(|condition| {
            condition.status == "False" && condition.reason.as_deref() == Some("NotInjected")
        });
        let of = async |object| -> anyhow::Result<usize> {
            Ok(namespace.events(object, Reason::NotInjected).await?.len())
        };
        let told = (
            of(("Pod", "missed")).await?,
            of(("MooncakeCluster", "kv")).await?,
        );
        let done = stands && told == (1, 1);
        Ok(Seen::when(
            done.then_some(()),
            format!("{condition:?}, events {told:?}"),
        ))
    })
    .await
}

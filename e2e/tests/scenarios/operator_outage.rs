//! An outage of the operator: pods start without injection, deletions finish, and the operator reports missed pods
//! when it returns.

use anyhow::ensure;
use crds::{ConditionType, MooncakeCluster, Reason};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::product::OPERATOR;
use mooncake_e2e::scenario::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, with_namespace,
};
use serde_json::json;
use std::time::Duration;

const DELETED: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);
const REPLICAS: u32 = 2;
const KINDS: &str = "deployments,replicasets,daemonsets,pods,services,endpointslices,\
                     networkpolicies,serviceaccounts";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn without_an_operator_pods_start_and_deletions_finish_and_missed_pods_are_reported_later()
-> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let outcome = product
        .run("away", async move |product, namespace| {
            let small = "nodeSelector: {kubernetes.io/hostname: n2}, size: 64Mi, drainSeconds: 2";
            let spec = format!("{{pools: [{{name: default, {small}}}]}}");
            let pools = [
                Pool::apply(&namespace, "kv", &spec).await?,
                Pool::apply(&namespace, "old", &spec).await?,
            ];
            let operator = product.clone();
            // The namespace is deleted when this returns.
            with_namespace(&product.cluster, "goes", async move |goes| {
                let pool = Pool::apply(&goes, "kv", &spec).await?;
                for pool in pools.iter().chain([&pool]) {
                    pool.ready(READY).await?;
                }
                scale(&operator, 0).await
            })
            .await?;
            let missed = StockPod::new("missed", StockWork::Idle).inject("kv");
            missed.start(&namespace).await?;
            namespace.pod_ready("missed", SOON).await?;
            delete(&namespace, "old").await?;

            scale(&product, REPLICAS).await?;
            product.wait_ready(READY).await?;
            missed_pod_is_reported(&namespace).await?;
            let seen = StockPod::new("seen", StockWork::Idle).inject("kv");
            seen.start(&namespace).await?;
            let pod = namespace.pod_ready("seen", SOON).await?;
            ensure!(
                injected(&pod),
                "the webhook did not inject the pod after the outage"
            );
            Ok(())
        })
        .await;
    scale(&product, REPLICAS).await?;
    outcome
}

/// Scales the operator and waits until exactly so many pods exist.
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
    let what = format!("everything of cluster {cluster} to be gone");
    eventually(what, DELETED, || async {
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

/// Waits until the pod that the webhook missed is reported by its cluster, and by a condition and one Event of its own.
async fn missed_pod_is_reported(namespace: &Namespace) -> anyhow::Result<()> {
    let pool = Pool {
        namespace: namespace.clone(),
        name: "kv".to_owned(),
    };
    let named = |message: &str| message.contains(&format!("{}/missed", namespace.name));
    let condition = pool
        .condition(ConditionType::PodsInjected, "False", SOON, |condition| {
            condition.reason == Reason::NotInjected.as_str() && named(&condition.message)
        })
        .await?;
    println!("{}", condition.message);
    eventually("the pod's condition and one Event each", SOON, || async {
        let pod = namespace.api::<Pod>().get("missed").await?;
        ensure!(!injected(&pod), "it was injected");
        let status = pod.status.unwrap_or_default();
        let condition = status
            .conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "mooncake.io/Injected");
        let reported = condition.as_ref().is_some_and(|condition| {
            condition.status == "False" && condition.reason.as_deref() == Some("NotInjected")
        });
        let of = async |object| -> anyhow::Result<usize> {
            Ok(namespace.events(object, Reason::NotInjected).await?.len())
        };
        let events = (
            of(("Pod", "missed")).await?,
            of(("MooncakeCluster", "kv")).await?,
        );
        let done = reported && events == (1, 1);
        Ok(Seen::when(
            done.then_some(()),
            format!("{condition:?}, events {events:?}"),
        ))
    })
    .await
}

//! API server, operator and webhook are away, replaced or killed; who stores and transfers does not notice.

use super::agent::same_lives;
use anyhow::{Context, ensure};
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR};
use crds::{ConditionType, Reason};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use mooncake_e2e::Part;
use mooncake_e2e::story::pool::READY;
use mooncake_e2e::story::product::OPERATOR;
use mooncake_e2e::story::{
    Effort, Load, Pool, Product, Seen, StockPod, StockWork, eventually, processes,
};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn with_the_api_server_stopped_transfers_go_on_and_nothing_restarts() -> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let away = Duration::from_secs(product.scale.of("seconds without an API server", 20, 120));
    let told = Arc::clone(&product);
    let outcome = product
        .tell("noapi", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let lives = pool.pods().await?;
            let agents = product.pods(COMPONENT_AGENT).await?;
            let loads = [
                Load::start(&namespace, "n1", "kv", Effort::default()).await?,
                Load::start(&namespace, "n2", "kv", Effort::default()).await?,
            ];
            product
                .stage
                .with(|cluster| cluster.stop(Part::ApiServer))
                .await?;
            tokio::time::sleep(away).await;
            product
                .stage
                .with(|cluster| cluster.start(Part::ApiServer))
                .await?;
            pool.ready(SOON).await?;
            for load in &loads {
                load.finish(&namespace).await?.undisturbed()?;
            }
            same_lives(&lives, &pool.pods().await?)?;
            same_lives(&agents, &product.pods(COMPONENT_AGENT).await?)
        })
        .await;
    product
        .stage
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    outcome
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_upgrade_of_the_operator_restarts_no_pool_pod() -> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    product
        .tell("upgrade", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let lives = pool.pods().await?;
            let master = pool.master().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let old = product.pods(COMPONENT_OPERATOR).await?;
            product.install(&["operator.log=debug".to_owned()]).await?;
            product.whole(Duration::from_secs(120)).await?;
            let new = product.pods(COMPONENT_OPERATOR).await?;
            ensure!(
                old.iter()
                    .all(|old| new.iter().all(|new| new.uid() != old.uid())),
                "the operator was not replaced"
            );
            pool.ready(SOON).await?;
            load.finish(&namespace).await?.undisturbed()?;
            same_lives(&lives, &pool.pods().await?)?;
            same_lives(&[master], &[pool.master().await?])
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn when_the_leading_operator_is_killed_at_work_the_other_finishes_it_once()
-> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    product
        .tell("leader", async move |namespace| {
            let product = told;
            let leases: Api<Lease> = product.in_namespace();
            let holder = async || -> anyhow::Result<String> {
                let lease = leases.get(OPERATOR).await?;
                lease
                    .spec
                    .and_then(|spec| spec.holder_identity)
                    .context("nobody holds the Lease")
            };
            let old = holder().await?;
            let leader = product
                .pods(COMPONENT_OPERATOR)
                .await?
                .into_iter()
                .find(|pod| old.contains(&pod.name_any()))
                .with_context(|| format!("{old} is no operator pod"))?;
            let pool =
                Pool::apply(&namespace, "kv", "{pools: [{name: default, size: 64Mi}]}").await?;
            processes::of_pod(&leader, "operator")?
                .iter()
                .for_each(|process| process.recorded.signal(Signal::KILL));
            pool.ready(READY).await?;
            let new = eventually("another leader", SOON, || async {
                let now = holder().await?;
                Ok(Seen::when(
                    (now != old).then(|| now.clone()),
                    "the killed one",
                ))
            })
            .await?;
            println!("{old} was killed, {new} leads");
            // A second writer would have changed a spec: their generation counts that.
            let masters: Api<Deployment> = namespace.api();
            let sets: Api<DaemonSet> = namespace.api();
            let generations = masters
                .list(&Default::default())
                .await?
                .into_iter()
                .map(|object| object.metadata)
                .chain(
                    sets.list(&Default::default())
                        .await?
                        .into_iter()
                        .map(|object| object.metadata),
                )
                .map(|object| (object.name, object.generation))
                .collect::<Vec<_>>();
            ensure!(
                generations.len() == 2
                    && generations
                        .iter()
                        .all(|(_, generation)| *generation == Some(1)),
                "written more than once: {generations:?}"
            );
            product.whole(SOON).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn with_the_webhook_down_labelled_pods_start_and_are_named_as_not_injected()
-> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let told = Arc::clone(&product);
    let outcome = product
        .tell("nohook", async move |namespace| {
            let product = told;
            let pool =
                Pool::apply(&namespace, "kv", "{pools: [{name: default, size: 64Mi}]}").await?;
            pool.ready(READY).await?;
            scale_operator(&product, 0).await?;
            StockPod::new("early", StockWork::Idle)
                .inject("kv")
                .start(&namespace)
                .await?;
            let pod = namespace.pod_ready("early", SOON).await?;
            ensure!(
                pod.spec.is_some_and(|spec| spec.init_containers.is_none()),
                "it was injected after all"
            );
            scale_operator(&product, 2).await?;
            let named = pool
                .condition(ConditionType::PodsInjected, "False", SOON, |condition| {
                    condition.status == "False"
                        && condition.reason == Reason::NotInjected.as_str()
                        && condition.message.contains("early")
                })
                .await?;
            println!("{}", named.message);
            Ok(())
        })
        .await;
    scale_operator(&product, 2).await?;
    outcome
}

/// Changes the number of operator pods and waits until it is so.
pub(super) async fn scale_operator(product: &Product, replicas: i32) -> anyhow::Result<()> {
    let patch = json!({"spec": {"replicas": replicas}});
    product
        .in_namespace::<Deployment>()
        .patch(OPERATOR, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    eventually(format!("{replicas} operator pods"), SOON, || async {
        let status = product
            .in_namespace::<Deployment>()
            .get(OPERATOR)
            .await?
            .status
            .unwrap_or_default();
        let pods = product.pods(COMPONENT_OPERATOR).await?.len();
        let done =
            status.ready_replicas.unwrap_or(0) == replicas && i32::try_from(pods)? == replicas;
        Ok(Seen::when(
            done.then_some(()),
            format!("{pods} pods, {:?} ready", status.ready_replicas),
        ))
    })
    .await
}

/// Resources that Kubernetes itself writes with nothing going on.
const NOT_OURS: [&str; 6] = [
    "leases",
    "nodes",
    "serviceaccounts",
    "tokenreviews",
    "subjectaccessreviews",
    "flowschemas",
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn with_nothing_going_on_nothing_is_written_but_leases() -> anyhow::Result<()> {
    let product = Arc::new(Product::installed().await?);
    let quiet = Duration::from_secs(product.scale.of("seconds of quiet", 30, 600));
    let told = Arc::clone(&product);
    product
        .tell("idle", async move |namespace| {
            let product = told;
            Pool::small(&namespace).await?;
            StockPod::new("user", StockWork::Idle)
                .inject("kv")
                .start(&namespace)
                .await?;
            namespace.pod_ready("user", SOON).await?;
            // What follows from the start of the pods comes to its end first.
            let mut settled = writes(&product).await?;
            for _ in 0..9 {
                tokio::time::sleep(Duration::from_secs(10)).await;
                let now = writes(&product).await?;
                if now == settled {
                    break;
                }
                settled = now;
            }
            tokio::time::sleep(quiet).await;
            let after = writes(&product).await?;
            ensure!(
                after == settled,
                "written at rest: {:?}",
                difference(&settled, &after)
            );
            Ok(())
        })
        .await
}

/// Writes that the API server has answered, by verb and resource.
async fn writes(product: &Product) -> anyhow::Result<BTreeMap<String, u64>> {
    let metrics = product.stage.kubectl(["get", "--raw", "/metrics"]).await?;
    let mut writes = BTreeMap::new();
    for line in metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
    {
        let label = |name: &str| {
            line.split_once(&format!("{name}=\""))
                .and_then(|(_, rest)| rest.split_once('"'))
                .map_or("", |(value, _)| value)
        };
        let (verb, resource) = (label("verb"), label("resource"));
        if ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb)
            && !NOT_OURS.contains(&resource)
        {
            let count = line
                .rsplit_once(' ')
                .and_then(|(_, count)| count.parse::<u64>().ok());
            *writes.entry(format!("{verb} {resource}")).or_default() += count.unwrap_or(0);
        }
    }
    Ok(writes)
}

fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<String> {
    after
        .iter()
        .filter(|(name, count)| before.get(*name) != Some(count))
        .map(|(name, count)| format!("{name}: {}", count - before.get(name).unwrap_or(&0)))
        .collect()
}

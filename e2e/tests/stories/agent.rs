//! The agent dies, is replaced, or is away; the bytes stay.

use anyhow::{Context, ensure};
use crds::names::POOL_DATA_PORT;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use mooncake_e2e::Part;
use mooncake_e2e::story::pool::ip;
use mooncake_e2e::story::processes;
use mooncake_e2e::story::product::AGENT;
use mooncake_e2e::story::{Effort, Load, LoadReport, Pool, Product, Seen, eventually, master};
use rustix::process::Signal;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const BACK: Duration = Duration::from_secs(90);
const NODES: [&str; 2] = ["n1", "n2"];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn agents_killed_again_and_again_under_load_lose_no_key_and_no_segment() -> anyhow::Result<()>
{
    let product = Arc::new(Product::alone().await?);
    let kills = product.scale.of("kills of an agent under load", 4_u32, 20);
    let told = Arc::clone(&product);
    let story = product.tell("killed", async move |namespace| {
        let product = told;
        let pool = Pool::small(&namespace).await?;
        let before = pool.mounted(2, BACK).await?;
        let master = pool.master_ip().await?;
        let loads = [
            Load::start(&namespace, "n1", "kv", Effort::default()).await?,
            Load::start(&namespace, "n2", "kv", Effort::default()).await?,
        ];
        let agents = [product.agent_on("n1").await?, product.agent_on("n2").await?];
        let homes = [
            ip(&pool.pod_on("n1").await?)?,
            ip(&pool.pod_on("n2").await?)?,
        ];
        let mut ends = Ends::default();
        for round in 0..kills {
            // The last with the API server away: all that a successor needs lies in the pool pod.
            if round + 1 == kills {
                product
                    .stage
                    .with(|cluster| cluster.stop(Part::ApiServer))
                    .await?;
            }
            let turn = usize::try_from(round)? % NODES.len();
            let worker = processes::of_pod(&agents[turn], "worker")?;
            ends.0 += 1;
            worker
                .iter()
                .for_each(|process| process.recorded.signal(Signal::KILL));
            eventually(format!("a new agent on {}", NODES[turn]), BACK, || async {
                let now = processes::of_pod(&agents[turn], "worker")?;
                let new = now.iter().all(|process| !worker.contains(process));
                Ok(Seen::when(new.then_some(()), format!("{now:?}")))
            })
            .await?;
            decides(&homes[turn]).await?;
            let now = master::segments(&master).await?;
            ensure!(
                now == before,
                "kill {round}: the master had {before:?}, now {now:?}"
            );
        }
        product
            .stage
            .with(|cluster| cluster.start(Part::ApiServer))
            .await?;
        namespace.everyone_listens(&NODES, BACK).await?;
        pool.ready(BACK).await?;
        ensure!(
            pool.segments().await? == before,
            "the segments are others now"
        );
        for load in &loads {
            ends.few_failures(load, &load.finish(&namespace).await?)?;
        }
        Ok(())
    });
    let outcome = story.await;
    product
        .stage
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    outcome
}

/// Waits until an agent decides about connections to a pool pod: ours is refused, which ends it. While
/// there is no agent the kernel takes the connection and nothing comes.
async fn decides(ip: &str) -> anyhow::Result<()> {
    eventually(format!("an agent behind {ip}"), BACK, || async {
        let mut stream = TcpStream::connect((ip, POOL_DATA_PORT)).await?;
        let read = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut [0; 1])).await;
        Ok(match read {
            // A reset is an answer too.
            Ok(Ok(0) | Err(_)) => Seen::Done(()),
            Ok(Ok(_)) => anyhow::bail!("a byte for nobody"),
            Err(_) => Seen::NotYet("connected, and silence".to_owned()),
        })
    })
    .await
}

/// A stock client has so many lanes to one peer. One whose connection failed stays unused until all have
/// failed, and then one more transfer fails that finds none left.
const STOCK_LANES: u64 = 4;

/// How often an agent ended behind the pool pods. Which connections an end cuts cannot be counted from
/// outside: clients make new ones while it happens.
#[derive(Debug, Default)]
struct Ends(u64);

impl Ends {
    /// Nothing was lost, and each connection that an end cut failed one transfer at most.
    fn few_failures(&self, load: &Load, report: &LoadReport) -> anyhow::Result<()> {
        report.nothing_lost()?;
        let allowed = self.0 * (STOCK_LANES + 1);
        println!(
            "{}: {} failed, {allowed} allowed by {self:?}",
            load.name(),
            report.failed
        );
        ensure!(
            report.failed <= allowed,
            "more failures than connections that can have been cut: {self:?}, {report:?}"
        );
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn agents_rolled_to_a_new_template_under_load_lose_no_key_and_no_segment()
-> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let told = Arc::clone(&product);
    product
        .tell("rolled", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, BACK).await?;
            let pods = pool.pods().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let ends = Ends(u64::try_from(pods.len())?);
            let rolled = json!({"spec": {"template": {"metadata": {"annotations": {
                "mooncake.io/story": namespace.name}}}}});
            product
                .in_namespace::<DaemonSet>()
                .patch(AGENT, &PatchParams::default(), &Patch::Merge(rolled))
                .await?;
            product.whole(Duration::from_secs(90)).await?;
            pool.ready(BACK).await?;
            ensure!(
                pool.segments().await? == before,
                "the segments are others now"
            );
            ends.few_failures(&load, &load.finish(&namespace).await?)?;
            same_lives(&pods, &pool.pods().await?)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_agent_whose_first_process_is_killed_is_started_again_and_nothing_is_lost()
-> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let kills = product
        .scale
        .of("kills of an agent's first process", 2_u32, 6);
    let told = Arc::clone(&product);
    product
        .tell("container", async move |namespace| {
            let product = told;
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, BACK).await?;
            let lives = pool.pods().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let mut ends = Ends::default();
            for round in 0..kills {
                let node = NODES[usize::try_from(round)? % NODES.len()];
                let home = ip(&pool.pod_on(node).await?)?;
                let agent = product.agent_on(node).await?;
                let all = processes::of_pod(&agent, "/agent")?;
                let first = all.first().context("it has no process")?;
                ends.0 += 1;
                first.recorded.signal(Signal::KILL);
                eventually(format!("another agent on {node}"), BACK, || async {
                    let now = processes::of_pod(&agent, "worker")?;
                    let new = now.iter().all(|process| !all.contains(process));
                    Ok(Seen::when(new.then_some(()), format!("{now:?}")))
                })
                .await?;
                decides(&home).await?;
                let now = product.agent_on(node).await?;
                ensure!(now.uid() == agent.uid(), "the agent's pod was replaced");
                let mounted = pool.segments().await?;
                ensure!(
                    mounted == before,
                    "kill {round}: {before:?}, now {mounted:?}"
                );
            }
            product.whole(Duration::from_secs(90)).await?;
            pool.ready(BACK).await?;
            ends.few_failures(&load, &load.finish(&namespace).await?)?;
            same_lives(&lives, &pool.pods().await?)
        })
        .await
}

/// Nothing was replaced, and no container restarted.
pub(super) fn same_lives(
    before: &[k8s_openapi::api::core::v1::Pod],
    after: &[k8s_openapi::api::core::v1::Pod],
) -> anyhow::Result<()> {
    let lives = |pods: &[k8s_openapi::api::core::v1::Pod]| -> Vec<(Option<String>, i32)> {
        pods.iter()
            .map(|pod| {
                let containers = pod
                    .status
                    .iter()
                    .flat_map(|status| status.container_statuses.iter().flatten());
                (
                    pod.metadata.uid.clone(),
                    containers.map(|container| container.restart_count).sum(),
                )
            })
            .collect()
    };
    ensure!(
        lives(before) == lives(after),
        "{:?} before, {:?} after",
        lives(before),
        lives(after)
    );
    Ok(())
}

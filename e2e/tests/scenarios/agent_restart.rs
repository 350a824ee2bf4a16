//! Agents that are killed or rolled out under load: no key and no segment is lost.

use anyhow::{Context, ensure};
use crds::names::POOL_DATA_PORT;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use local_cluster::Part;
use mooncake_e2e::scenario::pool::ip;
use mooncake_e2e::scenario::processes;
use mooncake_e2e::scenario::product::AGENT;
use mooncake_e2e::scenario::{
    Effort, Load, LoadReport, Pool, Product, Seen, eventually, master, watches_resume,
};
use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const BACK: Duration = Duration::from_secs(90);
const NODES: [&str; 2] = ["n1", "n2"];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn killing_agents_under_load_loses_no_key_and_no_segment() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let kills = product.scale.of("kills of an agent under load", 4_u32, 20);
    let scenario = product.run("killed", async move |product, namespace| {
        let pool = Pool::small(&namespace).await?;
        let before = pool.mounted(2, BACK).await?;
        let master = pool.master_ip().await?;
        let loads = [
            Load::start(&namespace, "n1", "kv", Effort::default()).await?,
            Load::start(&namespace, "n2", "kv", Effort::default()).await?,
        ];
        let agents = [product.agent_on("n1").await?, product.agent_on("n2").await?];
        let address = [
            ip(&pool.pod_on("n1").await?)?,
            ip(&pool.pod_on("n2").await?)?,
        ];
        let mut ends = Ends::default();
        for round in 0..kills {
            // The last kill without API server: the pool pod holds all that the next agent process needs.
            if round + 1 == kills {
                product
                    .cluster
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
            admits_again(&address[turn]).await?;
            let now = master::segments(&master).await?;
            ensure!(
                now == before,
                "kill {round}: the master had {before:?}, now {now:?}"
            );
        }
        product
            .cluster
            .with(|cluster| cluster.start(Part::ApiServer))
            .await?;
        watches_resume(&namespace, &NODES).await?;
        pool.ready(BACK).await?;
        ensure!(pool.segments().await? == before, "the segments changed");
        for load in &loads {
            ends.few_failures(load, &load.finish(&namespace).await?)?;
        }
        Ok(())
    });
    let outcome = scenario.await;
    product
        .cluster
        .with(|cluster| cluster.start(Part::ApiServer))
        .await?;
    outcome
}

/// Waits until an agent rejects our connection to a pool pod. Without an agent the kernel accepts the connection and
/// it stays silent.
async fn admits_again(ip: &str) -> anyhow::Result<()> {
    eventually(format!("an agent behind {ip}"), BACK, || async {
        let mut stream = TcpStream::connect((ip, POOL_DATA_PORT)).await?;
        let read = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut [0; 1])).await;
        Ok(match read {
            Ok(Ok(0) | Err(_)) => Seen::Done(()),
            Ok(Ok(_)) => anyhow::bail!("received a byte without access"),
            Err(_) => Seen::NotYet("connected, but silent".to_owned()),
        })
    })
    .await
}

/// Connections of a stock client to one peer. It stops using a failed one until all have failed; then one more
/// transfer fails because none is left.
const STOCK_CONNECTIONS: u64 = 4;

/// How often an agent process ended. The connections that one end breaks cannot be counted, because clients open new
/// ones meanwhile.
#[derive(Debug, Default)]
struct Ends(u64);

impl Ends {
    /// No key was lost, and each broken connection failed at most one transfer.
    fn few_failures(&self, load: &Load, report: &LoadReport) -> anyhow::Result<()> {
        report.nothing_lost()?;
        let allowed = self.0 * (STOCK_CONNECTIONS + 1);
        println!(
            "{}: {} failed, {allowed} allowed by {self:?}",
            load.name(),
            report.failed
        );
        ensure!(
            report.failed <= allowed,
            "more failures than broken connections explain: {self:?}, {report:?}"
        );
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn rolling_out_agents_under_load_loses_no_key_and_no_segment() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("rolled", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, BACK).await?;
            let pods = pool.pods().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let ends = Ends(u64::try_from(pods.len())?);
            let rolled = json!({"spec": {"template": {"metadata": {"annotations": {
                "mooncake.io/scenario": namespace.name}}}}});
            product
                .in_namespace::<DaemonSet>()
                .patch(AGENT, &PatchParams::default(), &Patch::Merge(rolled))
                .await?;
            product.wait_ready(Duration::from_secs(90)).await?;
            pool.ready(BACK).await?;
            ensure!(pool.segments().await? == before, "the segments changed");
            ends.few_failures(&load, &load.finish(&namespace).await?)?;
            none_restarted(&pods, &pool.pods().await?)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn killing_the_supervisor_of_an_agent_restarts_it_and_loses_nothing() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let kills = product
        .scale
        .of("kills of an agent's first process", 2_u32, 6);
    product
        .run("container", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, BACK).await?;
            let before_pods = pool.pods().await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let mut ends = Ends::default();
            for round in 0..kills {
                let node = NODES[usize::try_from(round)? % NODES.len()];
                let address = ip(&pool.pod_on(node).await?)?;
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
                admits_again(&address).await?;
                let now = product.agent_on(node).await?;
                ensure!(now.uid() == agent.uid(), "the agent's pod was replaced");
                let mounted = pool.segments().await?;
                ensure!(
                    mounted == before,
                    "kill {round}: {before:?}, now {mounted:?}"
                );
            }
            product.wait_ready(Duration::from_secs(90)).await?;
            pool.ready(BACK).await?;
            ends.few_failures(&load, &load.finish(&namespace).await?)?;
            none_restarted(&before_pods, &pool.pods().await?)
        })
        .await
}

/// Checks that no pod was replaced and no container restarted.
pub(super) fn none_restarted(
    before: &[k8s_openapi::api::core::v1::Pod],
    after: &[k8s_openapi::api::core::v1::Pod],
) -> anyhow::Result<()> {
    let identities = |pods: &[k8s_openapi::api::core::v1::Pod]| -> Vec<(Option<String>, i32)> {
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
        identities(before) == identities(after),
        "{:?} before, {:?} after",
        identities(before),
        identities(after)
    );
    Ok(())
}

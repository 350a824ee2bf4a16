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
    Effort, Load, Namespace, Pool, Product, Seen, eventually, master, watches_resume,
};
use rustix::process::Signal;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const BACK: Duration = Duration::from_secs(90);
/// Period of the counts of connections.
const SAMPLE: Duration = Duration::from_millis(200);
const NODES: [&str; 2] = ["n1", "n2"];
/// Longest operation of a load while an agent process is replaced. An operation waits for nothing but a new connection;
/// the rest is for busy machines.
const STALL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn killing_agents_under_load_loses_no_key_and_no_segment() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let kills = product.scale.of("kills of an agent under load", 4_u32, 20);
    let scenario = product.run("killed", async move |product, namespace| {
        let pool = Pool::small(&namespace).await?;
        let before = pool.mounted(2, BACK).await?;
        let master = pool.master_ip().await?;
        let mut loads = [
            Broken::start(&namespace, "n1").await?,
            Broken::start(&namespace, "n2").await?,
        ];
        let agents = [product.agent_on("n1").await?, product.agent_on("n2").await?];
        let address = [
            ip(&pool.pod_on("n1").await?)?,
            ip(&pool.pod_on("n2").await?)?,
        ];
        for round in 0..kills {
            let turn = usize::try_from(round)? % NODES.len();
            for load in &mut loads {
                load.count(&namespace, &address[turn]).await?;
            }
            // The last kill without API server: the pool pod holds all that the next agent process needs.
            if round + 1 == kills {
                product
                    .cluster
                    .with(|cluster| cluster.stop(Part::ApiServer))
                    .await?;
            }
            let worker = processes::of_pod(&agents[turn], "worker")?;
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
        for load in loads {
            load.finish(&namespace).await?;
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

/// A load and the connections that ends of agent processes have broken.
struct Broken {
    load: Load,
    started: Instant,
    /// Transfers that may fail.
    allowed: u64,
}

impl Broken {
    async fn start(namespace: &Namespace, node: &str) -> anyhow::Result<Self> {
        Ok(Self {
            load: Load::start(namespace, node, "kv", Effort::default()).await?,
            started: Instant::now(),
            allowed: 0,
        })
    }

    /// Counts the connections to a pool pod whose agent process is about to end. Each fails at most one transfer. A stock
    /// client opens no new one before all are broken: then one more transfer fails.
    async fn count(&mut self, namespace: &Namespace, pool_pod: &str) -> anyhow::Result<()> {
        let address = SocketAddr::new(pool_pod.parse()?, POOL_DATA_PORT);
        self.allowed += 1 + self.load.connections_to(namespace, address).await?;
        Ok(())
    }

    /// As [`Self::count`], for agent processes that end at an unknown time before `done`: the most connections to each
    /// pool pod count.
    async fn count_until(
        &mut self,
        namespace: &Namespace,
        pool_pods: &[String],
        done: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut most = vec![0; pool_pods.len()];
        let mut done = std::pin::pin!(done);
        loop {
            for (most, pool_pod) in most.iter_mut().zip(pool_pods) {
                let before = self.allowed;
                self.count(namespace, pool_pod).await?;
                *most = (*most).max(self.allowed - before);
                self.allowed = before;
            }
            tokio::select! {
                outcome = &mut done => {
                    self.allowed += most.iter().sum::<u64>();
                    return outcome;
                }
                () = tokio::time::sleep(SAMPLE) => {}
            }
        }
    }

    /// No key was lost, no more transfers failed than connections were broken, and the others went on.
    async fn finish(self, namespace: &Namespace) -> anyhow::Result<()> {
        let report = self.load.finish(namespace).await?;
        report.nothing_lost()?;
        println!(
            "{}: {} failed, {} allowed",
            self.load.name(),
            report.failed,
            self.allowed
        );
        ensure!(
            report.failed <= self.allowed,
            "more failures than the {} that broken connections explain: {report:?}",
            self.allowed
        );
        report.went_on(Effort::default(), self.started.elapsed(), STALL)
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
            let mut load = Broken::start(&namespace, "n1").await?;
            let addresses: Vec<_> = pods.iter().map(ip).collect::<anyhow::Result<_>>()?;
            let rolled = json!({"spec": {"template": {"metadata": {"annotations": {
                "mooncake.io/scenario": namespace.name}}}}});
            product
                .in_namespace::<DaemonSet>()
                .patch(AGENT, &PatchParams::default(), &Patch::Merge(rolled))
                .await?;
            let rolled_out = product.wait_ready(Duration::from_secs(90));
            load.count_until(&namespace, &addresses, rolled_out).await?;
            pool.ready(BACK).await?;
            ensure!(pool.segments().await? == before, "the segments changed");
            load.finish(&namespace).await?;
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
            let mut load = Broken::start(&namespace, "n1").await?;
            for round in 0..kills {
                let node = NODES[usize::try_from(round)? % NODES.len()];
                let address = ip(&pool.pod_on(node).await?)?;
                let agent = product.agent_on(node).await?;
                let all = processes::of_pod(&agent, "/agent")?;
                let first = all.first().context("it has no process")?;
                load.count(&namespace, &address).await?;
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
            load.finish(&namespace).await?;
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

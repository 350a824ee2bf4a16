//! Agents that are killed or rolled out under load: no operation fails, no key and no segment is lost.

use super::engine_process::engine_processes;
use anyhow::{Context, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use local_cluster::{Part, Scale};
use mooncake_e2e::scenario::processes;
use mooncake_e2e::scenario::product::AGENT;
use mooncake_e2e::scenario::{
    Effort, Load, Namespace, Node, Pace, Pool, Product, Seen, eventually, master, watches_resume,
};
use rustix::process::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

const BACK: Duration = Duration::from_secs(90);
const NODES: [&str; 2] = ["n1", "n2"];
/// Longest operation of a load while an agent is replaced, four times what was measured (docs/figures.md). An operation
/// waits for nothing of an agent, and with another engine program for the start of a process.
const STALL: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn killing_agents_under_load_loses_no_key_and_no_segment() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let kills = product.scale.of("kills of an agent under load", 4_u32, 20);
    let scenario = product.run("killed", async move |product, namespace| {
        let pool = Pool::small(&namespace).await?;
        let before = pool.mounted(2, BACK).await?;
        let master = pool.master_ip().await?;
        let started = Instant::now();
        let loads = [
            Load::start(&namespace, "n1", "kv", Effort::default()).await?,
            Load::start(&namespace, "n2", "kv", Effort::default()).await?,
        ];
        let engines = engine_processes(&pool.pods().await?)?;
        let agents = [product.agent_on("n1").await?, product.agent_on("n2").await?];
        for round in 0..kills {
            let turn = usize::try_from(round)? % NODES.len();
            // The last kill without API server: the node holds all that the next agent process needs.
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
        ensure!(
            engine_processes(&pool.pods().await?)? == engines,
            "an engine process was replaced"
        );
        for load in loads {
            finish(load, &namespace, (started, product.scale)).await?;
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn rolling_out_agents_under_load_loses_no_key_and_no_segment() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    product
        .run("rolled", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, BACK).await?;
            let pods = pool.pods().await?;
            let engines = engine_processes(&pods)?;
            let started = Instant::now();
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            roll_out(&product, &namespace, "same program").await?;
            pool.ready(BACK).await?;
            ensure!(pool.segments().await? == before, "the segments changed");
            ensure!(
                engine_processes(&pool.pods().await?)? == engines,
                "an engine process was replaced"
            );
            // The next agents install their program again: the engine processes run another file then.
            for node in NODES {
                let remove = "rm -r /var/lib/mooncake/engines/program-*";
                let node = Node::new(&product.cluster, node);
                node.shell(remove, BACK).await?;
            }
            roll_out(&product, &namespace, "another program").await?;
            let successors = eventually("each engine process is replaced", BACK, || async {
                let now = engine_processes(&pool.pods().await?)?;
                let new = now.iter().all(|process| !engines.contains(process));
                Ok(Seen::when(new.then_some(now.clone()), format!("{now:?}")))
            });
            let successors = successors.await?;
            pool.ready(BACK).await?;
            ensure!(pool.segments().await? == before, "the segments changed");
            finish(load, &namespace, (started, product.scale)).await?;
            ensure!(
                engine_processes(&pool.pods().await?)? == successors,
                "an engine process was replaced once more"
            );
            none_restarted(&pods, &pool.pods().await?)
        })
        .await
}

/// Replaces all agents.
async fn roll_out(product: &Product, namespace: &Namespace, why: &str) -> anyhow::Result<()> {
    let mark = format!("{}: {why}", namespace.name);
    let rolled = json!({"spec": {"template": {"metadata": {"annotations": {
        "mooncake.io/scenario": mark}}}}});
    product
        .in_namespace::<DaemonSet>()
        .patch(AGENT, &PatchParams::default(), &Patch::Merge(rolled))
        .await?;
    product.wait_ready(Duration::from_secs(90)).await
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
            let engines = engine_processes(&before_pods)?;
            let started = Instant::now();
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            for round in 0..kills {
                let node = NODES[usize::try_from(round)? % NODES.len()];
                let agent = product.agent_on(node).await?;
                let all = processes::of_pod(&agent, "/agent")?;
                let first = all.first().context("it has no process")?;
                first.recorded.signal(Signal::KILL);
                eventually(format!("another agent on {node}"), BACK, || async {
                    let now = processes::of_pod(&agent, "worker")?;
                    let new = now.iter().all(|process| !all.contains(process));
                    Ok(Seen::when(new.then_some(()), format!("{now:?}")))
                })
                .await?;
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
            finish(load, &namespace, (started, product.scale)).await?;
            ensure!(
                engine_processes(&pool.pods().await?)? == engines,
                "an engine process was replaced"
            );
            none_restarted(&before_pods, &pool.pods().await?)
        })
        .await
}

/// No operation failed, no key was lost, and the load went on.
async fn finish(
    load: Load,
    namespace: &Namespace,
    (started, scale): (Instant, Scale),
) -> anyhow::Result<()> {
    let report = load.finish(namespace).await?;
    report.nothing_lost()?;
    report.nothing_failed()?;
    let pace = Pace::of(scale, STALL);
    report.went_on(Effort::default(), started.elapsed(), pace)
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

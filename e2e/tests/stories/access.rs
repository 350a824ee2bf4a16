//! Nobody else's bytes: who is not admitted gets none, and who is admitted breaks nothing.

use super::agent::same_lives;
use anyhow::{Context, ensure};
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR, master_endpoint};
use mooncake_e2e::story::pool::ip;
use mooncake_e2e::story::{
    Effort, Load, Namespace, Pool, Product, StockPod, StockWork, processes, with_namespace,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const REACH: &str = include_str!("../workload/reach.py");
const HOSTILE: &str = include_str!("../workload/hostile.py");
const WAIT: Duration = Duration::from_secs(180);
/// What the agent may keep of its own, besides the pools that it maps.
const AGENT_BYTES: u64 = 96 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn unlabelled_foreign_and_host_network_pods_read_and_write_no_byte_through_us()
-> anyhow::Result<()> {
    let product = Arc::new(Product::shared().await?);
    let told = Arc::clone(&product);
    product
        .tell("access", async move |namespace| {
            let pool = Pool::small(&namespace).await?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let segments = pool.mounted(2, WAIT).await?;
            let mut arguments = vec![
                "load-n1-kept-0".to_owned(),
                segments[0].base_address.clone(),
            ];
            for pod in pool.pods().await? {
                arguments.push(ip(&pod)?);
            }
            arguments.extend(metrics(&told).await?);
            let work = StockWork::Program {
                text: REACH,
                arguments,
            };
            let endpoint = master_endpoint("kv", &namespace.name);
            let stranger = |name: &str| {
                StockPod::new(name, work.clone())
                    .node("n2")
                    .master(&endpoint)
            };
            nothing(&namespace, &stranger("unlabelled")).await?;
            nothing(&namespace, &stranger("hostnet").host_network()).await?;
            // The label of the admitted is put by the webhook alone; this cluster is another's.
            let foreign = stranger("foreign").inject("kv");
            with_namespace(&told.stage, "foreign", async move |other| {
                nothing(&other, &foreign).await
            })
            .await?;
            load.finish(&namespace).await?.undisturbed()
        })
        .await
}

/// The metrics of every agent and operator.
async fn metrics(product: &Product) -> anyhow::Result<Vec<String>> {
    let mut urls = Vec::new();
    for (component, scheme) in [(COMPONENT_AGENT, "http"), (COMPONENT_OPERATOR, "https")] {
        for pod in product.pods(component).await? {
            let ports = pod.spec.iter().flat_map(|spec| &spec.containers);
            let port = ports
                .flat_map(|container| container.ports.iter().flatten())
                .find(|port| port.name.as_deref() == Some("metrics"))
                .with_context(|| format!("a pod of {component} has no port for metrics"))?
                .container_port;
            urls.push(format!("{scheme}://{}:{port}/metrics", ip(&pod)?));
        }
    }
    ensure!(
        urls.len() == 4,
        "two agents and two operators, not {urls:?}"
    );
    Ok(urls)
}

/// Runs a stranger: it must have read and written nothing, at any door.
async fn nothing(namespace: &Namespace, stranger: &StockPod) -> anyhow::Result<()> {
    stranger.start(namespace).await?;
    namespace.pod_succeeded(&stranger.name, WAIT).await?;
    let doors = lines(namespace, &stranger.name, "door").await?;
    // Four of each pool pod, two of each URL, and the stock client's.
    ensure!(
        doors.len() == 2 * 4 + 4 * 2 + 1,
        "some doors were not tried: {doors:?}"
    );
    for door in doors {
        ensure!(door["read"] == 0, "{} read bytes: {door}", stranger.name);
        ensure!(
            door["written"] != true,
            "{} wrote bytes: {door}",
            stranger.name
        );
        let asked = door["door"]
            .as_str()
            .is_some_and(|door| door.starts_with("metrics"));
        ensure!(
            !asked || door["end"] == 401,
            "{} asked for metrics and heard {door}",
            stranger.name
        );
        if let Some(master) = door["master"].as_str() {
            println!("{}: the master's own port {master}", stranger.name);
        }
    }
    Ok(())
}

async fn lines(namespace: &Namespace, pod: &str, field: &str) -> anyhow::Result<Vec<Value>> {
    let log = namespace.logs(pod, "main").await?;
    Ok(log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line.get(field).is_some())
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn hostile_bytes_from_an_admitted_pod_disturb_neither_agent_nor_honest_peers()
-> anyhow::Result<()> {
    let product = Arc::new(Product::shared().await?);
    let connections = product.scale.of("connections at a time", 500, 10_000);
    let told = Arc::clone(&product);
    product
        .tell("hostile", async move |namespace| {
            let pool = Pool::small(&namespace).await?;
            let lives = pool.pods().await?;
            let agents = told.pods(COMPONENT_AGENT).await?;
            let workers: Vec<_> = agents.iter().map(worker).collect::<anyhow::Result<_>>()?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let mut arguments = vec![connections.to_string()];
            for pod in &lives {
                arguments.push(ip(pod)?);
            }
            let mad = StockPod::new(
                "mad",
                StockWork::Program {
                    text: HOSTILE,
                    arguments,
                },
            )
            .node("n2")
            .inject("kv");
            mad.start(&namespace).await?;
            namespace.pod_succeeded("mad", WAIT).await?;
            for attack in lines(&namespace, "mad", "attack").await? {
                println!("{attack}");
                ensure!(
                    attack["answered"] != false,
                    "no answer to an honest peer: {attack}"
                );
            }
            load.finish(&namespace).await?.undisturbed()?;
            for (agent, before) in agents.iter().zip(&workers) {
                ensure!(worker(agent)? == *before, "an agent died: {before:?}");
                let used = own_memory(before.recorded.pid)?;
                ensure!(used < AGENT_BYTES, "an agent holds {used} bytes");
            }
            same_lives(&lives, &pool.pods().await?)
        })
        .await
}

fn worker(agent: &k8s_openapi::api::core::v1::Pod) -> anyhow::Result<processes::Process> {
    processes::of_pod(agent, "worker")?
        .pop()
        .context("an agent has no worker")
}

/// Anonymous memory of a process, in bytes.
fn own_memory(pid: i32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .context("no RssAnon")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}

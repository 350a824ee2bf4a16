//! Access to pools: pods without access read and write nothing, and malformed bytes from pods with access do no harm.

use super::agent_restart::none_restarted;
use super::engine_process::engine_processes;
use anyhow::{Context, ensure};
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR, master_endpoint};
use mooncake_e2e::scenario::pool::ip;
use mooncake_e2e::scenario::{
    Effort, Load, Namespace, Pool, Product, StockPod, StockWork, processes, with_namespace,
};
use serde_json::Value;
use std::time::Duration;

const REACH: &str = include_str!("../workload/reach.py");
const HOSTILE: &str = include_str!("../workload/hostile.py");
const WAIT: Duration = Duration::from_secs(180);
/// Limit of an agent's own memory, without the pools that it maps.
const AGENT_BYTES: u64 = 96 << 20;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn pods_without_access_read_and_write_no_pool_bytes() -> anyhow::Result<()> {
    let product = Product::shared_by_waiting().await?;
    product
        .run("access", async move |product, namespace| {
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
            arguments.extend(metrics(&product).await?);
            let work = StockWork::Program {
                text: REACH,
                arguments,
            };
            let endpoint = master_endpoint("kv", &namespace.name);
            let client = |name: &str| {
                StockPod::new(name, work.clone())
                    .node("n2")
                    .master(&endpoint)
            };
            reads_and_writes_nothing(&namespace, &client("unlabelled")).await?;
            reads_and_writes_nothing(&namespace, &client("hostnet").host_network()).await?;
            // Only the webhook sets the label that gives access, and the cluster is in another namespace.
            let foreign = client("foreign").inject("kv");
            with_namespace(&product.cluster, "foreign", async move |other| {
                reads_and_writes_nothing(&other, &foreign).await
            })
            .await?;
            load.finish(&namespace).await?.nothing_failed()
        })
        .await
}

/// URLs of the metrics of every agent and operator.
async fn metrics(product: &Product) -> anyhow::Result<Vec<String>> {
    let mut urls = Vec::new();
    for component in [COMPONENT_AGENT, COMPONENT_OPERATOR] {
        for pod in product.pods(component).await? {
            let ports = pod.spec.iter().flat_map(|spec| &spec.containers);
            let port = ports
                .flat_map(|container| container.ports.iter().flatten())
                .find(|port| port.name.as_deref() == Some("metrics"))
                .with_context(|| format!("a pod of {component} has no port for metrics"))?
                .container_port;
            urls.push(format!("https://{}:{port}/metrics", ip(&pod)?));
        }
    }
    ensure!(
        urls.len() == 4,
        "two agents and two operators, not {urls:?}"
    );
    Ok(urls)
}

/// Runs a pod without access, which must not read or write a byte on any port.
async fn reads_and_writes_nothing(namespace: &Namespace, client: &StockPod) -> anyhow::Result<()> {
    client.start(namespace).await?;
    namespace.pod_succeeded(&client.name, WAIT).await?;
    let attempts = lines(namespace, &client.name, "attempt").await?;
    // Four attempts per pool pod, two per URL, and one by the stock client.
    ensure!(
        attempts.len() == 2 * 4 + 4 * 2 + 1,
        "some attempts are missing: {attempts:?}"
    );
    for attempt in attempts {
        ensure!(
            attempt["read"] == 0,
            "{} read bytes: {attempt}",
            client.name
        );
        ensure!(
            attempt["written"] != true,
            "{} wrote bytes: {attempt}",
            client.name
        );
        let metrics = attempt["attempt"]
            .as_str()
            .is_some_and(|attempt| attempt.starts_with("metrics"));
        ensure!(
            !metrics || attempt["end"] == 401,
            "{} read metrics: {attempt}",
            client.name
        );
        if let Some(master) = attempt["master"].as_str() {
            println!("{}: port of the stock master: {master}", client.name);
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
async fn malformed_bytes_from_an_admitted_pod_disturb_no_agent_and_no_other_client()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    let connections = product.scale.of("connections at a time", 500, 10_000);
    product
        .run("hostile", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before_pods = pool.pods().await?;
            let agents = product.pods(COMPONENT_AGENT).await?;
            let engines = engine_processes(&before_pods)?;
            let workers: Vec<_> = agents.iter().map(worker).collect::<anyhow::Result<_>>()?;
            let load = Load::start(&namespace, "n1", "kv", Effort::default()).await?;
            let mut arguments = vec![connections.to_string()];
            for pod in &before_pods {
                arguments.push(ip(pod)?);
            }
            let hostile = StockPod::new(
                "hostile",
                StockWork::Program {
                    text: HOSTILE,
                    arguments,
                },
            )
            .node("n2")
            .inject("kv");
            hostile.start(&namespace).await?;
            namespace.pod_succeeded("hostile", WAIT).await?;
            for attack in lines(&namespace, "hostile", "attack").await? {
                println!("{attack}");
                ensure!(
                    attack["answered"] != false,
                    "no answer to a well-formed handshake: {attack}"
                );
            }
            load.finish(&namespace).await?.nothing_failed()?;
            for (agent, before) in agents.iter().zip(&workers) {
                ensure!(worker(agent)? == *before, "an agent restarted: {before:?}");
                let used = own_memory(before.recorded.pid)?;
                ensure!(used < AGENT_BYTES, "an agent uses {used} bytes");
            }
            ensure!(
                engine_processes(&before_pods)? == engines,
                "an engine process was replaced"
            );
            for engine in &engines {
                let used = own_memory(engine.recorded.pid)?;
                ensure!(used < AGENT_BYTES, "an engine process uses {used} bytes");
            }
            none_restarted(&before_pods, &pool.pods().await?)
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

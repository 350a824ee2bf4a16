//! Access to pools: pods without access read and write nothing, and malformed bytes from pods with access do no harm.

use super::agent_restart::none_restarted;
use super::engine_process::engine_processes;
use anyhow::{Context, ensure};
use crds::names::{COMPONENT_AGENT, COMPONENT_OPERATOR, master_endpoint};
use mooncake_e2e::scenario::master::Segment;
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{
    Effort, Load, Namespace, Pool, Product, StockPod, StockWork, metrics, processes, with_namespace,
};
use serde_json::Value;
use std::time::Duration;

const REACH: &str = include_str!("../workload/reach.py");
const HOSTILE: &str = include_str!("../workload/hostile.py");
const NEWCOMER: &str = include_str!("../workload/newcomer.py");
/// Reads 4 KiB at a wire address of each pool pod, or writes them first; prints what each pod returned.
const RANGE: &str = r#"
import json, socket, struct, sys
operation, address, hosts = sys.argv[1], int(sys.argv[2], 16), sys.argv[3:]

def exchange(host, request, wanted):
    received = b""
    with socket.create_connection((host, 12002), timeout=5) as peer:
        peer.settimeout(5)
        peer.sendall(request)
        while len(received) < wanted and (piece := peer.recv(65536)):
            received += piece
    return received

for host in hosts:
    try:
        if operation == "write":
            exchange(host, struct.pack("<QQB7x", 4096, address, 0x81) + b"X" * 4096, 1)
        got = exchange(host, struct.pack("<QQB7x", 4096, address, 0), 4096)
        print(json.dumps({"range": "marked" if b"X" * 64 in got else "other" if len(got) >= 4096 else "unknown"}))
    except OSError as error:
        print(json.dumps({"range": type(error).__name__}))
"#;
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
            let address = unused(&segments[0])?;
            let mut hosts = Vec::new();
            for pod in pool.pods().await? {
                hosts.push(ip(&pod)?);
            }
            let metrics = urls_of_metrics(&product).await?;
            let reach = |key: &str, address: &str, hosts: &[String]| {
                let words = [key, address].map(str::to_owned).into_iter();
                StockWork::Program {
                    text: REACH,
                    arguments: words.chain(hosts.iter().chain(&metrics).cloned()).collect(),
                }
            };
            let admitted = StockPod::new("admitted", StockWork::Idle);
            admitted.inject("kv").start(&namespace).await?;
            namespace.pod_ready("admitted", WAIT).await?;
            let range = async |operation: &str| {
                let mut words = vec!["python3", "-c", RANGE, operation, &address];
                words.extend(hosts.iter().map(String::as_str));
                namespace.exec("admitted", "main", &words, WAIT).await
            };
            let before = range("read").await?;
            ensure!(before.contains("other"), "no pool pod has it: {before}");
            let work = reach("load-n1-kept-0", &address, &hosts);
            let endpoint = master_endpoint("kv", &namespace.name);
            let client = |name: &str| {
                StockPod::new(name, work.clone())
                    .node("n2")
                    .master(&endpoint)
            };
            reads_and_writes_nothing(&namespace, &client("unlabelled"), &endpoint).await?;
            reads_and_writes_nothing(&namespace, &client("hostnet").host_network(), &endpoint)
                .await?;
            // Only the webhook sets the label that gives access, and the cluster is in another namespace.
            let (foreign, master) = (client("foreign").inject("kv"), endpoint.clone());
            with_namespace(&product.cluster, "foreign", async move |other| {
                reads_and_writes_nothing(&other, &foreign, &master).await
            })
            .await?;
            // Its access is to the pool of another cluster of the same namespace.
            let other = "{pools: [{name: default, size: 64Mi, drainSeconds: 2}]}";
            let other = Pool::apply(&namespace, "other", other).await?;
            other.ready(READY).await?;
            reads_and_writes_nothing(&namespace, &client("neighbour").inject("other"), &endpoint)
                .await?;
            // The same in the other direction.
            let owner = StockPod::new("owner", StockWork::put(1, 4096)).inject("other");
            let put = owner.run(&namespace, WAIT).await?;
            ensure!(put.done == 1, "{put:?}");
            let address = unused(&other.mounted(2, WAIT).await?[0])?;
            let mut hosts = Vec::new();
            for pod in other.pods().await? {
                hosts.push(ip(&pod)?);
            }
            let endpoint = master_endpoint("other", &namespace.name);
            let client = StockPod::new("of-kv", reach("k0", &address, &hosts));
            let client = client.node("n2").master(&endpoint).inject("kv");
            reads_and_writes_nothing(&namespace, &client, &endpoint).await?;
            let after = range("read").await?;
            ensure!(!after.contains("marked"), "written without access: {after}");
            // The same request by a pod with access has an effect.
            let written = range("write").await?;
            ensure!(written.contains("marked"), "not written: {written}");
            load.finish(&namespace).await?.nothing_failed()
        })
        .await
}

/// Wire address of the last 4 KiB of a segment, which the load does not reach.
fn unused(segment: &Segment) -> anyhow::Result<String> {
    let base = segment.base_address.trim_start_matches("0x");
    let base = u64::from_str_radix(base, 16).with_context(|| format!("{segment:?}"))?;
    Ok(format!("{:x}", base + segment.size_bytes - 4096))
}

/// URLs of the metrics of every agent and operator.
async fn urls_of_metrics(product: &Product) -> anyhow::Result<Vec<String>> {
    let mut urls = Vec::new();
    for component in [COMPONENT_AGENT, COMPONENT_OPERATOR] {
        for pod in product.pods(component).await? {
            let port = metrics::port(&pod)?;
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
async fn reads_and_writes_nothing(
    namespace: &Namespace,
    client: &StockPod,
    endpoint: &str,
) -> anyhow::Result<()> {
    client.start(namespace).await?;
    namespace.pod_succeeded(&client.name, WAIT).await?;
    let attempts = lines(namespace, &client.name, "attempt").await?;
    let stock = attempts.last().and_then(|attempt| attempt["at"].as_str());
    ensure!(
        stock == Some(endpoint),
        "{} used another master: {stock:?}",
        client.name
    );
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
            let newcomer = StockWork::Program {
                text: NEWCOMER,
                arguments: arguments[1..].to_vec(),
            };
            let newcomer = StockPod::new("newcomer", newcomer).node("n1").inject("kv");
            newcomer.start(&namespace).await?;
            namespace.pod_ready("newcomer", WAIT).await?;
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
            let attacks = lines(&namespace, "hostile", "attack").await?;
            ensure!(
                attacks.len() == 5 * before_pods.len(),
                "some attacks are missing: {attacks:?}"
            );
            for attack in &attacks {
                println!("{attack}");
                ensure!(
                    attack["answered"] != false,
                    "no answer to a well-formed handshake: {attack}"
                );
                let number = |field: &str| attack[field].as_u64().unwrap_or_default();
                ensure!(
                    10 * number("opened") >= 9 * number("of"),
                    "too few connections for an attack: {attack}"
                );
            }
            all_answered(&lines(&namespace, "newcomer", "newcomer").await?, &attacks)?;
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

/// Compares what another pod with access saw during the attacks: each new connection was answered.
fn all_answered(newcomers: &[Value], attacks: &[Value]) -> anyhow::Result<()> {
    let at = |line: Option<&Value>| line.and_then(|line| line["at"].as_f64());
    let (Some(start), Some(end)) = (at(attacks.first()), at(attacks.last())) else {
        anyhow::bail!("no attack has a time: {attacks:?}");
    };
    let during: Vec<_> = newcomers
        .iter()
        .filter(|line| at(Some(line)).is_some_and(|at| (start..end).contains(&at)))
        .collect();
    ensure!(during.len() >= 20, "only {} handshakes", during.len());
    let longest = during.iter().filter_map(|line| line["seconds"].as_f64());
    let longest = longest.fold(0.0, f64::max);
    println!(
        "{} handshakes of another pod, the longest {longest} s",
        during.len()
    );
    for line in during {
        ensure!(line["newcomer"] == true, "not answered: {line}");
    }
    Ok(())
}

fn worker(agent: &k8s_openapi::api::core::v1::Pod) -> anyhow::Result<processes::Process> {
    // The first one: what it starts has its command until it runs another program.
    processes::of_pod(agent, "worker")?
        .into_iter()
        .next()
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

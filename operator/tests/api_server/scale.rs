//! Many nodes: how long an operator that begins takes to know them all, what it keeps of them in memory,
//! and that it writes nothing once it does. In full in the soak.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::MooncakeNode;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use mooncake_e2e::settings::Environment;
use mooncake_e2e::story::Scale;
use mooncake_operator::metrics::Metrics;
use serde_json::{Value, json};

use super::server::Server;
use super::world::{SYSTEM, install_crds, make_namespace, quiet_within, settings, start};

/// Requests of those who are played, at a time.
const AT_A_TIME: usize = 32;
/// For the writes of one phase; the figure is printed, and a busy machine is no failure.
const PHASE: Duration = Duration::from_secs(300);
/// What the operator may take more than before it knew any node.
const MEMORY: u64 = 200 << 20;
/// So many findings, each as long, are a status of full size.
const FINDINGS: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn thousands_of_nodes_are_known_and_then_nothing_is_written() -> anyhow::Result<()> {
    let count = Scale::from_environment(&Environment::read()).of("nodes", 100, 5000_usize);
    let server = Server::start().await?;
    let client = &server.client;
    install_crds(client).await?;
    make_namespace(client, SYSTEM).await?;
    each(count, |node| make_node(client, node)).await?;
    each(count, |node| make_agent(client, node)).await?;

    let metrics = Metrics::new();
    let before = resident()?;
    let began = Instant::now();
    let operator = start(client, &settings(), &metrics).await?;
    // For each node its object, and in it whether its agent lives.
    written(&metrics, 2 * count).await?;
    println!(
        "{count} nodes known after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let mut known = quiet_within(&metrics, PHASE).await?;
    all_alive(client, count).await?;

    // Every agent says all that a status can hold, and then something else.
    for round in ["first", "second"] {
        each(count, |node| speak(client, node, round)).await?;
        let told = quiet_within(&metrics, PHASE).await?;
        ensure!(
            told - known <= u64::try_from(count)?,
            "{} writes for {count} changed verdicts, of which each is one Event",
            told - known
        );
        known = told;
    }
    let mut rest = tokio::time::interval(Duration::from_secs(5));
    rest.tick().await;
    rest.tick().await;
    ensure!(metrics.writes() == known, "it writes at rest");
    let grown = resident()?.saturating_sub(before);
    println!("memory for {count} nodes: {} MiB", grown >> 20);
    ensure!(grown <= MEMORY, "{} MiB", grown >> 20);
    operator.abort();
    Ok(())
}

/// Does something for every node, many at a time.
async fn each<F>(count: usize, work: impl Fn(usize) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    stream::iter((0..count).map(work))
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await
}

fn name(node: usize) -> String {
    format!("gpu-{node:04}")
}

async fn make_node(client: &Client, node: usize) -> anyhow::Result<()> {
    let api = Api::<Node>::all(client.clone());
    let object = json!({"metadata": {"name": name(node)}, "status": {
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fine"}],
        "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": format!("boot-{node}"), "kernelVersion": "",
            "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "",
            "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
        },
    }});
    let object: Node = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    let status = json!({"status": object.status});
    api.patch_status(&name(node), &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn make_agent(client: &Client, node: usize) -> anyhow::Result<()> {
    let api = Api::<Pod>::namespaced(client.clone(), SYSTEM);
    let agent = format!("agent-{node:04}");
    let pod = json!({
        "metadata": {"name": agent, "labels": {"mooncake.io/component": "agent"}},
        "spec": {"nodeName": name(node), "containers": [{
            "name": "agent", "image": "a", "ports": [{"name": "probe", "containerPort": 9465}],
        }]},
    });
    api.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    let ip = format!("10.{}.{}.1", node / 250, node % 250);
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    api.patch_status(&agent, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// A status of full size in the agent's name.
async fn speak(client: &Client, node: usize, round: &str) -> anyhow::Result<()> {
    let reason = if round == "first" {
        "PortNotActive"
    } else {
        "AsExpected"
    };
    let status = if round == "first" { "False" } else { "True" };
    let at = "2026-01-01T00:00:00Z";
    let findings: Vec<Value> = (0..FINDINGS)
        .map(|port| {
            json!({
                "check": "PortActive", "verdict": "Fail", "reason": "PortNotActive", "since": at,
                "subject": format!("mlx5_{port} port 1"), "message": "w".repeat(200),
            })
        })
        .collect();
    let body = json!({
        "apiVersion": MooncakeNode::api_version(&()),
        "kind": MooncakeNode::kind(&()),
        "metadata": {"name": name(node)},
        "status": {
            "findings": findings,
            "conditions": [{
                "type": "NodeHealthy", "status": status, "reason": reason,
                "message": format!("{round} words"), "lastTransitionTime": at,
            }],
        },
    });
    let agent = PatchParams::apply("mooncake-agent").force();
    Api::<MooncakeNode>::all(client.clone())
        .patch_status(&name(node), &agent, &Patch::Apply(body))
        .await?;
    Ok(())
}

/// Waits until so many writes were made.
async fn written(metrics: &Metrics, wanted: usize) -> anyhow::Result<()> {
    let wanted = u64::try_from(wanted)?;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let waited = tokio::time::timeout(PHASE, async {
        while metrics.writes() < wanted {
            ticks.tick().await;
        }
    });
    let said = || format!("{} of {wanted} writes in {PHASE:?}", metrics.writes());
    waited.await.with_context(said)
}

/// Every node has its object, four neighbours in both directions and an agent that lives.
async fn all_alive(client: &Client, count: usize) -> anyhow::Result<()> {
    let nodes = Api::<MooncakeNode>::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await?;
    ensure!(nodes.items.len() == count, "{} objects", nodes.items.len());
    for node in nodes {
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        let alive = conditions
            .filter(|said| said.type_ == "AgentAlive")
            .any(|said| said.status == "True");
        let around = (node.spec.probes.len(), node.spec.probers.len());
        ensure!(alive && around == (4, 4), "{node:?}");
    }
    Ok(())
}

/// Bytes of this process that are in memory.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?
        .parse()?;
    Ok(kib << 10)
}

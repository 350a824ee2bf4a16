//! Scale: how long an operator takes to reconcile many nodes with pools of many clusters, how much memory it uses for
//! them, and that it neither writes nor reconciles afterwards. The soak test runs it with all nodes.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use crds::condition::{find, is_true};
use crds::{ConditionType, MooncakeCluster, MooncakeNode};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use local_cluster::Scale;
use mooncake_operator::metrics::Metrics;
use serde_json::{Value, json};

use super::harness::{
    SYSTEM, TEAM, install_crds, make_namespace, quiet_within, reconciles_of, settings, start,
};
use super::server::Server;

/// Concurrent requests of the played nodes and agents.
const AT_A_TIME: usize = 32;
/// Limit for the writes of one phase.
const PHASE: Duration = Duration::from_secs(900);
/// Limit for a new operator until every object is reconciled: 60 s for the operator as it is shipped.
const CONVERGED: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 60 });
/// Limit of the operator's additional memory, in bytes.
const MEMORY: u64 = 600 << 20;
/// Findings of a status of full size.
const FINDINGS: usize = 24;
/// MooncakeClusters.
const CLUSTERS: usize = 20;
/// Clusters with a pool pod on each node.
const POOLS_PER_NODE: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn thousands_of_nodes_are_reconciled_and_then_nothing_is_written() -> anyhow::Result<()> {
    let scale = Scale::read();
    let count = scale.of("nodes", 100, 5000_usize);
    let rest = Duration::from_secs(scale.of("seconds at rest", 20, 300));
    let server = Server::start().await?;
    let client = &server.client;
    install_crds(client).await?;
    make_namespace(client, SYSTEM).await?;
    make_namespace(client, TEAM).await?;
    each(count, |node| make_node(client, node)).await?;
    each(count, |node| make_agent(client, node)).await?;

    let metrics = Metrics::new();
    let before = resident()?;
    let began = Instant::now();
    let operator = start(client, &settings(), &metrics).await?;
    // For each node its MooncakeNode, and the condition AgentAlive in it.
    written(&metrics, 2 * count).await?;
    report_limit(&format!("{count} new nodes"), began.elapsed())?;
    until(|| all_alive(client, count)).await?;
    quiet_within(&metrics, PHASE).await?;

    each(CLUSTERS, |cluster| make_cluster(client, cluster)).await?;
    quiet_within(&metrics, PHASE).await?;
    each(CLUSTERS, |cluster| make_master(client, cluster)).await?;
    each(count, |node| make_pool_pods(client, node)).await?;
    each(CLUSTERS, |cluster| {
        count_pods(client, cluster, count * POOLS_PER_NODE / CLUSTERS)
    })
    .await?;
    until(|| all_assigned(client, count)).await?;
    quiet_within(&metrics, PHASE).await?;
    each(count, |node| report(client, node, Verdict::Passed)).await?;
    until(|| all_ready(client)).await?;
    let mut writes = quiet_within(&metrics, PHASE).await?;

    // Every agent reports another verdict, and then the first one again.
    for verdict in [Verdict::Failed, Verdict::Passed] {
        let clusters = reconciles_of(&metrics)?["MooncakeCluster"];
        each(count, |node| report(client, node, verdict)).await?;
        let now = quiet_within(&metrics, PHASE).await?;
        ensure!(
            now - writes <= u64::try_from(count)?,
            "{} writes for {count} changed conditions, each of which is one Event",
            now - writes
        );
        let clusters = reconciles_of(&metrics)?["MooncakeCluster"] - clusters;
        ensure!(
            clusters == 0,
            "{clusters} reconciles of clusters for verdicts that concern no pool pod"
        );
        writes = now;
    }
    at_rest(&metrics, rest).await?;
    let grown = resident()?.saturating_sub(before);
    println!("memory for {count} nodes: {} MiB", grown >> 20);
    ensure!(grown <= MEMORY, "{} MiB", grown >> 20);
    operator.abort();

    // The next operator finds everything done.
    let metrics = Metrics::new();
    let began = Instant::now();
    let operator = start(client, &settings(), &metrics).await?;
    let objects = u64::try_from(count + CLUSTERS)?;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let all = tokio::time::timeout(PHASE, async {
        while reconciles_of(&metrics)?.values().sum::<u64>() < objects {
            ticks.tick().await;
        }
        anyhow::Ok(())
    });
    all.await.context("not every object was reconciled")??;
    report_limit("a restarted operator", began.elapsed())?;
    at_rest(&metrics, rest).await?;
    ensure!(metrics.writes() == 0, "a restarted operator wrote");
    operator.abort();
    Ok(())
}

/// Prints how long the operator took, and checks the limit.
fn report_limit(what: &str, took: Duration) -> anyhow::Result<()> {
    println!("{what}: reconciled after {:.1} s", took.as_secs_f64());
    ensure!(took <= CONVERGED, "{what}: {took:?} is over {CONVERGED:?}");
    Ok(())
}

/// Nothing is written and nothing is reconciled for that time. Leases are not counted.
async fn at_rest(metrics: &Metrics, time: Duration) -> anyhow::Result<()> {
    quiet_within(metrics, PHASE).await?;
    // The last reconciles look at what was just written.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = (metrics.writes(), reconciles_of(metrics)?);
    tokio::time::sleep(time).await;
    let after = (metrics.writes(), reconciles_of(metrics)?);
    ensure!(
        after == before,
        "writes and reconciles within {time:?} at rest: {before:?} became {after:?}"
    );
    Ok(())
}

/// Waits until the check passes: on a busy machine an operator may write nothing for a second before it has done
/// everything.
async fn until<F>(check: impl Fn() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        match check().await {
            Err(error) if started.elapsed() > PHASE => return Err(error),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
    }
}

/// Runs `work` for every number below `count`, many at a time.
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

fn cluster_name(cluster: usize) -> String {
    format!("kv{cluster}")
}

/// The clusters with a pool pod on the node.
fn clusters_on(node: usize) -> impl Iterator<Item = usize> {
    (0..POOLS_PER_NODE).map(move |pool| (node + pool) % CLUSTERS)
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
    ready(&api, &agent, &ip).await
}

async fn ready(api: &Api<Pod>, pod: &str, ip: &str) -> anyhow::Result<()> {
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    api.patch_status(pod, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn make_cluster(client: &Client, cluster: usize) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": MooncakeCluster::api_version(&()),
        "kind": "MooncakeCluster",
        "metadata": {"name": cluster_name(cluster), "namespace": TEAM},
        "spec": {"pools": [{"name": "default", "size": "64Mi"}]},
    });
    let api = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    api.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

/// A ready master, whose admin port refuses connections.
async fn make_master(client: &Client, cluster: usize) -> anyhow::Result<()> {
    let api = Api::<Pod>::namespaced(client.clone(), TEAM);
    let master = format!("{}-master-1", cluster_name(cluster));
    let pod = json!({
        "metadata": {
            "name": master,
            "labels": {
                "mooncake.io/cluster": cluster_name(cluster), "mooncake.io/component": "master",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": master,
                "uid": format!("00000000-0000-0000-0000-{cluster:012}"), "controller": true,
            }],
        },
        "spec": {"nodeName": name(cluster), "containers": [{"name": "master", "image": "m"}]},
    });
    api.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    ready(&api, &master, "127.0.0.1").await
}

fn set_name(cluster: usize) -> String {
    format!("{}-pool-default", cluster_name(cluster))
}

fn pod_name(cluster: usize, node: usize) -> String {
    format!("{}-{node:04}", set_name(cluster))
}

async fn make_pool_pods(client: &Client, node: usize) -> anyhow::Result<()> {
    for cluster in clusters_on(node) {
        let sets = Api::<DaemonSet>::namespaced(client.clone(), TEAM);
        let set = sets.get(&set_name(cluster)).await?;
        let mut pod = json!(set.spec.as_ref().map(|spec| &spec.template));
        pod["metadata"]["name"] = json!(pod_name(cluster, node));
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": set.name_any(), "uid": set.uid(),
            "controller": true,
        }]);
        pod["spec"]["nodeName"] = json!(name(node));
        Api::<Pod>::namespaced(client.clone(), TEAM)
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
    }
    Ok(())
}

/// The counts of the DaemonSet controller.
async fn count_pods(client: &Client, cluster: usize, pods: usize) -> anyhow::Result<()> {
    let sets = Api::<DaemonSet>::namespaced(client.clone(), TEAM);
    let set = sets.get(&set_name(cluster)).await?;
    let status = json!({"status": {
        "observedGeneration": set.metadata.generation,
        "desiredNumberScheduled": pods, "currentNumberScheduled": pods,
        "numberMisscheduled": 0, "numberReady": pods,
    }});
    sets.patch_status(
        &set_name(cluster),
        &PatchParams::default(),
        &Patch::Merge(status),
    )
    .await?;
    Ok(())
}

/// Result of the checks of one round.
#[derive(Clone, Copy)]
enum Verdict {
    Passed,
    Failed,
}

/// Writes a status of full size as the agent, which serves every assigned pool pod.
async fn report(client: &Client, node: usize, verdict: Verdict) -> anyhow::Result<()> {
    let (status, reason) = match verdict {
        Verdict::Passed => ("True", "AsExpected"),
        Verdict::Failed => ("False", "PortNotActive"),
    };
    let at = "2026-01-01T00:00:00Z";
    let findings: Vec<Value> = (0..FINDINGS)
        .map(|port| {
            json!({
                "check": "PortActive", "verdict": "Fail", "reason": "PortNotActive", "since": at,
                "subject": format!("mlx5_{port} port 1"), "message": "w".repeat(200),
            })
        })
        .collect();
    let nodes = Api::<MooncakeNode>::all(client.clone());
    let spec = nodes.get(&name(node)).await?.spec;
    ensure!(spec.pools.len() == POOLS_PER_NODE, "{:?}", spec.pools);
    let pools: Vec<Value> = spec
        .pools
        .iter()
        .map(|pool| {
            json!({
                "podUid": pool.pod_uid, "podName": pool.pod_name, "namespace": pool.namespace,
                "state": "Serving", "reason": "AsExpected", "message": "serving", "mounted": "64Mi",
                "masterPodUid": pool.master.as_ref().map(|master| &master.pod_uid),
                "endpoint": "10.0.0.1:12001", "segments": ["kv.default.gpu.0"],
            })
        })
        .collect();
    let body = json!({
        "apiVersion": MooncakeNode::api_version(&()),
        "kind": MooncakeNode::kind(&()),
        "metadata": {"name": name(node)},
        "status": {
            "nodeUid": spec.node_uid,
            "bootId": spec.boot_id,
            "findings": findings,
            "pools": pools,
            "conditions": [{
                "type": "NodeHealthy", "status": status, "reason": reason,
                "message": format!("{reason} message"), "lastTransitionTime": at,
            }],
        },
    });
    let agent = PatchParams::apply("mooncake-agent").force();
    nodes
        .patch_status(&name(node), &agent, &Patch::Apply(body))
        .await?;
    Ok(())
}

/// Waits until the operator has made `wanted` writes.
async fn written(metrics: &Metrics, wanted: usize) -> anyhow::Result<()> {
    let wanted = u64::try_from(wanted)?;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let waited = tokio::time::timeout(PHASE, async {
        while metrics.writes() < wanted {
            ticks.tick().await;
        }
    });
    let progress = || format!("{} of {wanted} writes in {PHASE:?}", metrics.writes());
    waited.await.with_context(progress)
}

/// Every node has its MooncakeNode, four neighbours in both directions and a live agent.
async fn all_alive(client: &Client, count: usize) -> anyhow::Result<()> {
    let nodes = Api::<MooncakeNode>::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await?;
    ensure!(nodes.items.len() == count, "{} objects", nodes.items.len());
    for node in nodes {
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        let conditions: Vec<_> = conditions.cloned().collect();
        let alive = is_true(&conditions, ConditionType::AgentAlive);
        let around = (node.spec.probes.len(), node.spec.probers.len());
        ensure!(alive && around == (4, 4), "{node:?}");
    }
    Ok(())
}

/// Every node knows its pool pods.
async fn all_assigned(client: &Client, count: usize) -> anyhow::Result<()> {
    let nodes = Api::<MooncakeNode>::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await?;
    ensure!(nodes.items.len() == count, "{} objects", nodes.items.len());
    for node in nodes {
        ensure!(node.spec.pools.len() == POOLS_PER_NODE, "{node:?}");
    }
    Ok(())
}

/// Every cluster is Ready.
async fn all_ready(client: &Client) -> anyhow::Result<()> {
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    let clusters = clusters.list(&ListParams::default()).await?;
    ensure!(clusters.items.len() == CLUSTERS);
    for cluster in clusters {
        let status = cluster.status.clone().unwrap_or_default();
        let ready = find(&status.conditions, ConditionType::Ready);
        ensure!(
            ready.is_some_and(|ready| ready.status == "True"),
            "{cluster:?}"
        );
    }
    Ok(())
}

/// Resident memory of this process, in bytes.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?
        .parse()?;
    Ok(kib << 10)
}

//! The transport of a cluster that prefers RDMA, from the proofs of its nodes and the injected pods that run.

use std::time::{Duration, Instant};

use anyhow::ensure;
use crds::Reason;
use crds::cluster::Transport;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::harness::{Harness, SETTLING, eventually};
use super::server::Server;

/// The decided transport, the one that is assigned to the pool pod of `n2`, and whether pods can claim devices.
async fn decided(harness: &Harness) -> anyhow::Result<(Option<Transport>, Transport, bool)> {
    let status = harness.cluster().await?.status.unwrap_or_default();
    let report = harness.report("n2").await?;
    let assigned = report.spec.pools.first().and_then(|pool| pool.transport);
    let templates = harness.api::<ResourceClaimTemplate>();
    Ok((
        status.transport.and_then(|word| word.known()),
        assigned
            .and_then(|word| word.known())
            .unwrap_or(Transport::Tcp),
        templates.get_opt("kv-hca").await?.is_some(),
    ))
}

async fn becomes(harness: &Harness, wanted: Transport) -> anyhow::Result<()> {
    eventually(&format!("{wanted:?} and its claims"), || async {
        let claims = wanted == Transport::Rdma;
        Ok(decided(harness).await? == (Some(wanted), wanted, claims))
    })
    .await
}

async fn reports(harness: &Harness, words: &[&str]) -> anyhow::Result<()> {
    eventually(&format!("TransportsReady with {words:?}"), || async {
        let condition = harness.condition("TransportsReady").await?;
        anyhow::ensure!(
            words.iter().all(|word| condition.contains(word)),
            "{condition}"
        );
        Ok(true)
    })
    .await
}

async fn inject(harness: &Harness, name: &str, transport: Transport) -> anyhow::Result<()> {
    let mut arguments = vec!["hold"];
    if transport == Transport::Rdma {
        arguments.push("--transport=rdma");
    }
    let pod = json!({
        "metadata": {"name": name, "labels": {
            (crds::names::LABEL_INJECT): "kv", (crds::names::LABEL_ACCESS): "kv",
        }},
        "spec": {
            "nodeName": "n1", "containers": [{"name": "main", "image": "x"}],
            "initContainers": [{"name": "mooncake-gate", "image": "x", "args": arguments}],
        },
    });
    let pods = harness.api::<Pod>();
    let pod = serde_json::from_value(pod)?;
    pods.create(&PostParams::default(), &pod).await?;
    Ok(())
}

async fn remove(harness: &Harness, name: &str) -> anyhow::Result<()> {
    let now = DeleteParams::default().grace_period(0);
    harness.api::<Pod>().delete(name, &now).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn preferred_rdma_follows_the_proofs_of_every_node_while_no_injected_pod_uses_it()
-> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    let class = json!({"metadata": {"name": crds::names::DEVICE_CLASS}, "spec": {}});
    let classes = harness.cluster_wide::<DeviceClass>();
    let class: DeviceClass = serde_json::from_value(class)?;
    classes.create(&PostParams::default(), &class).await?;
    harness.ready().await?;
    reports(&harness, &["True AsExpected", "no storing node"]).await?;

    harness.report_port("n1", None).await?;
    let unknown = "n2 (its agent has not checked the node yet)";
    reports(&harness, &["True TransportDegraded", unknown]).await?;
    harness
        .report_check("n2", Reason::AsExpected, "11 checks passed")
        .await?;
    reports(&harness, &["True TransportDegraded", "n2 (no RDMA device)"]).await?;
    becomes(&harness, Transport::Tcp).await?;
    harness.report_port("n2", None).await?;
    becomes(&harness, Transport::Rdma).await?;
    reports(&harness, &["False Progressing", "still served over TCP"]).await?;
    harness.ready().await?;
    reports(&harness, &["True AsExpected", "over which 2 pool pods"]).await?;

    // A running pod on RDMA holds the transport, and no proof that comes or goes changes it.
    inject(&harness, "engine", Transport::Rdma).await?;
    harness.report_port("n2", Some("PortNotActive")).await?;
    let held = [
        "True TransportDegraded",
        "n2 (mlx5_0 port 1: PortNotActive)",
        "changes to TCP when the last of 1 injected pods with RDMA has ended: team/engine",
    ];
    reports(&harness, &held).await?;
    let before = harness.quiet().await?;
    harness.restart_operator().await?;
    harness.reconciled_twice().await?;
    ensure!(
        harness.metrics.writes() == before,
        "writes without a change"
    );
    let now = decided(&harness).await?;
    let over_rdma = (Some(Transport::Rdma), Transport::Rdma, true);
    ensure!(now == over_rdma, "{now:?}");
    remove(&harness, "engine").await?;
    becomes(&harness, Transport::Tcp).await?;
    harness.ready().await?;

    // Pods with TCP are served beside RDMA, so they hold nothing. A fallback does, until RDMA was usable for some time, which a
    // new operator knows from the status.
    inject(&harness, "over-tcp", Transport::Tcp).await?;
    let since = Instant::now();
    harness.report_port("n2", None).await?;
    let waits = [
        "True TransportDegraded",
        "although every storing node",
        "This changes to RDMA at",
    ];
    reports(&harness, &waits).await?;
    let usable = harness.condition("RdmaUsable").await?;
    ensure!(usable.starts_with("True Progressing"), "{usable}");
    harness.restart_operator().await?;
    becomes(&harness, Transport::Rdma).await?;
    // Times are stored in whole seconds.
    let waited = since.elapsed() + Duration::from_secs(1);
    ensure!(waited >= SETTLING, "{waited:?}");
    let usable = harness.condition("RdmaUsable").await?;
    ensure!(usable.is_empty(), "{usable}");
    harness.ready().await?;
    reports(&harness, &["True AsExpected", "over which 2 pool pods"]).await?;

    // A pod that was created with an older decision than the last one takes RDMA back.
    harness.report_port("n2", Some("PortNotActive")).await?;
    becomes(&harness, Transport::Tcp).await?;
    inject(&harness, "late", Transport::Rdma).await?;
    becomes(&harness, Transport::Rdma).await?;
    reports(
        &harness,
        &["changes to TCP when the last of 1", "team/late"],
    )
    .await?;
    remove(&harness, "late").await?;
    becomes(&harness, Transport::Tcp).await?;
    harness.report_port("n2", None).await?;
    becomes(&harness, Transport::Rdma).await?;

    // The spec goes before the pods.
    inject(&harness, "engine", Transport::Rdma).await?;
    harness
        .change_spec(json!({"transports": {"rdma": "Forbid"}}))
        .await?;
    becomes(&harness, Transport::Tcp).await
}

//! The manifests of docs/examples run with the stacks' own connectors: a first replica saves to the pool, a
//! second one loads and compares.

use super::{stack_image, stock_operations};
use anyhow::{Context, ensure};
use crds::cluster::MasterType;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use local_cluster::images::MOONCAKE_STOCK;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Pool, Product, Seen, eventually};
use mooncake_e2e::settings::TestSettings;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

const CLUSTER: &str = include_str!("../../../docs/examples/cluster.yaml");
const PYTHON: &str = include_str!("../../../docs/examples/python-client.yaml");
/// A Deployment's name, its container and its manifest.
const SERVERS: [(&str, &str, &str); 3] = [
    (
        "sglang",
        "sglang",
        include_str!("../../../docs/examples/sglang.yaml"),
    ),
    (
        "vllm",
        "vllm",
        include_str!("../../../docs/examples/vllm.yaml"),
    ),
    (
        "lmcache",
        "vllm",
        include_str!("../../../docs/examples/lmcache.yaml"),
    ),
];
const WAIT: Duration = Duration::from_secs(120);
/// Pages, blocks or chunks that a server saves and loads: `BLOCKS` of server.py.
const BLOCKS: u64 = 8;

/// What a server's connector did.
#[derive(Debug, Deserialize)]
struct Report {
    /// Blocks that were in the pool when the server started.
    found: u64,
    saved: u64,
    loaded: u64,
    /// Bytes that were loaded.
    bytes: u64,
    /// Bytes that differ from those that were saved.
    wrong: u64,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn every_example_moves_bytes_through_the_pool_with_the_stacks_own_connector()
-> anyhow::Result<()> {
    let settings = TestSettings::read().local;
    let archive = tokio::task::spawn_blocking(move || stack_image::archive(&settings)).await??;
    let product = Product::shared().await?;
    product
        .cluster
        .with(move |cluster| cluster.load_image(&archive))
        .await?;
    product
        .run("examples", async move |_, namespace| {
            namespace.apply(CLUSTER).await?;
            let pool = Pool {
                namespace: namespace.clone(),
                name: "kv".to_owned(),
            };
            pool.ready(READY).await?;
            let object = pool.object().await?;
            let kind = object.spec.master.kind;
            ensure!(
                kind == Some(MasterType::BuiltIn),
                "the new cluster has {kind:?}"
            );
            namespace.apply(&runnable(PYTHON, MOONCAKE_STOCK)?).await?;
            for (_, _, manifest) in SERVERS {
                namespace
                    .apply(&runnable(manifest, stack_image::STACKS)?)
                    .await?;
            }
            for (name, container, _) in SERVERS {
                let first = report(&namespace, name, container, &[]).await?;
                let saved = &first.1;
                ensure!(saved.found == 0 && saved.saved == BLOCKS, "{first:?}");
                namespace
                    .kubectl(&["scale", "deployment", name, "--replicas=2"])
                    .await?;
                let second = report(&namespace, name, container, &[&first.0]).await?;
                println!("{name}: {first:?}, then {second:?}");
                let loaded = &second.1;
                ensure!(loaded.found == BLOCKS && loaded.saved == 0, "{second:?}");
                for report in [saved, loaded] {
                    ensure!(report.loaded == BLOCKS && report.wrong == 0, "{report:?}");
                    ensure!(report.bytes > 1 << 20, "{report:?}");
                }
            }
            let ended = ["--for=condition=Complete", "--timeout=60s"];
            namespace
                .kubectl(&["wait", "job/python-client", ended[0], ended[1]])
                .await?;
            println!(
                "{}",
                namespace.kubectl(&["logs", "job/python-client"]).await?
            );
            // Here, because no other image has torch.
            stock_operations::tensors_are_the_same(&namespace, stack_image::STACKS).await
        })
        .await
}

/// The manifest with another image, and without the GPU that it requests.
fn runnable(manifest: &str, image: &str) -> anyhow::Result<String> {
    let mut documents = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(manifest) {
        let mut object = Value::deserialize(document)?;
        let containers = object.pointer_mut("/spec/template/spec/containers");
        for container in containers
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            container["image"] = json!(image);
            // Without a request a container gets next to no time on a busy machine.
            container["resources"] = json!({"requests": {"cpu": "100m"}});
        }
        documents.push(object.to_string());
    }
    Ok(documents.join("\n---\n"))
}

/// Waits for a Ready pod of the Deployment besides `known`; returns its name and its server's report.
async fn report(
    namespace: &Namespace,
    deployment: &str,
    container: &str,
    known: &[&str],
) -> anyhow::Result<(String, Report)> {
    let pods = namespace.api::<Pod>();
    let selector = ListParams::default().labels(&format!("app={deployment}"));
    let name = eventually(format!("a pod of {deployment}"), WAIT, || async {
        let names: Vec<_> = pods
            .list(&selector)
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        let new = names.iter().find(|name| !known.contains(&name.as_str()));
        Ok(Seen::when(new.cloned(), names.join(", ")))
    })
    .await?;
    let ready = namespace.pod_ready(&name, WAIT).await;
    let log = namespace.logs(&name, container).await?;
    ready.with_context(|| log.clone())?;
    let report = log
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok());
    let report = report.with_context(|| format!("no report in the log of {name}:\n{log}"))?;
    Ok((name, report))
}

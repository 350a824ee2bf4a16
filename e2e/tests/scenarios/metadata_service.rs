//! Metadata services by HTTP and etcd: stock pods and pools find each other through them, and a service that is missing has a name.

use super::stock_engines;
use anyhow::ensure;
use crds::{Reason, names};
use local_cluster::binaries::Binaries;
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, metadata,
};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(180);
/// Time limit of one request of a pod.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
const ETCD: &str = include_str!("../../manifests/etcd.yaml");
const KEYS: u32 = 64;

/// A stock pod puts keys, and one on the other node reads them.
async fn moves_data(namespace: &Namespace) -> anyhow::Result<()> {
    let written = StockPod::new("writer", StockWork::put(KEYS, MIB))
        .node("n1")
        .inject("kv")
        .run(namespace, WAIT)
        .await?;
    ensure!(written.done == u64::from(KEYS), "{written:?}");
    reads(namespace, "reader").await
}

/// A new stock pod reads all keys.
async fn reads(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let read = StockPod::new(pod, StockWork::verify(KEYS, MIB))
        .node("n2")
        .inject("kv")
        .run(namespace, WAIT)
        .await?;
    ensure!(read.done == u64::from(KEYS) && read.wrong == 0, "{read:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn stock_pods_and_pools_find_each_other_by_the_metadata_service_of_the_master()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("metadata", async move |_, namespace| {
            let spec =
                "{pools: [{name: default, size: 256Mi, drainSeconds: 2}], metadata: {type: HTTP}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            pool.mounted(2, WAIT).await?;
            moves_data(&namespace).await?;
            stock_engines::exchange(&namespace).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_missing_metadata_service_is_named_and_pools_serve_when_it_is_there() -> anyhow::Result<()>
{
    let product = Product::shared().await?;
    product
        .run("no-metadata", async move |_, namespace| {
            let url = metadata::announce(&namespace).await?;
            let pool = Pool::apply(&namespace, "kv", &metadata::spec(&url)).await?;
            println!("{}", metadata::fails(&pool, &[&url], READY).await?);
            let missing = Reason::MetadataUnreachable;
            eventually("an Event about it", WAIT, || async {
                let about = ("MooncakeCluster", "kv");
                let events = namespace.events(about, missing).await?;
                Ok(Seen::when((!events.is_empty()).then_some(()), "none"))
            })
            .await?;
            namespace.apply(metadata::SERVER).await?;
            metadata::works(&pool, READY).await?;
            pool.ready(READY).await?;
            pool.mounted(2, WAIT).await?;
            moves_data(&namespace).await
        })
        .await
}

/// Sends a request for a key and prints the status.
const REQUEST: &str = "
import sys, urllib.error, urllib.parse, urllib.request
method, url, key = sys.argv[1:]
url = url + '?key=' + urllib.parse.quote(key, safe='')
body = b'{}' if method == 'PUT' else None
try:
    print(urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
";

/// Sends a request to the metadata service of the master, and returns the status.
async fn status(
    namespace: &Namespace,
    pod: &str,
    method: &str,
    key: &str,
) -> anyhow::Result<String> {
    let url = names::metadata_endpoint("kv", &namespace.name);
    let words = ["python3", "-c", REQUEST, method, &url, key];
    let printed = namespace.exec(pod, "main", &words, REQUEST_LIMIT).await?;
    Ok(printed.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_pod_changes_no_metadata_of_another_one_and_its_own_is_removed_after_its_end()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("own-metadata", async move |_, namespace| {
            let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 2}], metadata: {type: HTTP}, master: {type: BuiltIn}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            moves_data(&namespace).await?;
            let hostile = StockPod::new("hostile", StockWork::Idle);
            hostile.node("n1").inject("kv").start(&namespace).await?;
            let other = StockPod::new("other", StockWork::Idle);
            other.node("n2").inject("kv").start(&namespace).await?;
            namespace.pod_ready("hostile", WAIT).await?;
            namespace.pod_ready("other", WAIT).await?;

            let address = ip(&pool.pod_on("n1").await?)?;
            let pools = ["ram", "rpc_meta"].map(|kind| format!("mooncake/{kind}/{address}:12001"));
            for key in &pools {
                for method in ["PUT", "DELETE"] {
                    let answer = status(&namespace, "hostile", method, key).await?;
                    ensure!(answer == "403", "{method} {key}: {answer}");
                }
            }
            let own = "mooncake/ram/hostile:17000";
            let answer = status(&namespace, "hostile", "PUT", own).await?;
            ensure!(answer == "200", "its own key: {answer}");
            let answer = status(&namespace, "other", "PUT", own).await?;
            ensure!(answer == "403", "the key of the other pod: {answer}");

            let words = ["delete", "pod", "hostile", "--grace-period=0", "--force"];
            namespace.kubectl(&words).await?;
            let gone = Instant::now();
            eventually("its key is removed", WAIT, || async {
                let answer = status(&namespace, "other", "GET", own).await?;
                Ok(Seen::when((answer == "404").then_some(()), answer))
            })
            .await?;
            println!("its key was removed {:.0} s after the pod", gone.elapsed().as_secs_f64());
            ensure!(gone.elapsed() > Duration::from_secs(50), "{:?}", gone.elapsed());
            for key in &pools {
                let answer = status(&namespace, "other", "GET", key).await?;
                ensure!(answer == "200", "{key}: {answer}");
            }
            reads(&namespace, "reader-afterwards").await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_etcd_that_is_missing_is_named_and_one_that_comes_back_empty_is_filled_again()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("etcd", async move |product, namespace| {
            let settings = product.settings.clone();
            let binaries = tokio::task::spawn_blocking(move || Binaries::get(&settings)).await??;
            let endpoint = format!("etcd.{}.svc:2379", namespace.name);
            let spec = format!(
                "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], metadata: {{type: Etcd, endpoints: ['{endpoint}']}}}}"
            );
            let pool = Pool::apply(&namespace, "kv", &spec).await?;
            let folder = binaries.kubernetes.display().to_string();
            namespace.apply(&ETCD.replace("FOLDER", &folder)).await?;
            pool.ready(READY).await?;
            pool.mounted(2, WAIT).await?;
            moves_data(&namespace).await?;
            stock_engines::exchange(&namespace).await?;
            metadata::works(&pool, READY).await?;

            scale(&namespace, 0).await?;
            println!("{}", metadata::fails(&pool, &[&endpoint], READY).await?);

            // Its data ended with its pod.
            scale(&namespace, 1).await?;
            metadata::works(&pool, READY).await?;
            reads(&namespace, "reader-of-refilled").await
        })
        .await
}

async fn scale(namespace: &Namespace, replicas: u32) -> anyhow::Result<String> {
    let replicas = format!("--replicas={replicas}");
    namespace
        .kubectl(&["scale", "deployment/etcd", &replicas])
        .await
}

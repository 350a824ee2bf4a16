//! Faults of metadata services that pools use: each is named for both nodes soon, nothing mounted is lost meanwhile, and the
//! condition ends with the fault.

use anyhow::{Context as _, ensure};
use crds::ConditionType;
use local_cluster::binaries::Binaries;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, metadata,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const ETCD: &str = include_str!("../../manifests/etcd-members.yaml");
const REQUESTS: &str = include_str!("../../stock/etcd_requests.py");

const MIB: u64 = 1 << 20;
const KEYS: u32 = 32;
const WAIT: Duration = Duration::from_secs(180);
/// Time limit of one command in a pod.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// In which time a fault or its end is in the status of the MooncakeCluster: 10 s by design, and three times that beside
/// other load.
const BOUND: Duration = Duration::from_secs(30);
/// How long a fault that must not be reported lasts: four checks of a pool pod.
const UNNOTICED: Duration = Duration::from_secs(12);

/// Where the faults are seen.
struct Stage<'a> {
    namespace: &'a Namespace,
    pool: &'a Pool,
}

impl Stage<'_> {
    /// Waits until the service fails on both nodes for these causes.
    async fn named(&self, fault: &str, causes: &[&str]) -> anyhow::Result<()> {
        let began = Instant::now();
        let message = metadata::fails(self.pool, causes, WAIT).await?;
        took(&format!("{fault} was named"), began)?;
        println!("{message}");
        Ok(())
    }

    /// Waits until the service works on both nodes.
    async fn cleared(&self, fault: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        metadata::works(self.pool, WAIT).await?;
        took(&format!("{fault} was cleared"), began)
    }

    /// Status of the condition, and since when.
    async fn condition(&self) -> anyhow::Result<String> {
        let kind = ConditionType::MetadataReady;
        let now = self.pool.condition(kind, "any", WAIT, |_| true).await?;
        Ok(format!(
            "{} since {:?}",
            now.status, now.last_transition_time
        ))
    }

    /// A stock pod puts keys.
    async fn puts(&self, pod: &str, prefix: &str) -> anyhow::Result<()> {
        let work = StockWork::Put {
            keys: KEYS,
            bytes: MIB,
            prefix: prefix.to_owned(),
        };
        let put = StockPod::new(pod, work)
            .node("n1")
            .inject("kv")
            .run(self.namespace, WAIT)
            .await?;
        ensure!(put.done == u64::from(KEYS), "{put:?}");
        Ok(())
    }

    /// A new stock pod reads all keys.
    async fn reads(&self, pod: &str, prefix: &str) -> anyhow::Result<()> {
        let work = StockWork::Verify {
            keys: KEYS,
            bytes: MIB,
            prefix: prefix.to_owned(),
        };
        let read = StockPod::new(pod, work)
            .node("n2")
            .inject("kv")
            .run(self.namespace, WAIT)
            .await?;
        ensure!(read.done == u64::from(KEYS) && read.wrong == 0, "{read:?}");
        Ok(())
    }

    /// Runs a shell command in a pod.
    async fn shell(&self, pod: &str, container: &str, command: &str) -> anyhow::Result<String> {
        self.namespace
            .exec(pod, container, &["sh", "-c", command], COMMAND_LIMIT)
            .await
    }

    async fn on_members(&self, members: &[u32], command: &str) -> anyhow::Result<()> {
        for member in members {
            self.shell(&format!("etcd-{member}"), "etcd", command)
                .await?;
        }
        Ok(())
    }

    /// Sends requests to the etcd from a pod of a stranger.
    async fn request(
        &self,
        action: &str,
        prefix: &str,
        endpoints: &[String],
    ) -> anyhow::Result<String> {
        let mut words = vec!["python3", "-c", REQUESTS, action, prefix];
        words.extend(endpoints.iter().map(String::as_str));
        self.namespace
            .exec("stranger", "main", &words, COMMAND_LIMIT)
            .await
    }

    /// What the pools have published, without the times.
    async fn published(
        &self,
        prefix: &str,
        endpoints: &[String],
    ) -> anyhow::Result<BTreeMap<String, Value>> {
        let shown = self.request("show", prefix, endpoints).await?;
        let pairs: BTreeMap<String, String> = serde_json::from_str(&shown)?;
        pairs
            .into_iter()
            .map(|(key, value)| {
                let mut value: Value = serde_json::from_str(&value)?;
                if let Some(fields) = value.as_object_mut() {
                    fields.remove("timestamp");
                }
                Ok((key, value))
            })
            .collect()
    }
}

/// Prints a duration, and checks its bound.
fn took(what: &str, began: Instant) -> anyhow::Result<()> {
    let took = began.elapsed();
    println!("{what} after {:.1} s", took.as_secs_f64());
    ensure!(took < BOUND, "{what}: {took:?}");
    Ok(())
}

const HOLD: &str = "touch /data/hold && kill $(cat /data/pid)";
const RELEASE: &str = "rm /data/hold";
const STOP: &str = "kill -STOP $(cat /data/pid)";
const CONTINUE: &str = "kill -CONT $(cat /data/pid)";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn each_fault_of_an_etcd_with_three_members_is_named_and_ends_with_its_cause()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("etcd-faults", async move |product, namespace| {
            let settings = product.settings.clone();
            let binaries = tokio::task::spawn_blocking(move || Binaries::get(&settings)).await??;
            let folder = binaries.kubernetes.display().to_string();
            namespace.apply(&ETCD.replace("FOLDER", &folder)).await?;
            let endpoints: Vec<String> = (0..3)
                .map(|member| format!("etcd-{member}.etcd.{}.svc:2379", namespace.name))
                .collect();
            let quoted: Vec<String> = endpoints.iter().map(|at| format!("'{at}'")).collect();
            let spec = format!(
                "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], metadata: {{type: Etcd, endpoints: [{}]}}}}",
                quoted.join(", ")
            );
            let pool = Pool::apply(&namespace, "kv", &spec).await?;
            let stranger = StockPod::new("stranger", StockWork::Idle);
            stranger.node("n1").start(&namespace).await?;
            pool.ready(READY).await?;
            pool.mounted(2, WAIT).await?;
            namespace.pod_ready("stranger", WAIT).await?;
            let stage = Stage {
                namespace: &namespace,
                pool: &pool,
            };
            stage.cleared("the start").await?;
            stage.puts("writer", "first").await?;

            one_of_three(&stage).await?;

            stage.on_members(&[1], HOLD).await?;
            stage.named("a lost quorum", &["no quorum"]).await?;
            stage.on_members(&[0, 1], RELEASE).await?;
            stage.cleared("a lost quorum").await?;

            stage.on_members(&[0, 1, 2], STOP).await?;
            stage
                .named("an etcd that hangs", &["none of its endpoints works", "no complete answer"])
                .await?;
            stage.on_members(&[0, 1, 2], CONTINUE).await?;
            stage.cleared("an etcd that hangs").await?;

            let foreign = "other/";
            stage.request("fill", foreign, &endpoints[..1]).await?;
            stage.named("a full database", &["alarm NOSPACE"]).await?;
            stage.request("free", foreign, &endpoints).await?;
            stage.cleared("a full database").await?;

            repaired(&stage, &namespace, &endpoints[..1]).await?;
            stage.reads("reader", "first").await
        })
        .await
}

/// While one member of three is gone, nothing is reported, and stock pods that start find the pools.
async fn one_of_three(stage: &Stage<'_>) -> anyhow::Result<()> {
    stage.on_members(&[0], HOLD).await?;
    let began = Instant::now();
    let before = stage.condition().await?;
    stage.reads("reader-of-two-members", "first").await?;
    stage.puts("writer-of-two-members", "second").await?;
    while began.elapsed() < UNNOTICED {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let after = stage.condition().await?;
    ensure!(before == after, "{before} became {after}");
    Ok(())
}

/// What a stranger overwrites or removes is there again soon.
async fn repaired(
    stage: &Stage<'_>,
    namespace: &Namespace,
    endpoint: &[String],
) -> anyhow::Result<()> {
    let prefix = format!("mooncake/{}/kv/", namespace.name);
    let before = stage.published(&prefix, endpoint).await?;
    let pools: Vec<&String> = before
        .keys()
        .filter(|key| key.ends_with(":12001"))
        .collect();
    ensure!(pools.len() == 4, "{before:?}");
    for action in ["overwrite", "remove"] {
        stage.request(action, &prefix, endpoint).await?;
        let began = Instant::now();
        eventually(
            format!("what the pools published, after {action}"),
            WAIT,
            || async {
                let now = stage.published(&prefix, endpoint).await?;
                let same = pools.iter().all(|key| now.get(*key) == before.get(*key));
                Ok(Seen::when(same.then_some(()), format!("{now:?}")))
            },
        )
        .await?;
        took(
            &format!("keys that a stranger changed ({action}) were repaired"),
            began,
        )?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_metadata_server_that_hangs_or_ends_is_named_and_an_empty_one_is_filled_again()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("http-faults", async move |_, namespace| {
            let url = metadata::announce(&namespace).await?;
            namespace.apply(metadata::SERVER).await?;
            let pool = Pool::apply(&namespace, "kv", &metadata::spec(&url)).await?;
            pool.ready(READY).await?;
            pool.mounted(2, WAIT).await?;
            let stage = Stage {
                namespace: &namespace,
                pool: &pool,
            };
            stage.cleared("the start").await?;
            stage.puts("writer", "first").await?;

            let server = server(&namespace).await?;
            let signal = |signal: &str| format!("kill -{signal} $(cat /tmp/pid)");
            stage.shell(&server, "master", &signal("STOP")).await?;
            stage
                .named("a server that hangs", &["no complete answer"])
                .await?;
            stage.shell(&server, "master", &signal("CONT")).await?;
            stage.cleared("a server that hangs").await?;

            scale(&namespace, 0).await?;
            stage
                .named("a server that has ended", &["ECONNREFUSED"])
                .await?;
            // Its data ended with it.
            scale(&namespace, 1).await?;
            namespace
                .cluster
                .rolled_out(&namespace.name, "metadata")
                .await?;
            stage.cleared("a server that has ended").await?;
            stage.reads("reader", "first").await
        })
        .await
}

async fn scale(namespace: &Namespace, replicas: u32) -> anyhow::Result<String> {
    let replicas = format!("--replicas={replicas}");
    let words = ["scale", "deployment/metadata", &replicas];
    namespace.kubectl(&words).await
}

/// Name of the server's pod.
async fn server(namespace: &Namespace) -> anyhow::Result<String> {
    let words = ["get", "pods", "--selector=app=metadata", "--output=name"];
    let name = namespace.kubectl(&words).await?;
    let name = name.trim().strip_prefix("pod/");
    Ok(name.context("no pod of the server")?.to_owned())
}

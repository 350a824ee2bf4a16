//! Engine processes of pool pods: their state in the kernel of the node, and their end under load.

use anyhow::{Context, ensure};
use crds::names::POOL_DATA_PORT;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use local_cluster::Scale;
use mooncake_e2e::scenario::pool::ip;
use mooncake_e2e::scenario::processes::{self, Process};
use mooncake_e2e::scenario::{
    Effort, Load, Namespace, Pace, Pool, Product, Seen, eventually, master,
};
use rustix::process::Signal;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(90);
const NODES: [&str; 2] = ["n1", "n2"];
/// Longest operation of a load while engine processes are replaced, twice what was measured (docs/figures.md): an operation
/// waits for a new connection, and may meet more than one of the kills.
const STALL: Duration = Duration::from_secs(2);

/// The engine process of each pool pod.
pub(super) fn engine_processes(pool_pods: &[Pod]) -> anyhow::Result<Vec<Process>> {
    pool_pods.iter().map(engine_process).collect()
}

fn engine_process(pool_pod: &Pod) -> anyhow::Result<Process> {
    let all = processes::of_pod(pool_pod, "/engines/")?;
    let [one] = &all[..] else {
        anyhow::bail!(
            "pod {} has {} engine processes",
            pool_pod.name_any(),
            all.len()
        );
    };
    Ok(one.clone())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_engine_process_has_no_rights_and_a_cgroup_below_its_pool_pod() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("engine", async move |_, namespace| {
            let pool = Pool::small(&namespace).await?;
            pool.ready(SOON).await?;
            let mut cgroups = Vec::new();
            for pod in pool.pods().await? {
                let engine = engine_process(&pod)?;
                let pid = engine.recorded.pid;
                let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
                let field = |name: &str| -> anyhow::Result<String> {
                    let line = status.lines().find_map(|line| line.strip_prefix(name));
                    Ok(line
                        .with_context(|| format!("no {name}"))?
                        .trim()
                        .to_owned())
                };
                for name in ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
                    ensure!(field(name)?.trim_start_matches('0').is_empty(), "{status}");
                }
                ensure!(
                    field("Seccomp:")? == "2" && field("NoNewPrivs:")? == "1",
                    "{status}"
                );
                let uid: u32 = field("Uid:")?
                    .split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .parse()?;
                ensure!(uid > 65_535, "{status}");
                let uid = pod.uid().context("no UID")?;
                for line in fs::read_to_string(format!("/proc/{pid}/cgroup"))?.lines() {
                    let mut fields = line.splitn(3, ':').skip(1);
                    let (controllers, path) = (fields.next(), fields.next());
                    let (Some(controllers), Some(path)) = (controllers, path) else {
                        anyhow::bail!("{line}");
                    };
                    // A hierarchy without pods is not the kubelet's.
                    if !path.contains("kubepods") {
                        continue;
                    }
                    ensure!(path.ends_with(&format!("pod{uid}/engine")), "{line}");
                    let hybrid = Path::new("/sys/fs/cgroup/unified").is_dir();
                    let hierarchy = match controllers.strip_prefix("name=").unwrap_or(controllers) {
                        "" if hybrid => "unified",
                        name => name,
                    };
                    cgroups.push(
                        Path::new("/sys/fs/cgroup")
                            .join(hierarchy)
                            .join(path.trim_start_matches('/')),
                    );
                }
            }
            let memory = cgroups.iter().filter(|path| {
                let limits = ["memory.max", "memory.limit_in_bytes"];
                limits.iter().any(|limit| path.join(limit).exists())
            });
            ensure!(memory.count() == 2, "no limits of memory: {cgroups:?}");
            namespace.delete().await?;
            eventually("the cgroups are removed with their pods", SOON, || async {
                let left: Vec<_> = cgroups.iter().filter(|path| path.exists()).collect();
                Ok(Seen::when(
                    left.is_empty().then_some(()),
                    format!("{left:?}"),
                ))
            })
            .await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn killing_engine_processes_under_load_loses_no_key_and_no_segment() -> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let kills = product
        .scale
        .of("kills of an engine process under load", 4_u32, 20);
    let scale = product.scale;
    product
        .run("engines", async move |_, namespace| {
            let pool = Pool::small(&namespace).await?;
            let before = pool.mounted(2, SOON).await?;
            let master = pool.master_ip().await?;
            let mut loads = [
                Broken::start(&namespace, "n1").await?,
                Broken::start(&namespace, "n2").await?,
            ];
            for round in 0..kills {
                let node = NODES[usize::try_from(round)? % NODES.len()];
                let pod = pool.pod_on(node).await?;
                let address = ip(&pod)?;
                for load in &mut loads {
                    load.count(&namespace, &address).await?;
                }
                let engine = engine_process(&pod)?;
                engine.recorded.signal(Signal::KILL);
                eventually(
                    format!("another engine process on {node}"),
                    SOON,
                    || async {
                        let now = engine_process(&pod).ok().filter(|now| *now != engine);
                        Ok(Seen::when(now.map(drop), "none".to_owned()))
                    },
                )
                .await?;
                admits_again(&address).await?;
                let now = master::segments(&master).await?;
                ensure!(
                    now == before,
                    "kill {round}: the master had {before:?}, now {now:?}"
                );
            }
            pool.ready(SOON).await?;
            for load in loads {
                load.finish(&namespace, scale).await?;
            }
            Ok(())
        })
        .await
}

/// Waits until an engine process rejects our connection to a pool pod. Without one the kernel accepts the connection and
/// it stays silent.
async fn admits_again(ip: &str) -> anyhow::Result<()> {
    eventually(format!("an engine process behind {ip}"), SOON, || async {
        let mut stream = TcpStream::connect((ip, POOL_DATA_PORT)).await?;
        let read = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut [0; 1])).await;
        Ok(match read {
            Ok(Ok(0) | Err(_)) => Seen::Done(()),
            Ok(Ok(_)) => Seen::Never(anyhow::anyhow!("received a byte without access")),
            Err(_) => Seen::NotYet("connected, but silent".to_owned()),
        })
    })
    .await
}

/// A load and the connections that ends of engine processes have broken.
struct Broken {
    load: Load,
    started: Instant,
    /// Transfers that may fail.
    allowed: u64,
}

impl Broken {
    async fn start(namespace: &Namespace, node: &str) -> anyhow::Result<Self> {
        Ok(Self {
            load: Load::start(namespace, node, "kv", Effort::default()).await?,
            started: Instant::now(),
            allowed: 0,
        })
    }

    /// Counts the connections to a pool pod whose engine process is about to end. Each fails at most one transfer. A stock
    /// client opens no new one before all are broken: then one more transfer fails.
    async fn count(&mut self, namespace: &Namespace, pool_pod: &str) -> anyhow::Result<()> {
        let address = SocketAddr::new(pool_pod.parse()?, POOL_DATA_PORT);
        self.allowed += 1 + self.load.connections_to(namespace, address).await?;
        Ok(())
    }

    /// No key was lost, no more transfers failed than connections were broken, and the others went on.
    async fn finish(self, namespace: &Namespace, scale: Scale) -> anyhow::Result<()> {
        let report = self.load.finish(namespace).await?;
        report.nothing_lost()?;
        println!(
            "{}: {} failed, {} allowed",
            self.load.name(),
            report.failed,
            self.allowed
        );
        ensure!(
            report.failed <= self.allowed,
            "more failures than the {} that broken connections explain: {report:?}",
            self.allowed
        );
        let pace = Pace::of(scale, STALL);
        report.went_on(Effort::default(), self.started.elapsed(), pace)
    }
}

//! Engine processes that do not get the processor time that they need.

use super::engine_process::engine_processes;
use anyhow::{Context, ensure};
use crds::{CheckId, Reason};
use kube::ResourceExt;
use mooncake_e2e::scenario::{Effort, Load, Node, Pool, Product, Seen, eventually};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(90);
/// The check raises its finding after a minute and clears it after two, and the agent looks every 10 s. While other scenarios use the
/// processors, the limit stops the process for less than a tenth of the time, and the finding names those.
const REPORTED: Duration = Duration::from_secs(600);
const CLEARED: Duration = Duration::from_secs(240);
/// More than the engine process can do with 1 % of a processor.
const EFFORT: Effort = Effort {
    keys: 16,
    bytes: 4 << 20,
    rate: 50,
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_engine_process_that_a_cpu_limit_stops_is_reported_and_not_replaced()
-> anyhow::Result<()> {
    let product = Product::shared_by_waiting().await?;
    product
        .run("throttled", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            pool.ready(SOON).await?;
            let pod = pool.pod_on("n1").await?;
            let before = engine_processes(std::slice::from_ref(&pod))?;
            let pid = before.first().context("no engine process")?.recorded.pid;
            Load::start(&namespace, "n2", "kv", EFFORT).await?;

            let limit = CpuLimit::of_pod(pid)?;
            limit.set("1000")?;
            let node = Node::new(&product.cluster, "n1");
            let stopped = async |wanted: bool, deadline| {
                let what = format!(
                    "a finding about the CPU limit of {}: {wanted}",
                    pod.name_any()
                );
                eventually(what, deadline, || async {
                    let status = node.report().await?.status.unwrap_or_default();
                    // Pool pods of other scenarios may wait for processors.
                    let found = status.all_findings().any(|finding| {
                        finding.check == CheckId::EngineProcessorTime
                            && finding.subject.contains(&pod.name_any())
                            && finding.message.contains("has a CPU limit")
                    });
                    Ok(Seen::when(
                        (found == wanted).then_some(status.clone()),
                        format!("{status:?}"),
                    ))
                })
                .await
            };
            let status = stopped(true, REPORTED).await?;
            // The finding of no other check: pods may wait for those.
            ensure!(
                status
                    .findings
                    .iter()
                    .all(|found| !found.subject.contains("pool pod")),
                "{status:?}"
            );
            let doctor = product.doctor().await;
            ensure!(
                doctor.contains(Reason::EngineThrottled.as_str()),
                "{doctor}"
            );
            node.event(Reason::EngineThrottled, SOON).await?;
            ensure!(
                engine_processes(std::slice::from_ref(&pod))? == before,
                "the engine process was replaced"
            );

            limit.set(limit.none)?;
            stopped(false, CLEARED).await?;
            pool.ready(SOON).await
        })
        .await
}

/// The file with the CPU limit of a pod, in microseconds of each 100 ms.
struct CpuLimit {
    file: PathBuf,
    none: &'static str,
}

impl CpuLimit {
    /// Finds the file of the pod of an engine process, whose cgroup is a child of the pod's.
    fn of_pod(engine: i32) -> anyhow::Result<Self> {
        let cgroups = fs::read_to_string(format!("/proc/{engine}/cgroup"))?;
        let mut files = cgroups.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let pod = Path::new(path.trim_start_matches('/')).parent()?;
            let pod = Path::new("/sys/fs/cgroup").join(controllers).join(pod);
            let names = [("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")];
            names
                .map(|(name, none)| (pod.join(name), none))
                .into_iter()
                .find(|(file, _)| file.exists())
        });
        let (file, none) = files
            .next()
            .with_context(|| format!("no CPU limit: {cgroups}"))?;
        Ok(Self { file, none })
    }

    fn set(&self, value: &str) -> anyhow::Result<()> {
        fs::write(&self.file, value).with_context(|| self.file.display().to_string())
    }
}

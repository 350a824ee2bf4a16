//! Engine processes on a node with systemd as its init system and the systemd cgroup driver. Only the soak runs this.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use mooncake_e2e::scenario::{Effort, Load, Pool, Seen, eventually};

use super::vm_node::{SLOW, VmNode, with_systemd_node};

/// Size of the pool, and the limit of its engine process: with a part of the pool for page tables.
const POOL: u64 = 64 << 20;
const LIMIT: u64 = (96 << 20) + POOL / 512;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn an_engine_process_stays_in_the_slice_of_its_pool_pod_until_systemd_removes_it()
-> anyhow::Result<()> {
    with_systemd_node("systemd", async |vm: VmNode| {
        let namespace = &vm.namespace;
        let spec = format!(
            "{{transports: {{rdma: Forbid}}, master: {{type: BuiltIn}}, pools: [{{name: default, size: {POOL}, drainSeconds: 2, \
             nodeSelector: {{kubernetes.io/hostname: {}}}}}]}}",
            vm.node.name
        );
        let pool = Pool::apply(namespace, "kv", &spec).await?;
        pool.ready(SLOW).await?;
        let pods = pool.pods().await?;
        let uid = pods.first().and_then(Pod::uid).context("no pool pod")?;
        let slice = format!("pod{}.slice", uid.replace('-', "_"));
        let first = engine(&vm, &slice).await?;

        let load = Load::start(namespace, "n1", "kv", Effort::default()).await?;
        // It writes the settings of every slice again.
        vm.run("systemctl daemon-reload").await?;
        ensure!(engine(&vm, &slice).await? == first, "replaced by daemon-reload");
        let agent = vm.agent().await?.name_any();
        let agents: Api<Pod> = vm.product.in_namespace();
        agents.delete(&agent, &DeleteParams::default()).await?;
        eventually("another agent", SLOW, || async {
            let now = vm.agent().await.map(|pod| pod.name_any());
            let seen = format!("{now:?}");
            Ok(Seen::when(now.ok().filter(|now| *now != agent), seen))
        })
        .await?;
        vm.product.wait_ready(SLOW).await?;
        pool.ready(SLOW).await?;
        ensure!(engine(&vm, &slice).await? == first, "replaced with its agent");
        load.finish(namespace).await?.nothing_failed()?;

        // With the last scope of the slice, systemd may take its controllers away, and with them the limit.
        vm.run("kill -9 $(pgrep -x pool)").await?;
        eventually("a new engine process", SLOW, || async {
            let now = engine(&vm, &slice).await;
            let seen = format!("{now:?}");
            Ok(Seen::when(now.ok().filter(|now| *now != first), seen))
        })
        .await?;
        pool.ready(SLOW).await?;
        engine(&vm, &slice).await?;

        namespace
            .kubectl(&["delete", "mooncakecluster", "kv"])
            .await?;
        eventually("the slice to be removed", SLOW, || async {
            let units = vm
                .run("systemctl list-units --all --type=slice --no-legend --plain; find /sys/fs/cgroup -name 'kubepods*'")
                .await?;
            let left = units.lines().find(|line| line.contains(&slice));
            Ok(Seen::when(left.is_none().then_some(()), left.unwrap_or_default()))
        })
        .await
    })
    .await
}

/// The process ID of the engine process, after a check of its cgroup and limit.
async fn engine(vm: &VmNode, slice: &str) -> anyhow::Result<String> {
    let script = "set -e; pid=$(pgrep -x engine | tail -n 1); cgroup=$(cut -d: -f3 /proc/$pid/cgroup); \
                  echo $pid $cgroup $(cat /sys/fs/cgroup$cgroup/memory.max)";
    let text = vm.run(script).await?;
    let [pid, cgroup, limit] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        anyhow::bail!("{text}");
    };
    ensure!(cgroup.ends_with(&format!("{slice}/engine")), "{text}");
    ensure!(limit.parse::<u64>()? == LIMIT, "{text}");
    Ok(pid.to_owned())
}

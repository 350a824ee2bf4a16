//! Memory of pools on a virtual machine node: which pod is charged, which page size is used, and what happens when the
//! kubelet evicts a pool pod. Only the soak runs this.

use super::vm_node::{SLOW, VmNode, with_vm_node};
use anyhow::ensure;
use crds::Reason;
use kube::ResourceExt;
use mooncake_e2e::scenario::{Effort, Load, Pool};

const MIB: u64 = 1 << 20;

/// Memory left free on the node: less than the kubelet's eviction threshold.
const LEFT: u64 = 150 * MIB;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual vm: root and 8 GiB of memory"]
async fn a_pool_is_charged_to_its_own_pod_and_gets_the_requested_page_size() -> anyhow::Result<()> {
    with_vm_node("charged", async |vm: VmNode| {
        let free = vm.meminfo("HugePages_Free").await?;
        let before = vm.charges(&vm.agent().await?).await?;
        let here = format!("nodeSelector: {{kubernetes.io/hostname: {}}}", vm.node.name);
        let spec = format!(
            "{{transports: {{rdma: Forbid}}, pools: [{{name: small, size: 256Mi, {here}}}, \
             {{name: huge, size: 128Mi, pageSize: 2Mi, {here}}}]}}"
        );
        let pool = Pool::apply(&vm.namespace, "kv", &spec).await?;
        pool.ready(SLOW).await?;
        let load = Load::start(&vm.namespace, "n1", "kv", Effort::default()).await?;
        load.finish(&vm.namespace).await?.nothing_failed()?;
        let agent = vm.charges(&vm.agent().await?).await?;
        println!("agent before {before:?}, with both pools {agent:?}");
        ensure!(
            agent.memory < before.memory + 32 * MIB && agent.huge == 0,
            "the agent is charged for pools: {before:?}, then {agent:?}"
        );
        for pod in pool.pods().await? {
            let charges = vm.charges(&pod).await?;
            println!("{}: {charges:?}", pod.name_any());
            let (memory, huge) = if pod.name_any().contains("huge") {
                (0, 128 * MIB)
            } else {
                (256 * MIB, 0)
            };
            ensure!(
                (memory..memory + 32 * MIB).contains(&charges.memory) && charges.huge == huge,
                "{}: {charges:?}",
                pod.name_any()
            );
        }
        let taken = free - vm.meminfo("HugePages_Free").await?;
        ensure!(taken == 64, "{taken} pages of 2 MiB are in use");
        obtained(&vm).await
    })
    .await
}

/// Checks the page sizes in the node's report, which are those that the kernel provided.
async fn obtained(vm: &VmNode) -> anyhow::Result<()> {
    let status = vm.node.report().await?.status;
    let pages: Vec<_> = status
        .iter()
        .flat_map(|status| &status.pools)
        .map(|pool| (pool.pod_name.contains("huge"), pool.page_size_obtained))
        .collect();
    for (huge, bytes) in [(true, 2 * MIB), (false, 4 << 10)] {
        ensure!(
            pages.contains(&(huge, Some(crds::ByteSize(bytes)))),
            "pages: {pages:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual vm: root and 8 GiB of memory"]
async fn an_evicted_pool_pod_is_reported_and_returns_when_memory_is_free() -> anyhow::Result<()> {
    with_vm_node("evicted", async |vm: VmNode| {
        let pool = Pool::apply(
            &vm.namespace,
            "kv",
            "{pools: [{name: default, size: 256Mi, drainSeconds: 2}]}",
        )
        .await?;
        pool.ready(SLOW).await?;
        let whole = pool.segments().await?.len();
        let load = Load::start(&vm.namespace, "n1", "kv", Effort::default()).await?;

        // A file in memory takes the memory; the kubelet cannot evict it.
        let available = vm.meminfo("MemAvailable").await? << 10;
        let taken = available.saturating_sub(LEFT);
        vm.run(&format!(
            "mkdir -p /run/taken && mount -t tmpfs -o size={available} taken /run/taken && \
                 fallocate -l {taken} /run/taken/bytes"
        ))
        .await?;
        let message = pool.unready(Some(Reason::PoolPodEvicted), SLOW).await?;
        println!("{message}");
        ensure!(
            message.contains(&vm.node.name) && message.contains("low on resource: memory"),
            "the message lacks the node or the kubelet's reason: {message}"
        );
        pool.mounted(whole - 1, SLOW).await?;

        vm.run("umount /run/taken").await?;
        pool.ready(SLOW).await?;
        pool.mounted(whole, SLOW).await?;
        // Keys of the evicted pool are lost; all others are correct.
        let report = load.finish(&vm.namespace).await?;
        ensure!(report.got > 0, "{report:?}");
        Ok(())
    })
    .await
}

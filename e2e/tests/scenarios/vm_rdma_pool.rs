//! A pool that is served over RDMA on a virtual machine node, to stock pods of this machine, and to those of another one.

use anyhow::{Context, ensure};
use crds::cluster::Transport;
use crds::{ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use mooncake_e2e::scenario::{Pool, Report, Seen, StockPod, StockWork, eventually};

use super::vm_node::{SLOW, VmNode, with_vm_node_in_every_run, with_vm_nodes};
use super::vm_rdma_kills::kill_engines_and_clients;

const KEYS: u32 = 4;
const BYTES: u64 = 1 << 20;
/// Payload of a packet on Soft-RoCE at most, so that a transfer has at least this many packets.
const MTU: u64 = 4096;

/// The essentials of the scenario below, in one boot.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn a_required_rdma_pool_serves_a_stock_pod_with_a_device_of_its_own_machine()
-> anyhow::Result<()> {
    with_vm_node_in_every_run("rdmaone", async |vm: VmNode| {
        let namespace = &vm.namespace;
        let pool = Pool::apply(namespace, "kv", &spec(&vm, "Require")).await?;
        pool.ready(SLOW).await?;
        over(&pool, &vm, Transport::Rdma).await?;
        unprivileged_engine(&vm).await?;
        let stock = |name: &str, work: StockWork| {
            let pod = StockPod::new(name, work).inject("kv");
            pod.node(&vm.node.name)
        };
        moved_over_rdma(&vm, stock).await?;
        let pods: Api<Pod> = namespace.api();
        let claims = pods
            .get("verify")
            .await?
            .spec
            .and_then(|spec| spec.resource_claims);
        ensure!(
            claims.is_some_and(|claims| claims.len() == 1),
            "the pod has not one claim of a device"
        );
        // The kernel counts the connections of both, and Kubernetes lists the address of a pod that has ended until it is deleted.
        namespace
            .kubectl(&["delete", "pod", "put", "verify"])
            .await?;
        kill_engines_and_clients(&vm, &pool).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and two virtual machines: root and 12 GiB of memory"]
async fn a_required_rdma_pool_serves_stock_pods_of_another_machine_and_the_same_keys_over_tcp()
-> anyhow::Result<()> {
    with_vm_nodes("rdma", async |[pool_node, pod_node]: [VmNode; 2]| {
        let namespace = &pool_node.namespace;
        let spec = |rdma: &str| spec(&pool_node, rdma);
        let idle = resources(&pool_node).await?;
        let pool = Pool::apply(namespace, "kv", &spec("Require")).await?;
        pool.ready(SLOW).await?;
        over(&pool, &pool_node, Transport::Rdma).await?;
        unprivileged_engine(&pool_node).await?;

        let stock = |name: &str, work: StockWork| {
            let pod = StockPod::new(name, work).inject("kv");
            pod.node(&pod_node.node.name)
        };
        moved_over_rdma(&pool_node, stock).await?;

        // A pod without a device uses the same memory over TCP.
        let over_tcp = |name: &str, work: StockWork| {
            StockPod::new(name, work).inject("kv").over_tcp().node("n1")
        };
        all(&over_tcp("tcp-verify", StockWork::verify(KEYS, BYTES))
            .run(namespace, SLOW)
            .await?)?;
        let more = over_tcp("tcp-put", StockWork::put(2 * KEYS, BYTES))
            .run(namespace, SLOW)
            .await?;
        right(&more, 2 * KEYS)?;
        let both = stock("rdma-verify", StockWork::verify(2 * KEYS, BYTES))
            .run(namespace, SLOW)
            .await?;
        right(&both, 2 * KEYS)?;

        let before = resources(&pool_node).await?;
        pool_node.run(&format!("kill -9 {ENGINE}")).await?;
        over(&pool, &pool_node, Transport::Rdma).await?;
        pool.ready(SLOW).await?;
        all(&stock("killed", StockWork::verify(KEYS, BYTES))
            .run(namespace, SLOW)
            .await?)?;
        let after = resources(&pool_node).await?;
        println!("resources of the device: {before}, after the replacement: {after}");

        // A node without devices cannot run such a pod.
        let elsewhere = StockPod::new("elsewhere", StockWork::Idle);
        elsewhere.inject("kv").node("n1").start(namespace).await?;
        let pods: Api<Pod> = namespace.api();
        let why = eventually("the pod to be held", SLOW, || async {
            let status = pods.get("elsewhere").await?.status.unwrap_or_default();
            let unscheduled = status.conditions.iter().flatten();
            let mut unscheduled = unscheduled.filter(|condition| condition.type_ == "PodScheduled");
            let message = unscheduled.find_map(|condition| condition.message.clone());
            Ok(Seen::when(message, format!("{:?}", status.phase)))
        })
        .await?;
        println!("a pod on a node without devices: {why}");

        // Its one node has proved RDMA, so a cluster that prefers it keeps it.
        pods.delete("elsewhere", &DeleteParams::default()).await?;
        Pool::apply(namespace, "kv", &spec("Prefer")).await?;
        reports(
            &pool,
            Reason::AsExpected,
            "stock pods use RDMA, over which 1",
        )
        .await?;
        over(&pool, &pool_node, Transport::Rdma).await?;
        all(&stock("preferred", StockWork::verify(KEYS, BYTES))
            .run(namespace, SLOW)
            .await?)?;

        Pool::apply(namespace, "kv", &spec("Forbid")).await?;
        over(&pool, &pool_node, Transport::Tcp).await?;
        pool.ready(SLOW).await?;
        let verify = StockPod::new("over-tcp", StockWork::verify(KEYS, BYTES));
        all(&verify.inject("kv").node("n1").run(namespace, SLOW).await?)?;
        eventually("the device to be free", SLOW, || async {
            let now = resources(&pool_node).await?;
            Ok(Seen::when(
                (now == idle).then_some(()),
                format!("{now}, not {idle}"),
            ))
        })
        .await?;

        // Over all nodes the same pod verifies over TCP, and the status names those that are the cause.
        let everywhere = "{master: {type: BuiltIn, replicas: 1}, injection: {deadlineSeconds: 300},
            pools: [{name: default, size: 64Mi, drainSeconds: 2}]}";
        let everywhere = Pool::apply(namespace, "all", everywhere).await?;
        everywhere.ready(SLOW).await?;
        let cause = reports(
            &everywhere,
            Reason::TransportDegraded,
            "n1 (no RDMA device)",
        )
        .await?;
        ensure!(cause.contains("n2 (no RDMA device)"), "{cause}");
        println!("{cause}");
        let pod = |name: &str, work: StockWork| {
            StockPod::new(name, work)
                .inject("all")
                .node(&pod_node.node.name)
        };
        all(&pod("all-put", StockWork::put(KEYS, BYTES))
            .run(namespace, SLOW)
            .await?)?;
        all(&pod("all-verify", StockWork::verify(KEYS, BYTES))
            .run(namespace, SLOW)
            .await?)?;

        // A pool on a node without devices is not served, and the condition states why.
        let without =
            "{transports: {rdma: Require}, pools: [{name: default, size: 64Mi, drainSeconds: 2,
            nodeSelector: {kubernetes.io/hostname: n1}}]}";
        let without = Pool::apply(namespace, "without", without).await?;
        let message = without
            .unready(Some(Reason::NoUsableTransport), SLOW)
            .await?;
        ensure!(
            message.contains("n1") && message.contains("no RDMA device"),
            "{message}"
        );
        Ok(())
    })
    .await
}

/// A cluster whose only pool pod is on this node.
fn spec(pool_node: &VmNode, rdma: &str) -> String {
    format!(
        "{{master: {{type: BuiltIn, replicas: 1}}, transports: {{rdma: {rdma}}},
        injection: {{deadlineSeconds: 300}}, pools: [{{name: default, size: 256Mi, drainSeconds: 2,
        nodeSelector: {{kubernetes.io/hostname: {}}}}}]}}",
        pool_node.node.name
    )
}

/// Runs a pod that puts and one that verifies every byte, and checks by the counters of the pool's device that both used it.
async fn moved_over_rdma(
    pool_node: &VmNode,
    stock: impl Fn(&str, StockWork) -> StockPod,
) -> anyhow::Result<()> {
    let namespace = &pool_node.namespace;
    let received = packets(pool_node, "rcvd_pkts").await?;
    let put = stock("put", StockWork::put(KEYS, BYTES));
    all(&put.run(namespace, SLOW).await?)?;
    let received = packets(pool_node, "rcvd_pkts").await? - received;
    let sent = packets(pool_node, "sent_pkts").await?;
    let verify = stock("verify", StockWork::verify(KEYS, BYTES));
    all(&verify.run(namespace, SLOW).await?)?;
    let sent = packets(pool_node, "sent_pkts").await? - sent;
    println!("the device received {received} packets for the puts and sent {sent} for the gets");
    let least = u64::from(KEYS) * BYTES / MTU;
    ensure!(
        received >= least && sent >= least,
        "not over RDMA: {received}, {sent}"
    );
    Ok(())
}

/// The process ID of the engine process, in its own words.
const ENGINE: &str = "$(pgrep -x engine | tail -n 1)";

/// Checks that every key was put, or equals its value.
fn all(report: &Report) -> anyhow::Result<()> {
    right(report, KEYS)
}

/// Checks that so many keys were put, or equal their values.
fn right(report: &Report, keys: u32) -> anyhow::Result<()> {
    let right = report.done == u64::from(keys) && report.failed == 0 && report.wrong == 0;
    ensure!(right, "{report:?}");
    Ok(())
}

/// The objects of the device that the kernel counts.
async fn resources(vm: &VmNode) -> anyhow::Result<String> {
    let text = vm.run("rdma resource show rxe0").await?;
    Ok(text.trim().to_owned())
}

/// Waits until the pool pod is served over a transport, which the status of the cluster states too.
async fn over(pool: &Pool, node: &VmNode, wanted: Transport) -> anyhow::Result<()> {
    eventually(
        format!("the pool to be served over {wanted:?}"),
        SLOW,
        || async {
            let cluster = pool.object().await?;
            let of_cluster = cluster
                .status
                .as_ref()
                .and_then(|status| status.transport?.known());
            let status = node.node.report().await?.status;
            let pools = status.iter().flat_map(|status| &status.pools);
            let served: Vec<_> = pools
                .map(|pool| {
                    (
                        pool.transport.and_then(|word| word.known()),
                        pool.reason,
                        pool.message.clone(),
                    )
                })
                .collect();
            let as_wanted = of_cluster == Some(wanted)
                && served
                    .iter()
                    .all(|(transport, ..)| transport.unwrap_or(Transport::Tcp) == wanted);
            let seen = format!("{of_cluster:?}, {served:?}");
            Ok(Seen::when(
                (as_wanted && !served.is_empty()).then_some(()),
                seen,
            ))
        },
    )
    .await?;
    pool.condition(ConditionType::TransportsReady, "True", SLOW, |condition| {
        condition.status == "True"
    })
    .await?;
    Ok(())
}

/// Waits until the transport of a cluster has this reason and a message with these words.
async fn reports(pool: &Pool, reason: Reason, words: &str) -> anyhow::Result<String> {
    let condition = pool
        .condition(ConditionType::TransportsReady, words, SLOW, |condition| {
            condition.status == "True"
                && condition.reason == reason.as_str()
                && condition.message.contains(words)
        })
        .await?;
    Ok(condition.message)
}

/// Checks the rights of the engine process with the device.
async fn unprivileged_engine(vm: &VmNode) -> anyhow::Result<()> {
    let status = vm.run(&format!("cat /proc/{ENGINE}/status")).await?;
    let field = |name: &str| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(name));
        value
            .map(str::trim)
            .with_context(|| format!("no {name} in {status}"))
    };
    ensure!(
        field("CapEff:")?.trim_start_matches('0').is_empty(),
        "{status}"
    );
    ensure!(
        field("Seccomp:")? == "2" && !field("Uid:")?.starts_with('0'),
        "{status}"
    );
    Ok(())
}

/// A counter of the device.
async fn packets(vm: &VmNode, name: &str) -> anyhow::Result<u64> {
    let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    let text = vm.run(&format!("cat {path}")).await?;
    text.trim()
        .parse()
        .with_context(|| format!("{path}: {text}"))
}

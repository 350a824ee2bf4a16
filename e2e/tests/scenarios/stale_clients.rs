//! Clients with state of an earlier epoch of the master or of a pool pod get an error, read no byte and write no byte.

use super::master_restart;
use anyhow::{Context, ensure};
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::scenario::master::Segment;
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{
    CommandPod, Node, Pool, Product, Seen, TestCluster, eventually, processes,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;

const STALE: &str = include_str!("../workload/stale_client.py");
/// Time limit of one command, which moves a few hundred MiB.
const WAIT: Duration = Duration::from_secs(150);
const MIB: u64 = 1 << 20;
/// Bytes that nearly fill both pools, so that a stray write hits stored data. A fuller master evicts.
const BOTH: u64 = 440 * MIB;
/// The same for one pool.
const ONE: u64 = 220 * MIB;
/// Replica lists that a client keeps across a restart of the pool pod.
const HELD: u64 = 8;
/// Rounds in one scenario, which has a time limit.
const ROUNDS: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn clients_paused_during_a_transfer_fail_and_change_no_byte_after_a_master_restart()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    let all = product
        .scale
        .of("masters replaced under stopped clients", 2, 100_u32);
    // Two at a time, because each mostly waits for masters and pods to start.
    try_join!(
        rounds(&product, "paused", all / 2),
        rounds(&product, "paused-too", all - all / 2)
    )?;
    Ok(())
}

/// Runs `all` rounds, [`ROUNDS`] per namespace.
async fn rounds(product: &Product, title: &str, all: u32) -> anyhow::Result<()> {
    let mut done = 0;
    while done < all {
        let rounds = (all - done).min(ROUNDS);
        product
            .run(title, async move |_, namespace| {
                let pool = Pool::small(&namespace).await?;
                let stale_client =
                    CommandPod::start(&namespace, "stale", "n1", "kv", STALE).await?;
                let fresh = CommandPod::start(&namespace, "fresh", "n2", "kv", STALE).await?;
                for round in 0..rounds {
                    paused_over_a_master_restart(&pool, &stale_client, &fresh)
                        .await
                        .with_context(|| format!("round {}", done + round + 1))?;
                }
                Ok(())
            })
            .await?;
        done += rounds;
    }
    Ok(())
}

async fn paused_over_a_master_restart(
    pool: &Pool,
    stale_client: &CommandPod,
    fresh: &CommandPod,
) -> anyhow::Result<()> {
    stale_client.run(json!({"command": "begin"}), WAIT).await?;
    let paused = stale_client.run(json!({"command": "stop"}), WAIT).await?;
    let moved = |operation: &str| paused[operation].as_u64().map(|bytes| bytes / MIB);
    let (Some(put), Some(got)) = (moved("put"), moved("get")) else {
        anyhow::bail!("a client could not be paused during its transfer: {paused}");
    };
    master_restart::replace(pool).await?;
    pool.mounted(2, READY).await?;
    let fill = json!({"command": "fill", "epoch": "next", "bytes": BOTH});
    fresh.run(fill, WAIT).await?;
    let ended = stale_client.run(json!({"command": "go_on"}), WAIT).await?;
    println!("paused after {put} and {got} of 64 MiB; resumed: {ended}");
    for operation in ["put", "get"] {
        let result = ended[operation].as_str().unwrap_or_default();
        ensure!(
            result.starts_with("error"),
            "the stale {operation} ended with {result:?}"
        );
    }
    unchanged(fresh, BOTH).await?;
    stale_client.run(json!({"command": "end"}), WAIT).await?;
    Ok(())
}

/// Checks that every value of the new epoch is as it was put.
async fn unchanged(fresh: &CommandPod, bytes: u64) -> anyhow::Result<()> {
    let found = fresh.run(json!({"command": "verify"}), WAIT).await?;
    let all = bytes / (4 * MIB);
    ensure!(
        found == json!({"right": all, "missing": 0, "wrong": 0}),
        "of {all} values: {found}"
    );
    Ok(())
}

/// How a pool pod ends. The next one has the same address and ports.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Its process is killed: the kubelet restarts the container in the same network namespace.
    Killed,
    /// It is deleted: another pod gets its address.
    Deleted,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn replica_lists_from_before_a_pool_pod_restart_reach_no_memory_at_the_same_address()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("replaced", async move |product, namespace| {
            let pool = Pool::small(&namespace).await?;
            let stale_client = CommandPod::start(&namespace, "stale", "n1", "kv", STALE).await?;
            let fresh = CommandPod::start(&namespace, "fresh", "n1", "kv", STALE).await?;
            for end in [End::Killed, End::Deleted] {
                used_after_a_pool_pod_restart(&product.cluster, &pool, &stale_client, &fresh, end)
                    .await
                    .with_context(|| format!("{end:?}"))?;
            }
            Ok(())
        })
        .await
}

async fn used_after_a_pool_pod_restart(
    cluster: &TestCluster,
    pool: &Pool,
    stale_client: &CommandPod,
    fresh: &CommandPod,
    end: End,
) -> anyhow::Result<()> {
    let epoch = format!("{end:?}");
    let before = on_n2(pool).await?;
    let hold = json!({"command": "hold", "epoch": epoch, "segment": before.name, "keys": HELD});
    let endpoints = stale_client.run(hold, WAIT).await?;
    ensure!(
        endpoints == json!([before.te_endpoint]),
        "the replicas are at {endpoints}, not at {}",
        before.te_endpoint
    );
    let using = json!({"command": "use", "epoch": epoch});
    stale_client
        .run(json!({"command": "renew", "epoch": epoch}), WAIT)
        .await?;
    let works = stale_client.run(using.clone(), WAIT).await?;
    let paths = [
        "engine read",
        "engine write",
        "session read",
        "session write",
    ];
    ensure!(
        paths.iter().all(|path| works[path] == HELD) && works["bytes"] != 0,
        "the replica lists do not work before the restart: {works}"
    );
    stale_client
        .run(json!({"command": "renew", "epoch": epoch}), WAIT)
        .await?;
    let after = restart(cluster, pool, &before, end).await?;
    ensure!(
        after.te_endpoint == before.te_endpoint && after.base_address != before.base_address,
        "{before:?}, then {after:?}"
    );
    let fill = json!({"command": "fill", "epoch": "next", "bytes": ONE, "segment": after.name});
    fresh.run(fill, WAIT).await?;
    let stale: Value = stale_client.run(using, WAIT).await?;
    println!("{end:?}: before the restart {works}, afterwards {stale}");
    let nothing = paths.iter().all(|path| stale[path] == 0) && stale["bytes"] == 0;
    ensure!(nothing, "a stale replica list reached memory: {stale}");
    unchanged(fresh, ONE).await
}

/// The segment on the second node.
async fn on_n2(pool: &Pool) -> anyhow::Result<Segment> {
    let segments = pool.mounted(2, READY).await?;
    let name = crds::names::segment(&pool.name, "default", "n2", 0);
    segments
        .into_iter()
        .find(|segment| segment.name == name)
        .with_context(|| format!("no segment {name}"))
}

/// Ends the pool pod on the second node and returns the segment of the next one, which has the same address.
async fn restart(
    cluster: &TestCluster,
    pool: &Pool,
    before: &Segment,
    end: End,
) -> anyhow::Result<Segment> {
    let pod = pool.pod_on("n2").await?;
    match end {
        End::Killed => processes::of_pod(&pod, "/pool serve")?
            .iter()
            .for_each(|process| process.recorded.signal(Signal::KILL)),
        End::Deleted => replace_at(cluster, pool, ip(&pod)?.parse()?).await?,
    }
    eventually("the segment to be mounted again", READY, || async {
        let now = on_n2(pool).await?;
        let new = now.segment_id != before.segment_id;
        Ok(Seen::when(new.then_some(now), "the old segment"))
    })
    .await
}

/// Deletes the pool pod on the second node until its replacement has the address, which another pod may get first.
async fn replace_at(cluster: &TestCluster, pool: &Pool, address: Ipv4Addr) -> anyhow::Result<()> {
    const ATTEMPTS: u32 = 12;
    let before = Ipv4Addr::from_bits(address.to_bits() - 1);
    // The plugin assigns addresses in ascending order, starting after the last one.
    let reserve = format!("printf {before} >/var/lib/cni/networks/pods/last_reserved_ip.0");
    let pods: Api<Pod> = pool.namespace.api();
    for _ in 0..ATTEMPTS {
        let old = pool.pod_on("n2").await?;
        Node::new(cluster, "n2")
            .shell(&reserve, Duration::from_secs(20))
            .await?;
        pods.delete(&old.name_any(), &DeleteParams::default())
            .await?;
        let given = eventually("a replacement with an address", READY, || async {
            let now = pool.pod_on("n2").await?;
            let given = ip(&now)?;
            Ok(Seen::when(
                (now.uid() != old.uid()).then_some(given),
                "the old pod",
            ))
        })
        .await?;
        if given.parse() == Ok(address) {
            return Ok(());
        }
    }
    anyhow::bail!("no replacement had {address} after {ATTEMPTS} attempts")
}

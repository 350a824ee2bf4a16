//! Clients with state of an earlier epoch of the master or of a pool pod get an error, read no byte of another object and write no byte.

use super::built_in_master::ledgers;
use super::{master_restart, two_masters};
use anyhow::{Context, ensure};
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::scenario::master::Segment;
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{
    CommandPod, Namespace, Node, Pool, Product, Seen, TestCluster, eventually, processes,
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

/// The masters that a round replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Masters {
    /// A stock one: no key outlives it.
    Stock,
    /// Two built-in ones: the other one knows every key.
    BuiltIn,
}

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
        rounds(&product, "paused", Masters::Stock, all / 2),
        rounds(&product, "paused-too", Masters::Stock, all - all / 2)
    )?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn clients_paused_during_a_transfer_change_no_byte_after_another_built_in_master_took_over()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    let all = product
        .scale
        .of("built-in masters killed under stopped clients", 1, 20_u32);
    rounds(&product, "paused-ours", Masters::BuiltIn, all).await
}

/// Runs `all` rounds, [`ROUNDS`] per namespace.
async fn rounds(product: &Product, title: &str, masters: Masters, all: u32) -> anyhow::Result<()> {
    let mut done = 0;
    while done < all {
        let rounds = (all - done).min(ROUNDS);
        product
            .run(title, async move |_, namespace| {
                let pool = match masters {
                    Masters::Stock => Pool::small(&namespace).await?,
                    Masters::BuiltIn => with_built_in_masters(&namespace).await?,
                };
                let stale_client =
                    CommandPod::start(&namespace, "stale", "n1", "kv", STALE).await?;
                let fresh = CommandPod::start(&namespace, "fresh", "n2", "kv", STALE).await?;
                for round in 0..rounds {
                    paused_over_another_master(&pool, masters, &stale_client, &fresh)
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

/// The object that is read and the one that is written have space beside the data of [`BOTH`]: their keys and ranges outlive a
/// master.
async fn with_built_in_masters(namespace: &Namespace) -> anyhow::Result<Pool> {
    let spec = "{pools: [{name: default, size: 384Mi, drainSeconds: 2}], master: {type: BuiltIn}}";
    let pool = Pool::apply(namespace, "kv", spec).await?;
    pool.ready(READY).await?;
    Ok(pool)
}

/// Kills the elected master with its pod, and waits until the other one is elected, has every ledger, and has a successor of its own.
async fn take_over(pool: &Pool) -> anyhow::Result<()> {
    two_masters::two_ready(pool).await?;
    let leader = two_masters::elected(pool).await?;
    let pods: Api<Pod> = pool.namespace.api();
    let processes = processes::of_pod(&pods.get(&leader).await?, "")?;
    pods.delete(&leader, &DeleteParams::default().grace_period(0))
        .await?;
    for process in processes {
        process.recorded.signal(Signal::KILL);
    }
    two_masters::changed(pool, &leader).await?;
    two_masters::two_ready(pool).await?;
    ledgers(pool, 2).await
}

async fn paused_over_another_master(
    pool: &Pool,
    masters: Masters,
    stale_client: &CommandPod,
    fresh: &CommandPod,
) -> anyhow::Result<()> {
    stale_client.run(json!({"command": "begin"}), WAIT).await?;
    let paused = stale_client.run(json!({"command": "stop"}), WAIT).await?;
    let moved = |operation: &str| paused[operation].as_u64().map(|bytes| bytes / MIB);
    let (Some(put), Some(got)) = (moved("put"), moved("get")) else {
        anyhow::bail!("a client could not be paused during its transfer: {paused}");
    };
    match masters {
        Masters::Stock => {
            master_restart::replace(pool).await?;
            pool.mounted(2, READY).await?;
        }
        Masters::BuiltIn => take_over(pool).await?,
    }
    let fill = json!({"command": "fill", "epoch": "next", "bytes": BOTH});
    fresh.run(fill, WAIT).await?;
    let ended = stale_client.run(json!({"command": "go_on"}), WAIT).await?;
    println!("paused after {put} and {got} of 64 MiB; resumed: {ended}");
    for operation in ["put", "get"] {
        let result = ended[operation].as_str().unwrap_or_default();
        // The key that is read outlives a built-in master.
        let read = masters == Masters::BuiltIn && operation == "get" && result == "right";
        ensure!(
            result.starts_with("error") || read,
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

/// Most pool pods that are deleted until one is followed by one with the same address.
const ATTEMPTS: u32 = 12;

/// How a pool pod ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Its process is killed: the kubelet restarts the container in the same network namespace.
    Killed,
    /// It is deleted: another pod mostly gets its address.
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
            let clients = (&stale_client, &fresh);
            for end in [End::Killed, End::Deleted] {
                at_the_same_address(&product.cluster, &pool, clients, end).await?;
            }
            Ok(())
        })
        .await
}

/// Ends pool pods until one is followed by one with the same address.
async fn at_the_same_address(
    cluster: &TestCluster,
    pool: &Pool,
    clients: (&CommandPod, &CommandPod),
    end: End,
) -> anyhow::Result<()> {
    for number in 1..=ATTEMPTS {
        let epoch = format!("{end:?} {number}");
        let same = used_after_a_pool_pod_restart(cluster, pool, clients, end, &epoch);
        if same.await.with_context(|| epoch.clone())? {
            return Ok(());
        }
    }
    anyhow::bail!("{ATTEMPTS} pool pods were followed by pods with new addresses")
}

/// Returns false if the next pool pod has another address: nothing is checked then.
async fn used_after_a_pool_pod_restart(
    cluster: &TestCluster,
    pool: &Pool,
    (stale_client, fresh): (&CommandPod, &CommandPod),
    end: End,
    epoch: &str,
) -> anyhow::Result<bool> {
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
    if after.te_endpoint != before.te_endpoint && matches!(end, End::Deleted) {
        return Ok(false);
    }
    ensure!(
        after.te_endpoint == before.te_endpoint && after.base_address != before.base_address,
        "{before:?}, then {after:?}"
    );
    let fill = json!({"command": "fill", "epoch": "next", "bytes": ONE, "segment": after.name});
    fresh.run(fill, WAIT).await?;
    let stale: Value = stale_client.run(using, WAIT).await?;
    println!("{epoch}: before the restart {works}, afterwards {stale}");
    let nothing = paths.iter().all(|path| stale[path] == 0) && stale["bytes"] == 0;
    ensure!(nothing, "a stale replica list reached memory: {stale}");
    unchanged(fresh, ONE).await?;
    Ok(true)
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

/// Ends the pool pod on the second node and returns the segment of the next one.
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
        End::Deleted => replace(cluster, pool, &pod).await?,
    }
    eventually("the segment to be mounted again", READY, || async {
        let now = on_n2(pool).await?;
        let new = now.segment_id != before.segment_id;
        Ok(Seen::when(new.then_some(now), "the old segment"))
    })
    .await
}

/// Deletes the pool pod on the second node. The next one gets its address, unless another pod starts on the node just then.
async fn replace(cluster: &TestCluster, pool: &Pool, old: &Pod) -> anyhow::Result<()> {
    let address: Ipv4Addr = ip(old)?.parse()?;
    let before = Ipv4Addr::from_bits(address.to_bits() - 1);
    // The plugin assigns addresses in ascending order, starting after the last one. So this waits until the address is free.
    let folder = "/var/lib/cni/networks/pods";
    let free = format!(
        "for n in $(seq 1200); do [ -e {folder}/{address} ] || break; sleep 0.05; done; printf {before} >{folder}/last_reserved_ip.0"
    );
    let node = Node::new(cluster, "n2");
    let pods: Api<Pod> = pool.namespace.api();
    let (name, params) = (old.name_any(), DeleteParams::default());
    let deletion = async { anyhow::Ok(pods.delete(&name, &params).await?) };
    try_join!(node.shell(&free, Duration::from_secs(90)), deletion)?;
    eventually("a replacement with an address", READY, || async {
        let now = pool.pod_on("n2").await?;
        ip(&now)?;
        Ok(Seen::when(
            (now.uid() != old.uid()).then_some(()),
            "the old pod",
        ))
    })
    .await
}

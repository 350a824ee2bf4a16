//! Who comes late, from an earlier life of the master or of a pool pod, gets an error and no byte, and
//! leaves none.

use super::master;
use anyhow::{Context, ensure};
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::story::master::Segment;
use mooncake_e2e::story::pool::{READY, ip};
use mooncake_e2e::story::{Ordered, Pool, Product, Seen, Stage, eventually, processes};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

const LATE: &str = include_str!("../workload/late.py");
/// For one order: each moves some hundred MiB at most.
const WAIT: Duration = Duration::from_secs(150);
const MIB: u64 = 1 << 20;
/// Both pools nearly full, so that a byte that lands anywhere lands in it; a master that is fuller evicts.
const BOTH: u64 = 440 * MIB;
const ONE: u64 = 220 * MIB;
/// Replica lists that are held over a pool pod's end.
const HELD: u64 = 8;
/// A story has a deadline: more rounds are told in several.
const ROUNDS_OF_A_STORY: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn clients_stopped_inside_a_transfer_fail_and_change_no_byte_of_the_next_masters_data()
-> anyhow::Result<()> {
    let product = Product::shared().await?;
    let all = product
        .scale
        .of("masters replaced under stopped clients", 2, 100_u32);
    // Mostly they wait for masters and pods to come: two tell half each.
    try_join!(
        stopped(&product, "stopped", all / 2),
        stopped(&product, "halted", all - all / 2)
    )?;
    Ok(())
}

/// So many rounds, a few in each namespace of this title.
async fn stopped(product: &Product, title: &str, all: u32) -> anyhow::Result<()> {
    let mut told = 0;
    while told < all {
        let rounds = (all - told).min(ROUNDS_OF_A_STORY);
        product
            .tell(title, async move |namespace| {
                let pool = Pool::small(&namespace).await?;
                let late = Ordered::start(&namespace, "late", "n1", "kv", LATE).await?;
                let fresh = Ordered::start(&namespace, "fresh", "n2", "kv", LATE).await?;
                for round in 0..rounds {
                    stopped_over_a_master(&pool, &late, &fresh)
                        .await
                        .with_context(|| format!("round {}", told + round + 1))?;
                }
                Ok(())
            })
            .await?;
        told += rounds;
    }
    Ok(())
}

async fn stopped_over_a_master(pool: &Pool, late: &Ordered, fresh: &Ordered) -> anyhow::Result<()> {
    late.tell(json!({"order": "begin"}), WAIT).await?;
    let inside = late.tell(json!({"order": "stop"}), WAIT).await?;
    let moved = |operation: &str| inside[operation].as_u64().map(|bytes| bytes / MIB);
    let (Some(put), Some(got)) = (moved("put"), moved("get")) else {
        anyhow::bail!("a client could not be stopped inside its transfer: {inside}");
    };
    master::replace(pool).await?;
    pool.mounted(2, READY).await?;
    let fill = json!({"order": "fill", "life": "next", "bytes": BOTH});
    fresh.tell(fill, WAIT).await?;
    let ended = late.tell(json!({"order": "go_on"}), WAIT).await?;
    println!("stopped after {put} and {got} of 64 MiB; continued: {ended}");
    for operation in ["put", "get"] {
        let word = ended[operation].as_str().unwrap_or_default();
        ensure!(
            word.starts_with("error"),
            "the late {operation} ended with {word:?}"
        );
    }
    unchanged(fresh, BOTH).await?;
    late.tell(json!({"order": "end"}), WAIT).await?;
    Ok(())
}

/// Every byte of the new life is as it was put.
async fn unchanged(fresh: &Ordered, bytes: u64) -> anyhow::Result<()> {
    let found = fresh.tell(json!({"order": "verify"}), WAIT).await?;
    let all = bytes / (4 * MIB);
    ensure!(
        found == json!({"right": all, "missing": 0, "wrong": 0}),
        "of {all} values: {found}"
    );
    Ok(())
}

/// How a pool pod comes to an end, with a successor at the same address and ports.
#[derive(Debug, Clone, Copy)]
enum End {
    /// Its process: the kubelet starts the container anew, in the same network.
    Killed,
    /// The pod: another one is given its address.
    Deleted,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn replica_lists_of_a_pool_pods_earlier_life_reach_nothing_at_the_same_address()
-> anyhow::Result<()> {
    let product = Arc::new(Product::shared().await?);
    let told = Arc::clone(&product);
    product
        .tell("replaced", async move |namespace| {
            let pool = Pool::small(&namespace).await?;
            let late = Ordered::start(&namespace, "late", "n1", "kv", LATE).await?;
            let fresh = Ordered::start(&namespace, "fresh", "n1", "kv", LATE).await?;
            for end in [End::Killed, End::Deleted] {
                held_over_a_pool_pod(&told.stage, &pool, &late, &fresh, end)
                    .await
                    .with_context(|| format!("{end:?}"))?;
            }
            Ok(())
        })
        .await
}

async fn held_over_a_pool_pod(
    stage: &Stage,
    pool: &Pool,
    late: &Ordered,
    fresh: &Ordered,
    end: End,
) -> anyhow::Result<()> {
    let life = format!("{end:?}");
    let before = on_n2(pool).await?;
    let hold = json!({"order": "hold", "life": life, "segment": before.name, "keys": HELD});
    let endpoints = late.tell(hold, WAIT).await?;
    ensure!(
        endpoints == json!([before.te_endpoint]),
        "held {endpoints}, not {}",
        before.te_endpoint
    );
    let using = json!({"order": "use", "life": life});
    late.tell(json!({"order": "renew", "life": life}), WAIT)
        .await?;
    let works = late.tell(using.clone(), WAIT).await?;
    let ways = [
        "engine read",
        "engine write",
        "session read",
        "session write",
    ];
    ensure!(
        ways.iter().all(|way| works[way] == HELD) && works["bytes"] != 0,
        "what is held does not even work while its pool pod lives: {works}"
    );
    late.tell(json!({"order": "renew", "life": life}), WAIT)
        .await?;
    let after = next_life(stage, pool, &before, end).await?;
    ensure!(
        after.te_endpoint == before.te_endpoint && after.base_address != before.base_address,
        "{before:?}, then {after:?}"
    );
    let fill = json!({"order": "fill", "life": "next", "bytes": ONE, "segment": after.name});
    fresh.tell(fill, WAIT).await?;
    let came: Value = late.tell(using, WAIT).await?;
    println!("{end:?}: in its life {works}, then {came}");
    let nothing = ways.iter().all(|way| came[way] == 0) && came["bytes"] == 0;
    ensure!(nothing, "something reached the next life: {came}");
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

/// Ends the pool pod on the second node; the segment of its next life at the same address.
async fn next_life(
    stage: &Stage,
    pool: &Pool,
    before: &Segment,
    end: End,
) -> anyhow::Result<Segment> {
    let pod = pool.pod_on("n2").await?;
    match end {
        End::Killed => processes::of_pod(&pod, "serve")?
            .iter()
            .for_each(|process| process.recorded.signal(Signal::KILL)),
        End::Deleted => replace_at(stage, pool, ip(&pod)?.parse()?).await?,
    }
    eventually("the next life to be mounted", READY, || async {
        let now = on_n2(pool).await?;
        let new = now.segment_id != before.segment_id;
        Ok(Seen::when(new.then_some(now), "the segment of the old one"))
    })
    .await
}

/// Deletes the pool pod on the second node until another one has the address: whatever else starts there
/// in between may be given it first.
async fn replace_at(stage: &Stage, pool: &Pool, address: Ipv4Addr) -> anyhow::Result<()> {
    const ATTEMPTS: u32 = 12;
    let before = Ipv4Addr::from_bits(address.to_bits() - 1);
    // Addresses are given in turn, from the one after the last.
    let turn = format!("printf {before} >/var/lib/cni/networks/pods/last_reserved_ip.0");
    let pods: Api<Pod> = pool.namespace.api();
    for _ in 0..ATTEMPTS {
        let old = pool.pod_on("n2").await?;
        stage
            .node("n2")
            .shell(&turn, Duration::from_secs(20))
            .await?;
        pods.delete(&old.name_any(), &DeleteParams::default())
            .await?;
        let given = eventually("a replacement with an address", READY, || async {
            let now = pool.pod_on("n2").await?;
            let given = ip(&now)?;
            Ok(Seen::when(
                (now.uid() != old.uid()).then_some(given),
                "the old one",
            ))
        })
        .await?;
        if given.parse() == Ok(address) {
            return Ok(());
        }
    }
    anyhow::bail!("no replacement had {address} after {ATTEMPTS} attempts")
}

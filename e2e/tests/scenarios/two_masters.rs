//! Two built-in masters: the other one takes over when the elected one is deleted, killed or stopped, and no key is lost, also
//! when both end.

use anyhow::{Context, ensure};
use crds::ConditionType;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{
    CommandPod, Namespace, Pool, Product, Seen, eventually, is_ready, processes,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("../workload/failover.py");
/// Time limit of one command.
const WAIT: Duration = Duration::from_secs(150);
const KEYS: u64 = 100;
/// Most elections until the elected master is where a scenario needs it.
const ELECTIONS: u32 = 5;
/// Seconds until puts and gets work again after the node of the elected master is lost, with the default Lease: 10 by design, and
/// twice that beside other scenarios.
const OUTAGE: f64 = 20.0;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn masters_that_end_stop_and_are_gone_together_lose_no_key() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("masters", async move |_, namespace| {
            let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 2}],
                master: {type: BuiltIn}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            let (masters, nodes) = two_ready(&pool).await?;
            println!("masters {masters:?} on {nodes:?}");
            let client = CommandPod::start(&namespace, "client", "n1", "kv", PROGRAM).await?;
            let put = json!({"command": "put", "prefix": "k", "keys": KEYS});
            let done = client.run(put, WAIT).await?;
            ensure!(done == KEYS, "{done} of {KEYS} keys put");
            every_key(&client).await?;

            // The deletion ends both containers of the pod: the Lease is released.
            let leader = elected(&pool).await?;
            let pods: Api<Pod> = namespace.api();
            let begun = Instant::now();
            pods.delete(&leader, &DeleteParams::default()).await?;
            let back = back(&client, "a").await?;
            println!("the elected master's pod was deleted: the client's first {back}");
            let next = changed(&pool, &leader).await?;
            println!(
                "{next} led after {:.1} s at most",
                begun.elapsed().as_secs_f64()
            );
            every_key(&client).await?;
            two_ready(&pool).await?;

            // Only the process: the container beside it releases the Lease.
            let leader = elected(&pool).await?;
            let pod = pods.get(&leader).await?;
            let process = processes::of_pod(&pod, "mooncake-master")?
                .into_iter()
                .next()
                .context("just found")?;
            process.recorded.signal(Signal::KILL);
            let back = self::back(&client, "b").await?;
            println!("the elected master's process was killed: the client's first {back}");
            every_key(&client).await?;
            let fresh = CommandPod::start(&namespace, "fresh", "n2", "kv", PROGRAM).await?;
            every_key(&fresh).await?;

            stopped_and_resumed(&pool, &client).await?;
            every_key(&fresh).await?;

            // Only the pool pods have the keys then.
            let (masters, _) = two_ready(&pool).await?;
            let begun = Instant::now();
            for master in &masters {
                pods.delete(master, &DeleteParams::default()).await?;
            }
            let back = self::back(&client, "both").await?;
            println!("both masters were deleted: the client's first {back}");
            every_key(&client).await?;
            every_key(&fresh).await?;
            println!(
                "every key was read {:.1} s later",
                begun.elapsed().as_secs_f64()
            );
            pool.ready(READY).await?;
            let condition = pool
                .condition(
                    ConditionType::MasterReady,
                    "one is elected",
                    READY,
                    |found| found.status == "True" && found.message.contains("is elected; 2 of 2"),
                )
                .await?;
            println!("{}", condition.message);
            Ok(())
        })
        .await
}

/// Stops all processes of the elected master's pod until the other one is elected, and lets them go on: the former one must give
/// no answer as the elected one.
async fn stopped_and_resumed(pool: &Pool, client: &CommandPod) -> anyhow::Result<()> {
    let leader = elected(pool).await?;
    let pods: Api<Pod> = pool.namespace.api();
    let stopped = processes::of_pod(&pods.get(&leader).await?, "")?;
    let signal = |signal| {
        for process in &stopped {
            process.recorded.signal(signal);
        }
    };
    signal(Signal::STOP);
    let begun = Instant::now();
    let outcome = async {
        let back = back(client, "stopped").await?;
        let next = changed(pool, &leader).await?;
        println!(
            "the elected master was stopped: the client's first {back}; {next} led after {:.1} s at most",
            begun.elapsed().as_secs_f64()
        );
        every_key(client).await
    };
    let outcome = outcome.await;
    signal(Signal::CONT);
    outcome?;
    let put = json!({"command": "put", "prefix": "resumed", "keys": KEYS / 10});
    let done = client.run(put, WAIT).await?;
    ensure!(done == KEYS / 10, "{done} of {} keys put", KEYS / 10);
    two_ready(pool).await?;
    every_key(client).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn the_other_master_serves_a_running_client_after_the_node_of_the_elected_one_is_cut_off()
-> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let outcome = product
        .run("cutoff", async move |product, namespace| {
            let spec = |node: &str| {
                format!(
                    "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2,
                    nodeSelector: {{kubernetes.io/hostname: {node}}}}}],
                    master: {{type: BuiltIn}}}}"
                )
            };
            // Client and pool are on the other node.
            let pool = Pool::apply(&namespace, "kv", &spec("n1")).await?;
            pool.ready(READY).await?;
            two_ready(&pool).await?;
            let (leader, lost) = away_from_dns(&namespace, &pool).await?;
            let other = if lost == "n1" { "n2" } else { "n1" };
            let pool = Pool::apply(&namespace, "kv", &spec(other)).await?;
            pool.ready(READY).await?;
            let client = CommandPod::start(&namespace, "client", other, "kv", PROGRAM).await?;
            let put = json!({"command": "put", "prefix": "k", "keys": KEYS});
            let done = client.run(put, WAIT).await?;
            ensure!(done == KEYS, "{done} of {KEYS} keys put");

            let cut = lost.clone();
            product.cluster.with(move |cluster| cluster.cut(&cut)).await?;
            let begun = Instant::now();
            let back = back(&client, "c").await?;
            let next = changed(&pool, &leader).await?;
            println!(
                "the node of the elected master was cut off: the client's first {back}; {next} led after {:.1} s at most",
                begun.elapsed().as_secs_f64()
            );
            let longest = ["put", "get"].map(|what| back[what].as_f64());
            ensure!(
                longest.iter().flatten().all(|seconds| *seconds <= OUTAGE),
                "the client waited for more than {OUTAGE} s: {back}"
            );
            every_key(&client).await?;
            product
                .cluster
                .with(move |cluster| cluster.heal(&lost))
                .await?;
            two_ready(&pool).await?;
            every_key(&client).await
        })
        .await;
    for node in ["n1", "n2"] {
        product
            .cluster
            .with(move |cluster| cluster.heal(node))
            .await?;
    }
    outcome
}

/// Lets a master be elected on another node than that of the cluster's only DNS pod, whose loss would end each lookup of clients.
/// Returns its name and node.
async fn away_from_dns(namespace: &Namespace, pool: &Pool) -> anyhow::Result<(String, String)> {
    let node = async |pods: &Api<Pod>, name: &str| {
        let pod = pods.get(name).await?;
        let node = pod.spec.and_then(|spec| spec.node_name);
        node.with_context(|| format!("{name} has no node"))
    };
    let found = [
        "get",
        "pods",
        "--namespace=kube-system",
        "--selector=k8s-app=kube-dns",
        "--output=jsonpath={.items[*].spec.nodeName}",
    ];
    let dns = namespace.kubectl(&found).await?;
    let pods: Api<Pod> = namespace.api();
    let mut leader = elected(pool).await?;
    // The replacement of a deleted master may be elected before the other one.
    for _ in 0..ELECTIONS {
        let place = node(&pods, &leader).await?;
        if place != dns {
            return Ok((leader, place));
        }
        pods.delete(&leader, &DeleteParams::default()).await?;
        leader = changed(pool, &leader).await?;
        two_ready(pool).await?;
    }
    anyhow::bail!("{ELECTIONS} times a master on {dns} was elected, the node of the DNS pod")
}

/// Waits until two master pods are Ready, and returns their names and nodes.
pub(super) async fn two_ready(pool: &Pool) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    eventually("two Ready masters", READY, || async {
        let found = pool.masters().await?;
        let ready: Vec<_> = found.iter().filter(|pod| is_ready(pod)).collect();
        let names = ready.iter().map(|pod| pod.name_any()).collect::<Vec<_>>();
        let nodes = ready
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
        let seen = format!("{names:?}");
        Ok(Seen::when(
            (names.len() == 2).then(|| (names, nodes.collect())),
            seen,
        ))
    })
    .await
}

/// Waits until a master is elected, and returns its name.
pub(super) async fn elected(pool: &Pool) -> anyhow::Result<String> {
    eventually("an elected master", READY, || async {
        Ok(Seen::when(pool.elected().await?, "none"))
    })
    .await
}

/// Waits until another master than `before` is elected.
pub(super) async fn changed(pool: &Pool, before: &str) -> anyhow::Result<String> {
    eventually("another elected master", READY, || async {
        let now = elected(pool).await?;
        Ok(Seen::when((now != before).then_some(now), before))
    })
    .await
}

/// Waits until puts and gets of a running client work, and returns the seconds.
async fn back(client: &CommandPod, prefix: &str) -> anyhow::Result<Value> {
    // Its first key is one of those that were put before.
    let command = json!({"command": "back", "prefix": "k", "suffix": prefix, "seconds": 120});
    let found = client.run(command, WAIT).await?;
    ensure!(
        found["put"].is_number() && found["get"].is_number(),
        "puts and gets do not both work again: {found}"
    );
    Ok(found)
}

async fn every_key(client: &CommandPod) -> anyhow::Result<()> {
    let what = format!("all {KEYS} keys");
    eventually(what, READY, || async {
        let command = json!({"command": "verify", "prefix": "k", "keys": KEYS});
        let found = client.run(command, WAIT).await?;
        if found["wrong"] != 0 {
            return Ok(Seen::Never(anyhow::anyhow!("wrong bytes: {found}")));
        }
        Ok(Seen::when((found["right"] == KEYS).then_some(()), found))
    })
    .await
}

//! Copies and moves between pool pods, which the engine processes carry out for the master.

use anyhow::ensure;
use crds::names::segment;
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{Namespace, Pool, Product, StockPod, StockWork};
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;

use super::built_in_master::ledgers;

const WAIT: Duration = Duration::from_secs(120);
const PROGRAM: &str = include_str!("../workload/replica_tasks.py");

/// One task of the program, with the endpoints of the object's replicas.
#[derive(Debug, Deserialize)]
struct Task {
    task: String,
    put: i64,
    status: String,
    before: Vec<SocketAddr>,
    /// After the task.
    between: Vec<SocketAddr>,
    /// After the first replica was removed.
    after: Vec<SocketAddr>,
    /// The value was read from the last replica.
    right: bool,
}

/// Has a stock pod copy and move objects from the pool pod of n1 to that of n2.
async fn check(namespace: &Namespace, pool: &Pool) -> anyhow::Result<()> {
    let [from, to] = [
        ip(&pool.pod_on("n1").await?)?,
        ip(&pool.pod_on("n2").await?)?,
    ];
    let work = StockWork::Program {
        text: PROGRAM,
        arguments: ["n1", "n2"]
            .map(|node| segment("kv", "default", node, 0))
            .into(),
    };
    let pod = StockPod::new("tasks", work).node("n1").inject("kv");
    pod.start(namespace).await?;
    namespace.pod_succeeded(&pod.name, WAIT).await?;
    let log = namespace.logs(&pod.name, "main").await?;
    let tasks: Vec<Task> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    ensure!(tasks.len() == 8, "{log}");
    for task in tasks {
        let hosts = |places: &[SocketAddr]| {
            let mut hosts: Vec<_> = places.iter().map(|at| at.ip().to_string()).collect();
            hosts.sort();
            hosts
        };
        let mut between = if task.task == "copy" {
            vec![from.clone(), to.clone()]
        } else {
            vec![to.clone()]
        };
        between.sort();
        ensure!(
            task.put == 0
                && task.status == "SUCCESS"
                && hosts(&task.before) == [from.clone()]
                && hosts(&task.between) == between
                && hosts(&task.after) == [to.clone()]
                && task.right,
            "{task:?}\n{log}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn objects_are_copied_and_moved_between_the_pool_pods_of_two_nodes() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("tasks", async move |_, namespace| {
            let pool = Pool::small(&namespace).await?;
            pool.mounted(2, WAIT).await?;
            check(&namespace, &pool).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn the_built_in_master_has_objects_copied_and_moved_too() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("copies", async move |_, namespace| {
            let spec = "{pools: [{name: default, size: 256Mi, drainSeconds: 2}], master: {type: BuiltIn, replicas: 1}}";
            let pool = Pool::apply(&namespace, "kv", spec).await?;
            pool.ready(READY).await?;
            ledgers(&pool, 2).await?;
            check(&namespace, &pool).await
        })
        .await
}

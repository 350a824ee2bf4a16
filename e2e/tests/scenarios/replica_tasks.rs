//! Copies and moves between pool pods, which the agents carry out for the master.

use anyhow::{Context, ensure};
use crds::names::segment;
use mooncake_e2e::scenario::{Pool, Product, StockPod, StockWork};
use serde::Deserialize;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(120);
const PROGRAM: &str = include_str!("../workload/replica_tasks.py");

/// One task of the program, with the endpoints of the object's replicas.
#[derive(Debug, Deserialize)]
struct Task {
    task: String,
    put: i64,
    status: String,
    before: Vec<String>,
    /// After the task.
    between: Vec<String>,
    /// After the first replica was removed.
    after: Vec<String>,
    /// The value was read from the last replica.
    right: bool,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn objects_are_copied_and_moved_between_the_pool_pods_of_two_nodes() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("tasks", async move |_, namespace| {
            let pool = Pool::small(&namespace).await?;
            let segments = pool.mounted(2, WAIT).await?;
            let endpoint = |node: &str| {
                let name = segment("kv", "default", node, 0);
                let found = segments.iter().find(|segment| segment.name == name);
                found
                    .map(|segment| segment.te_endpoint.clone())
                    .context(name)
            };
            let [from, to] = [endpoint("n1")?, endpoint("n2")?];
            let names = ["n1", "n2"].map(|node| segment("kv", "default", node, 0));
            let work = StockWork::Program {
                text: PROGRAM,
                arguments: names.into(),
            };
            let pod = StockPod::new("tasks", work).node("n1").inject("kv");
            pod.start(&namespace).await?;
            namespace.pod_succeeded(&pod.name, WAIT).await?;
            let log = namespace.logs(&pod.name, "main").await?;
            let tasks: Vec<Task> = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect();
            ensure!(tasks.len() == 8, "{log}");
            for task in tasks {
                let both = [from.as_str(), &to];
                let between = if task.task == "copy" {
                    &both[..]
                } else {
                    &both[1..]
                };
                ensure!(
                    task.put == 0
                        && task.status == "SUCCESS"
                        && task.before == [from.clone()]
                        && task.between.len() == between.len()
                        && between
                            .iter()
                            .all(|place| task.between.iter().any(|now| now == place))
                        && task.after == [to.clone()]
                        && task.right,
                    "{task:?}\n{log}"
                );
            }
            Ok(())
        })
        .await
}

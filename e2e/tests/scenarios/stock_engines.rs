//! Stock transfer engines of two injected pods that find each other by the metadata service of their MooncakeCluster.

use anyhow::{Context as _, ensure};
use mooncake_e2e::scenario::{Namespace, Seen, StockPod, StockWork, eventually};
use serde_json::Value;
use std::time::Duration;

const ENGINES: &str = include_str!("../../stock/engines.py");
const WAIT: Duration = Duration::from_secs(120);

fn pod(name: &str, arguments: &[&str]) -> StockPod {
    let work = StockWork::Program {
        text: ENGINES,
        arguments: arguments.iter().map(ToString::to_string).collect(),
    };
    StockPod::new(name, work).inject("kv")
}

/// An engine of a pod on n1 reads and writes the memory of an engine of a pod on n2.
pub(super) async fn exchange(namespace: &Namespace) -> anyhow::Result<()> {
    let served = pod("engine-that-serves", &["serve"]).node("n2");
    served.start(namespace).await?;
    let served = eventually("the memory of the stock engine", WAIT, || async {
        let log = namespace.logs("engine-that-serves", "main").await?;
        let mut lines = log.lines();
        let found = lines.find_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(Seen::when(found, log))
    })
    .await?;
    let name = served["name"].as_str().context("no name")?;
    let address = served["address"].to_string();
    let reader = pod("engine-that-reads", &["exchange", name, &address]).node("n1");
    reader.start(namespace).await?;
    namespace.pod_succeeded("engine-that-reads", WAIT).await?;
    let log = namespace.logs("engine-that-reads", "main").await?;
    let done = log.lines().find(|line| line.contains(" exchanged "));
    println!("{}", done.unwrap_or(&log));
    ensure!(done.is_some_and(|line| line.contains(name)), "{log}");
    Ok(())
}

//! A stock client at work while a story disturbs everything around it, and what it came to.

use super::namespace::Namespace;
use super::stock::{CONTAINER, StockPod, StockWork};
use super::wait::{Seen, eventually};
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../tests/workload/load.py");

/// How much a load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Keys that are put once, kept, read at random and verified at the end.
    pub keys: u32,
    /// Bytes of each value.
    pub bytes: u64,
    /// Puts and gets a second.
    pub rate: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            keys: 48,
            bytes: 256 << 10,
            rate: 25,
        }
    }
}

/// A pod that puts, gets and verifies until it is told to end.
#[derive(Debug, Clone)]
pub struct Load {
    pod: StockPod,
}

/// What a load came to.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LoadReport {
    pub put: u64,
    pub got: u64,
    /// Operations that said they failed, on keys that the master knows.
    pub failed: u64,
    /// Kept keys that the master did not know any more.
    pub missing: u64,
    /// Values that came back other than they were put. Never allowed.
    pub wrong: u64,
    pub bytes: u64,
    /// The slowest operation, in seconds.
    pub longest: f64,
    /// Kept keys, and those of them that could not be verified at the end.
    pub kept: u64,
    pub unread: u64,
    /// The last 40.
    pub failures: Vec<Failure>,
}

/// One operation that did not do what it should.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Failure {
    /// Seconds since 1970.
    pub at: f64,
    pub kind: String,
    pub operation: String,
    pub key: String,
    pub detail: serde_json::Value,
}

impl Load {
    /// Starts an injected pod on a node and waits until all its kept keys are put.
    ///
    /// # Errors
    /// When it does not come that far in two minutes; the last words of its log say why.
    pub async fn start(
        namespace: &Namespace,
        node: &str,
        cluster: &str,
        effort: Effort,
    ) -> anyhow::Result<Self> {
        let name = format!("load-{node}");
        let Effort { keys, bytes, rate } = effort;
        let work = StockWork::Program {
            text: PROGRAM,
            arguments: vec![
                name.clone(),
                keys.to_string(),
                bytes.to_string(),
                rate.to_string(),
            ],
        };
        let pod = StockPod::new(&name, work).node(node).inject(cluster);
        pod.start(namespace).await?;
        eventually(
            format!("{name} to be at work"),
            Duration::from_secs(120),
            || async {
                let log = namespace.logs(&name, CONTAINER).await?;
                let working = log.lines().any(|line| line == "loading");
                Ok(Seen::when(
                    working.then_some(()),
                    crate::command::tail(&log, 5),
                ))
            },
        )
        .await?;
        Ok(Self { pod })
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.pod.name
    }

    /// Lets it verify its kept keys and end.
    ///
    /// # Errors
    /// When it does not end in two minutes, or died before.
    pub async fn finish(&self, namespace: &Namespace) -> anyhow::Result<LoadReport> {
        namespace
            .exec(
                &self.pod.name,
                CONTAINER,
                &["kill", "-TERM", "1"],
                Duration::from_secs(20),
            )
            .await?;
        namespace
            .pod_succeeded(&self.pod.name, Duration::from_secs(120))
            .await?;
        let log = namespace.logs(&self.pod.name, CONTAINER).await?;
        let report: LoadReport = log
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .with_context(|| format!("no report in the log of {}:\n{log}", self.pod.name))?;
        report.say(&self.pod.name);
        ensure!(report.wrong == 0, "wrong bytes: {report:?}");
        Ok(report)
    }
}

impl LoadReport {
    /// Every kept key verified at the end, and none was unknown to the master in between.
    ///
    /// # Errors
    /// With the whole report.
    pub fn nothing_lost(&self) -> anyhow::Result<()> {
        ensure!(
            self.missing == 0 && self.unread == 0 && self.got > 0,
            "keys were lost: {self:?}"
        );
        Ok(())
    }

    /// Nothing failed at all.
    ///
    /// # Errors
    /// With the whole report.
    pub fn undisturbed(&self) -> anyhow::Result<()> {
        self.nothing_lost()?;
        ensure!(self.failed == 0, "transfers failed: {self:?}");
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
    fn say(&self, name: &str) {
        println!(
            "{name}: {} puts, {} gets, {} failed, {} missing, {} wrong; {} of {} kept keys verified; \
             slowest {:.2} s",
            self.put,
            self.got,
            self.failed,
            self.missing,
            self.wrong,
            self.kept - self.unread,
            self.kept,
            self.longest
        );
    }
}

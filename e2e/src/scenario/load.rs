//! A stock client that puts, gets and verifies while a scenario disturbs the cluster, and its report.

use super::bounds::Pace;
use super::eventually::{Seen, eventually};
use super::namespace::Namespace;
use super::processes;
use super::stock_pod::{CONTAINER, StockPod, StockWork};
use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Pod;
use local_cluster::command::tail;
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../tests/workload/load.py");

/// Size and rate of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Keys that are put once, read at random and verified at the end.
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

/// A pod that puts, gets and verifies until [`Load::finish`].
#[derive(Debug, Clone)]
pub struct Load {
    pod: StockPod,
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LoadReport {
    pub put: u64,
    pub got: u64,
    /// Operations that returned an error, on keys that the master knows.
    pub failed: u64,
    /// Kept keys that the master no longer knows.
    pub missing: u64,
    /// Values that differ from what was put. Never allowed.
    pub wrong: u64,
    pub bytes: u64,
    /// The slowest operation, in seconds.
    pub longest: f64,
    pub kept: u64,
    /// Kept keys that could not be verified at the end.
    pub unread: u64,
    /// The last 40.
    pub failures: Vec<Failure>,
}

/// One failed operation.
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
    /// Starts an injected pod on a node and waits until it has put all its kept keys.
    ///
    /// # Errors
    /// When this takes longer than two minutes, the end of its log.
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
            format!("{name} to have put its keys"),
            Duration::from_secs(120),
            || async {
                let log = namespace.logs(&name, CONTAINER).await?;
                let working = log.lines().any(|line| line == "loading");
                Ok(Seen::when(working.then_some(()), tail(&log, 5)))
            },
        )
        .await?;
        Ok(Self { pod })
    }

    /// Number of the load's established connections to an address.
    ///
    /// # Errors
    /// When its process has ended.
    pub async fn connections_to(
        &self,
        namespace: &Namespace,
        address: SocketAddr,
    ) -> anyhow::Result<u64> {
        let pod = namespace.api::<Pod>().get(&self.pod.name).await?;
        let of_load = processes::of_pod(&pod, "python3")?;
        let process = of_load.first().context("the load has no process")?;
        process.connections_to(address)
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.pod.name
    }

    /// Ends the load, which verifies its kept keys first.
    ///
    /// # Errors
    /// When it fails, does not end in two minutes, or read a wrong value.
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
        report.print(&self.pod.name);
        ensure!(report.wrong == 0, "wrong bytes: {report:?}");
        Ok(report)
    }
}

impl LoadReport {
    /// Every kept key was verified at the end, and the master always knew it.
    ///
    /// # Errors
    /// The whole report.
    pub fn nothing_lost(&self) -> anyhow::Result<()> {
        ensure!(
            self.missing == 0 && self.unread == 0 && self.got > 0,
            "keys were lost: {self:?}"
        );
        Ok(())
    }

    /// The load went on: no operation took longer than the pace allows, and as many of those that it tries in `time`
    /// succeeded as it requires.
    ///
    /// # Errors
    /// The whole report.
    pub fn went_on(&self, effort: Effort, time: Duration, pace: Pace) -> anyhow::Result<()> {
        let floor = u64::from(effort.rate) * time.as_secs() * pace.percent / 100;
        ensure!(
            self.longest <= pace.longest.as_secs_f64() && self.put + self.got >= floor,
            "an operation took longer than {:?}, or fewer than {floor} succeeded in {time:?}: {self:?}",
            pace.longest
        );
        Ok(())
    }

    /// No operation failed.
    ///
    /// # Errors
    /// The whole report.
    pub fn nothing_failed(&self) -> anyhow::Result<()> {
        self.nothing_lost()?;
        ensure!(self.failed == 0, "transfers failed: {self:?}");
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
    fn print(&self, name: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_stalled_or_was_slow_did_not_go_on() {
        let report = |longest: f64, got: u64| LoadReport {
            put: 10,
            got,
            failed: 0,
            missing: 0,
            wrong: 0,
            bytes: 0,
            longest,
            kept: 48,
            unread: 0,
            failures: Vec::new(),
        };
        let pace = Pace {
            longest: Duration::from_secs(1),
            percent: 50,
        };
        let went_on =
            |report: LoadReport| report.went_on(Effort::default(), Duration::from_secs(100), pace);
        // Half of 25 operations a second.
        assert!(went_on(report(0.9, 1240)).is_ok());
        assert!(went_on(report(1.1, 1240)).is_err());
        assert!(went_on(report(0.9, 1239)).is_err());
    }
}

//! What an engine process sends: reports, counters, lines of its log, and calls.

use crds::cluster::Transport;
use crds::node::{PoolAssignment, PoolReport, PoolState};
use crds::reason::Reason;
use engine_process::control::message::{FromEngine, Report, ToEngine};
use pool::handover::{self, EXTENT_LIMIT};

use super::Pod;
use crate::pools::engine_process::EngineProcess;
use crate::pools::transport::Verdict;
use crate::publish::report::PEERS_LIMIT;

/// Longest text of a report in bytes.
const TEXT_LIMIT: usize = 1_024;

impl Pod {
    pub(super) async fn receive(
        &mut self,
        engine: &EngineProcess,
        message: FromEngine,
    ) -> Result<(), handover::Error> {
        match message {
            FromEngine::Hello { .. } => {}
            FromEngine::Call { id, call } => {
                let (answer, socket) = self.answer(call).await;
                let answer = ToEngine::Answer { id, answer };
                engine.send(&answer, socket).await?;
            }
            FromEngine::Report(report) => {
                let Report { pool, memory } = *report;
                self.context.budget.set(&self.uid, memory);
                self.reported = Some(bounded(pool, &self.assignment.pool));
            }
            FromEngine::Traffic {
                mut traffic,
                silent,
            } => {
                self.silent = Some(silent);
                if let Some(traffic) = &mut traffic {
                    traffic.worst_peers.truncate(PEERS_LIMIT);
                }
                self.context.reporter.set_traffic(&self.uid, traffic);
            }
            FromEngine::Log { level, line } => engine.log(&level, &line),
        }
        Ok(())
    }

    /// Reports the state of the pod: that of its engine process, as far as a port is proved over which it serves.
    pub(super) fn publish(&self, engine: &EngineProcess, verdict: Verdict) {
        let Some(mut report) = self.reported.clone() else {
            return;
        };
        if !engine.rdma.is_empty() {
            report.transport = Some(Transport::Rdma.into());
            if let Verdict::Unproved(why) = verdict {
                report.state = PoolState::Refused.into();
                report.reason = Reason::NoUsableTransport.into();
                let ports: Vec<_> = engine.rdma.iter().map(ToString::to_string).collect();
                report.message = format!(
                    "it is served over {}, which peers may not reach: {why}",
                    ports.join(", ")
                );
            }
        }
        self.context
            .reporter
            .set_pool(report, &self.assignment.pool);
    }
}

/// Makes a report one of this pod that fits the node's status. The process may be under the control of an intruder, who must
/// not prevent the status of the other pods.
fn bounded(mut report: PoolReport, of: &PoolAssignment) -> PoolReport {
    report.pod_uid.clone_from(&of.pod_uid);
    report.pod_name.clone_from(&of.pod_name);
    report.namespace.clone_from(&of.namespace);
    let texts = [
        &mut report.message,
        &mut report.endpoint,
        &mut report.master_pod_uid,
    ];
    texts
        .into_iter()
        .chain(&mut report.segments)
        .chain(&mut report.metadata_failure)
        .for_each(|text| {
            text.truncate(text.floor_char_boundary(TEXT_LIMIT));
        });
    report.segments.truncate(EXTENT_LIMIT);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_another_pod_or_of_any_length_becomes_one_of_this_pod() {
        let of: PoolAssignment = serde_json::from_value(serde_json::json!({
            "podUid": "u", "podName": "p", "namespace": "n", "cluster": "c", "clusterUid": "cu", "pool": "default",
            "size": "1Gi", "pageSize": "4Ki", "numaPolicy": "Spread", "drainSeconds": 5,
        }))
        .unwrap();
        let report: PoolReport = serde_json::from_value(serde_json::json!({
            "podUid": "other", "podName": "other", "namespace": "kube-system", "state": "Serving",
            "reason": "AsExpected", "message": "é".repeat(TEXT_LIMIT), "segments": vec!["s"; 5_000],
        }))
        .unwrap();
        let bounded = bounded(report, &of);
        assert_eq!(
            [&bounded.pod_uid, &bounded.pod_name, &bounded.namespace],
            ["u", "p", "n"]
        );
        assert!(bounded.message.len() <= TEXT_LIMIT);
        assert_eq!(bounded.segments.len(), EXTENT_LIMIT);
    }
}

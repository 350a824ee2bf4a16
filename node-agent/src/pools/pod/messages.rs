//! What an engine process sends: reports, counters, lines of its log, and calls.

use crds::cluster::Transport;
use crds::node::{PoolAssignment, PoolReport, PoolState};
use crds::reason::Reason;
use crds::text::clip_bytes;
use crds::word::{Vocabulary, Word};
use engine_process::control::message::{FromEngine, RdmaPort, Report, ToEngine};
use pool::handover::{self, EXTENT_LIMIT};
use tokio::time::Instant;

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
                let Report {
                    pool,
                    memory,
                    registration_seconds,
                } = *report;
                self.context.budget.set(&self.uid, memory);
                self.registration_seconds = registration_seconds;
                self.reported = Some(bounded(pool, &self.assignment.pool));
            }
            FromEngine::Traffic {
                mut traffic,
                silent,
                mut lost,
            } => {
                lost.retain(|device, _| engine.rdma.iter().any(|port| port.device == *device));
                lost.values_mut()
                    .for_each(|why| clip_bytes(why, TEXT_LIMIT));
                self.lost.report(lost, Instant::now());
                self.silent = Some(silent);
                if let Some(traffic) = &mut traffic {
                    traffic.worst_peers.truncate(PEERS_LIMIT);
                }
                self.context.reporter.set_traffic(&self.uid, traffic);
            }
            FromEngine::Log { level, line } => {
                if let Some(omitted) = self.pace.line(Instant::now()) {
                    if omitted > 0 {
                        tracing::warn!(
                            engine = engine.pid,
                            "{omitted} lines of its log are left out: there were too many"
                        );
                    }
                    engine.log(&level, &line);
                }
            }
        }
        Ok(())
    }

    /// Reports the state of the pod: that of its engine process, as far as a port is proved over which it serves.
    pub(super) fn publish(&self, engine: &EngineProcess, verdict: Verdict) {
        let Some(report) = self.reported.clone() else {
            return;
        };
        let report = judged(report, &engine.rdma, verdict);
        self.context
            .reporter
            .set_pool(report, &self.assignment.pool);
    }
}

/// The report of a process that serves peers over these ports beside TCP, as it was judged.
fn judged(mut report: PoolReport, ports: &[RdmaPort], verdict: Verdict) -> PoolReport {
    if !ports.is_empty() {
        report.transport = Some(Transport::Rdma.into());
    }
    // One that ends, or that is refused, has its own cause. So has one that does not serve yet and needs no port for that.
    let own_cause: &[PoolState] = match ports.is_empty() {
        true => &[
            PoolState::Waiting,
            PoolState::Preparing,
            PoolState::Draining,
            PoolState::Released,
            PoolState::Refused,
        ],
        false => &[PoolState::Draining, PoolState::Released, PoolState::Refused],
    };
    let has_own_cause = own_cause.iter().any(|state| report.state == *state);
    match verdict {
        Verdict::Keep {
            unused: Some(port), ..
        } if report.state == PoolState::Serving => {
            report.message +=
                &format!("; {port} is proved too: the next engine process serves over it");
        }
        Verdict::Unproved(why) if !has_own_cause => {
            report.state = PoolState::Refused.into();
            report.reason = Reason::NoUsableTransport.into();
            let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
            report.message = match ports.is_empty() {
                true => format!(
                    "it is served over TCP only, and its cluster uses RDMA. Pods with RDMA fail on its keys, and new keys are \
                     placed in it until a port is proved or this pool pod is deleted: {why}"
                ),
                false => format!(
                    "it is served over {}, which peers may not reach: {why}",
                    ports.join(", ")
                ),
            };
        }
        Verdict::Keep { .. } | Verdict::Unproved(_) | Verdict::Replace(_) => {}
    }
    clip_bytes(&mut report.message, TEXT_LIMIT);
    report
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
        .for_each(|text| clip_bytes(text, TEXT_LIMIT));
    report.segments.truncate(EXTENT_LIMIT);
    if !is_word(report.state) || !is_word(report.reason) {
        report.state = PoolState::Waiting.into();
        report.reason = Reason::PoolPodNotReady.into();
    }
    report.transport = report.transport.filter(|word| is_word(*word));
    report
}

/// Whether a word matches [`crds::word::WORD_PATTERN`]. The API server rejects a whole status with one that does not.
fn is_word<T: Vocabulary>(word: Word<T>) -> bool {
    let bytes = word.as_str().as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter()
        .all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> PoolAssignment {
        serde_json::from_value(serde_json::json!({
            "podUid": "u", "podName": "p", "namespace": "n", "cluster": "c", "clusterUid": "cu", "pool": "default",
            "size": "1Gi", "pageSize": "4Ki", "numaPolicy": "Spread", "drainSeconds": 5,
        }))
        .unwrap()
    }

    #[test]
    fn words_that_the_api_server_rejects_are_replaced() {
        let bounded = |state: &str, reason: &str, transport: &str| {
            let report = serde_json::from_value(serde_json::json!({
                "podUid": "u", "state": state, "reason": reason, "message": "", "transport": transport,
            }));
            let report = bounded(report.unwrap(), &assignment());
            let transport = report.transport.map(|word| word.to_string());
            (
                report.state.to_string(),
                report.reason.to_string(),
                transport,
            )
        };
        let kept = |state: &str, reason: &str, transport: &str| {
            let words = [state, reason, transport].map(str::to_owned);
            let [state, reason, transport] = words;
            (state, reason, Some(transport))
        };
        let known = ["Serving", "AsExpected", "Rdma"];
        assert_eq!(
            bounded(known[0], known[1], known[2]),
            kept(known[0], known[1], known[2])
        );
        assert_eq!(
            bounded("a", "Of-the_next.1", "Shm"),
            kept("a", "Of-the_next.1", "Shm")
        );
        for invalid in ["", "-", "a b", "a-", ".a", "\u{e9}", "a\nb"] {
            let replaced = ("Waiting".to_owned(), "PoolPodNotReady".to_owned(), None);
            assert_eq!(
                bounded(invalid, "AsExpected", invalid),
                replaced,
                "{invalid:?}"
            );
            assert_eq!(
                bounded("Serving", invalid, invalid),
                replaced,
                "{invalid:?}"
            );
        }
    }

    #[test]
    fn a_report_states_that_peers_over_rdma_do_not_reach_a_process() {
        let serving: PoolReport = serde_json::from_value(serde_json::json!({
            "podUid": "u", "state": "Serving", "reason": "AsExpected", "message": "serves", "transport": "Tcp",
        }))
        .unwrap();
        let port: RdmaPort = "rxe0:1:3".parse().unwrap();
        let seen = |ports: &[RdmaPort], verdict| {
            let report = judged(serving.clone(), ports, verdict);
            let transport = report.transport.map(|word| word.to_string());
            let words = [report.state.to_string(), report.reason.to_string()];
            (words.join("/"), transport.unwrap(), report.message)
        };
        let unproved = || Verdict::Unproved("rxe0 port 1: PortNotActive".to_owned());
        let (state, transport, message) = seen(&[], unproved());
        assert_eq!((&*state, &*transport), ("Refused/NoUsableTransport", "Tcp"));
        assert_eq!(
            message,
            "it is served over TCP only, and its cluster uses RDMA. Pods with RDMA fail on its keys, and new keys are placed in it \
             until a port is proved or this pool pod is deleted: rxe0 port 1: PortNotActive"
        );
        let (state, transport, message) = seen(std::slice::from_ref(&port), unproved());
        assert_eq!(
            (&*state, &*transport),
            ("Refused/NoUsableTransport", "Rdma")
        );
        assert_eq!(
            message,
            "it is served over rxe0:1:3, which peers may not reach: rxe0 port 1: PortNotActive"
        );
        let ending = PoolReport {
            state: PoolState::Draining.into(),
            reason: Reason::Draining.into(),
            ..serving.clone()
        };
        for ports in [&[][..], std::slice::from_ref(&port)] {
            let report = judged(ending.clone(), ports, unproved());
            assert_eq!((report.state, report.reason), (ending.state, ending.reason));
        }
        let waiting = PoolReport {
            state: PoolState::Waiting.into(),
            reason: Reason::MemoryUnavailable.into(),
            ..serving.clone()
        };
        let report = judged(waiting.clone(), &[], unproved());
        assert_eq!(report, waiting, "it never served");
        let mounting = PoolReport {
            state: PoolState::Mounting.into(),
            ..waiting
        };
        let report = judged(mounting, &[], unproved());
        assert_eq!(report.reason, Reason::NoUsableTransport);
        let kept = |unused: Option<&str>| Verdict::Keep {
            withheld: std::collections::BTreeSet::new(),
            unused: unused.map(str::to_owned),
        };
        let (state, transport, message) = seen(&[], kept(None));
        let as_reported = ("Serving/AsExpected", "Tcp", "serves");
        assert_eq!((&*state, &*transport, &*message), as_reported);
        let (state, _, message) = seen(&[port], kept(Some("rxe1 port 1")));
        assert_eq!(state, "Serving/AsExpected");
        assert!(
            message.ends_with("rxe1 port 1 is proved too: the next engine process serves over it")
        );
    }

    #[test]
    fn a_report_of_another_pod_or_of_any_length_becomes_one_of_this_pod() {
        let of = assignment();
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

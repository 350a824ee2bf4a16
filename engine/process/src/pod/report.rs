//! The report of a pool pod: state, Reason and message for the status.

use crds::node::{PoolReport, PoolState};
use crds::reason::Reason;
use store::Session;

use super::Pod;
use crate::control::message::Report;
use crate::pod::failure::bounded;
use crate::pod::registering::Registering;
use crate::pod::step::{MetadataFact, Step};

/// Most bytes of segment names in a report. A pool process can declare more extents than have their names in a packet.
const NAMES_LIMIT: usize = 24 << 10;

/// Bounds what others choose, so that the report fits a packet.
fn fitting(mut report: PoolReport) -> PoolReport {
    report.message = bounded(report.message);
    report.metadata_failure = report.metadata_failure.map(bounded);
    let mut bytes = 0;
    let names = report.segments.into_iter().take_while(|name| {
        bytes += name.len();
        bytes <= NAMES_LIMIT
    });
    report.segments = names.collect();
    report
}

impl Pod {
    pub(super) fn publish(&self, step: &Step) {
        self.context.agent.report(Report {
            pool: fitting(self.report(step)),
            memory: self.memory_report(),
            registration_seconds: self.registration_seconds,
        });
    }

    fn report(&self, step: &Step) -> PoolReport {
        let (state, reason, message) = match &self.failure {
            Some((_, failure)) => (
                failure.state(step.state),
                failure.reason,
                failure.message.clone(),
            ),
            None => (step.state, step.reason, self.message(step)),
        };
        let serving = state == PoolState::Serving;
        let epoch = self.record.as_ref().map(|record| &record.epoch);
        let count = self.memory.len();
        let name = |index| {
            let a = &self.assignment;
            crds::names::segment(&a.cluster, &a.pool, &self.context.node_name, index)
        };
        PoolReport {
            pod_uid: self.context.uid.clone(),
            namespace: self.assignment.namespace.clone(),
            pod_name: self.assignment.pod_name.clone(),
            state: state.into(),
            reason: reason.into(),
            message,
            endpoint: self.server_name().unwrap_or_default(),
            master_pod_uid: self
                .mounted_in()
                .filter(|_| serving)
                .map(|master| master.pod_uid.clone())
                .unwrap_or_default(),
            data_epoch: epoch.map_or(0, |epoch| epoch.number),
            segments: if serving {
                (0..count).map(name).collect()
            } else {
                Vec::new()
            },
            mounted: serving.then_some(self.assignment.size),
            page_size_obtained: self
                .memory
                .first()
                .map(|region| crds::ByteSize(region.page_size().bytes())),
            metadata_failure: self.metadata_failure(),
            // The agent knows it.
            transport: None,
        }
    }

    fn metadata_failure(&self) -> Option<String> {
        self.publication.as_ref()?.known().failure
    }

    /// Why RDMA devices do not serve the pool, of those that do not.
    fn left_out(&self) -> Vec<String> {
        let registered = self
            .served
            .as_ref()
            .map(|served| served.endpoint.left_out());
        let opened = self.context.left_out.iter().cloned();
        opened.chain(registered.into_iter().flatten()).collect()
    }

    /// How much of the memory is registered.
    pub(super) fn progress(&self) -> String {
        let percent = self.registering.as_ref().map(Registering::percent);
        format!(
            "{} % of the memory is registered with the RDMA devices; peers over RDMA are served when all is",
            percent.unwrap_or_default()
        )
    }

    /// Message for the status.
    fn message(&self, step: &Step) -> String {
        let session = self.session.as_ref().map(Session::state);
        let session = session.map(|state| state.borrow().to_string());
        match step.state {
            PoolState::Waiting if step.action.is_none() => {
                "waiting for the operator to assign this pod".to_owned()
            }
            PoolState::Waiting => "the engine process connects to the pool process".to_owned(),
            PoolState::Preparing if self.registering.is_some() => self.progress(),
            PoolState::Preparing => {
                let whole: u64 = self.extents.iter().map(|e| e.length).sum();
                let done: u64 = self.extents.iter().map(|e| e.touched).sum();
                let percent = done.saturating_mul(10).checked_div(whole).unwrap_or(0) * 10;
                format!("{percent} % of the memory is touched")
            }
            PoolState::Mounting => match (step.reason, session) {
                (Reason::MasterNotReady, _) => {
                    "the memory is ready; waiting for a ready master".to_owned()
                }
                (Reason::Mounting, _) if self.metadata() == MetadataFact::Unpublished => {
                    self.metadata_failure().unwrap_or_else(|| {
                        "publishing the segment descriptor in the metadata service".to_owned()
                    })
                }
                // One message for short states, to avoid API writes.
                (Reason::Mounting, _) | (_, None) => "mounting in the master".to_owned(),
                (_, Some(session)) => session,
            },
            PoolState::Serving => serving(&self.left_out()),
            PoolState::Draining if self.evacuation.is_running() => {
                "the pod is terminating: its keys move to other pool pods".to_owned()
            }
            PoolState::Draining => "the pod is terminating: unmounting from the master".to_owned(),
            PoolState::Released | PoolState::Refused => {
                "no memory of the pod is mounted".to_owned()
            }
        }
    }
}

fn serving(left_out: &[String]) -> String {
    let served = "mounted and served".to_owned();
    if left_out.is_empty() {
        return served;
    }
    format!(
        "{served}, without some RDMA devices: {}",
        left_out.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pool::handover::Connection;
    use sys::net::seqpacket;

    use super::*;
    use crate::control::message::{FromEngine, MemoryReport};
    use crate::pod::failure::Failure;

    #[test]
    fn a_pool_that_serves_without_a_device_names_it() {
        assert_eq!(serving(&[]), "mounted and served");
        let errors = ["RDMA device a: x", "RDMA device b: y"].map(str::to_owned);
        assert_eq!(
            serving(&errors),
            "mounted and served, without some RDMA devices: RDMA device a: x; RDMA device b: y"
        );
    }

    #[tokio::test]
    async fn a_report_with_the_longest_texts_and_names_fits_a_packet() {
        // Six bytes each in JSON.
        let text = "\u{1}".repeat(100 << 10);
        let failure = Failure::new(Reason::MasterUnreachable, &text);
        assert!(failure.message.len() < 4096);
        let pool: PoolReport = serde_json::from_value(serde_json::json!({
            "podUid": "u", "state": "Mounting", "reason": "MasterUnreachable", "message": text,
            "metadataFailure": text, "segments": vec!["s".repeat(400); 1024],
        }))
        .unwrap();
        let pool = fitting(pool);
        assert!(pool.message.ends_with('…') && pool.segments.len() > 50);
        let memory = MemoryReport {
            holds: true,
            untouched: 0,
            mapped: true,
        };
        let report = FromEngine::Report(Box::new(Report {
            pool,
            memory,
            registration_seconds: None,
        }));
        let (one, other) = seqpacket::pair().unwrap();
        let (one, other) = (
            Connection::new(one).unwrap(),
            Connection::new(other).unwrap(),
        );
        let (sent, received) = tokio::join!(
            one.send(&report, &[], Duration::from_secs(5)),
            other.receive()
        );
        sent.unwrap();
        assert_eq!(report, received.unwrap().0);
    }
}

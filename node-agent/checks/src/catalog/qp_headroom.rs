//! `QpHeadroom`: each device has free queue pairs for new connections. Stock engines create one per peer and release
//! few. The kernel counts those of all processes.

use crds::{CheckId, Reason};
use rdma_probe::Report;

use crate::debounce::Delays;
use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check =
    Check::new(CheckId::QpHeadroom, &[Reason::QueuePairsLow], run).with_delays(Delays::LONG);

/// Tenths of its queue pairs above which a device is nearly full.
const NEARLY: u64 = 9;

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observations = input.snapshot.facts.hcas.iter().filter_map(|hca| {
        let report = input.snapshot.hca_reports.get(&hca.name)?;
        observe(&hca.name, report)
    });
    observations.collect()
}

fn observe(name: &str, report: &Report) -> Option<Observation> {
    let most = u64::from(report.limits?.max_qp);
    let usage = report.usage.as_ref()?;
    if usage.queue_pairs * 10 <= most * NEARLY {
        return Some(Observation::pass(name));
    }
    // Named only where it holds more than all others together: the largest of equals changes all the time.
    let holder = usage
        .holders
        .first()
        .filter(|holder| holder.queue_pairs * 2 > usage.queue_pairs);
    let by = holder.map_or_else(String::new, |holder| {
        format!(", most of them by {}", holder.process)
    });
    let message = format!("more than {NEARLY} tenths of its {most} queue pairs are in use{by}");
    Some(Observation::warn(name, Reason::QueuePairsLow, message))
}

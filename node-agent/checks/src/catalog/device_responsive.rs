//! `DeviceResponsive`: requests to the driver of each RDMA device return. A device that hangs is not allocatable.

use std::collections::BTreeSet;

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};
use host::fault::Problem;
use host::hca::CLASS;

pub(crate) const CHECK: Check = Check::new(CheckId::DeviceResponsive, &[Reason::DeviceHung], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let hung = input.snapshot.facts.faults.iter().filter_map(|fault| {
        let name = fault.path.strip_prefix(CLASS)?.split('/').nth(1)?;
        (fault.problem == Problem::Hung).then_some(name)
    });
    let hung: BTreeSet<&str> = hung.collect();
    let observe = |hca: &host::hca::Hca| {
        if hung.contains(hca.name.as_str()) {
            let message = "reading its files in sysfs does not return";
            Observation::fail(&hca.name, Reason::DeviceHung, message)
        } else if let Some(stage) = input
            .snapshot
            .hca_reports
            .get(&hca.name)
            .and_then(|report| report.hung)
        {
            let message = format!("verbs: {} does not return", stage.description());
            Observation::fail(&hca.name, Reason::DeviceHung, message)
        } else {
            Observation::pass(&hca.name)
        }
    };
    input.snapshot.facts.hcas.iter().map(observe).collect()
}

//! `HostReadable`: the files with the node's facts can be read, so that an unread file does not count as a pass.

use std::collections::BTreeMap;

use crds::text::first_names;
use crds::{CheckId, Reason};

use crate::{Check, CheckInput, CheckRun, NODE, Observation};
use host::fault::Fault;
use host::hca::CLASS;

pub(crate) const CHECK: Check = Check::new(CheckId::HostReadable, &[Reason::HostUnreadable], run);

/// Most files of a folder in a message.
const MAX_FILES: usize = 3;

/// One observation for each folder, as all of its files often share one cause.
fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let mut folders = BTreeMap::<&str, Vec<&Fault>>::new();
    for fault in &input.snapshot.facts.faults {
        // Files of RDMA devices belong to `DeviceReadable`.
        if !fault.path.starts_with(CLASS) {
            let folder = fault.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            folders.entry(folder).or_default().push(fault);
        }
    }
    if folders.is_empty() {
        return vec![Observation::pass(NODE)];
    }
    let observe = |(folder, faults): (&str, Vec<&Fault>)| {
        let files = faults.iter().map(|fault| {
            let name = fault.path.rsplit('/').next().unwrap_or_default();
            format!("{name}: {}", fault.problem)
        });
        let message = format!("cannot read {}", first_names(files, MAX_FILES));
        Observation::unknown(format!("/{folder}"), Reason::HostUnreadable, message)
    };
    folders.into_iter().map(observe).collect()
}

/// The result where the node could not be read for that many seconds, so that earlier results are out of date.
pub fn unread_for(seconds: u64) -> CheckRun {
    let message = format!("reading its facts has not returned for {seconds} s; a driver may hang");
    CheckRun {
        check: CHECK.id,
        delays: CHECK.delays,
        observations: vec![Observation::fail(NODE, Reason::HostUnreadable, message)],
        panicked: false,
    }
}

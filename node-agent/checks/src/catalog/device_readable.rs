//! `DeviceReadable`: the files of each RDMA device can be read. A driver that returns errors is failing, or has failed.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};
use host::fault::{Fault, Problem};
use host::hca::{CLASS, Hca};

pub(crate) const CHECK: Check = Check::new(
    CheckId::DeviceReadable,
    &[Reason::DeviceFault, Reason::HostUnreadable],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observe = |hca: &Hca| {
        let at = format!("{CLASS}/{}/", hca.name);
        let of = |fault: &&Fault| fault.path.starts_with(&at) && fault.problem != Problem::Hung;
        let faults: Vec<&Fault> = input.snapshot.facts.faults.iter().filter(of).collect();
        let Some(first) = faults.first() else {
            return Observation::pass(&hca.name);
        };
        let file = first.path.strip_prefix(&at).unwrap_or(&first.path);
        let more = match faults.len() {
            1 => String::new(),
            count => format!(", and {} other files", count - 1),
        };
        let message = format!("reading {file} fails: {}{more}", first.problem);
        // Other problems are texts that the agent does not understand.
        if matches!(first.problem, Problem::Errno(_)) {
            Observation::warn(&hca.name, Reason::DeviceFault, message)
        } else {
            Observation::unknown(&hca.name, Reason::HostUnreadable, message)
        }
    };
    input.snapshot.facts.hcas.iter().map(observe).collect()
}

//! `DeviceReadable`: a device whose driver answers with an error is about to be lost, or is lost.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::fault::{Fault, Problem};
use crate::host::hca::{CLASS, Hca};

pub(super) const CHECK: Check = Check {
    id: CheckId::DeviceReadable,
    reasons: &[Reason::DeviceFault, Reason::HostUnreadable],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let say = |hca: &Hca| {
        let at = format!("{CLASS}/{}/", hca.name);
        let of = |fault: &&Fault| fault.path.starts_with(&at) && fault.problem != Problem::Hung;
        let faults: Vec<&Fault> = world.facts.faults.iter().filter(of).collect();
        let Some(first) = faults.first() else {
            return Said::pass(&hca.name);
        };
        let file = first.path.strip_prefix(&at).unwrap_or(&first.path);
        let more = match faults.len() {
            1 => String::new(),
            count => format!(", and {} more files", count - 1),
        };
        let words = format!("{file} gives {}{more}", first.problem);
        // The kernel refuses; or it tells what nobody understands.
        if matches!(first.problem, Problem::Errno(_)) {
            Said::warn(&hca.name, Reason::DeviceFault, words)
        } else {
            Said::unknown(&hca.name, Reason::HostUnreadable, words)
        }
    };
    world.facts.hcas.iter().map(say).collect()
}

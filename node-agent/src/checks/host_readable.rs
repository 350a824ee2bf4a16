//! `HostReadable`: what cannot be read is said, so that nobody takes silence for health.

use std::collections::BTreeMap;

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Judged, NODE, Said, World};
use crate::host::fault::Fault;
use crate::host::hca::CLASS;

pub(super) const CHECK: Check = Check {
    id: CheckId::HostReadable,
    reasons: &[Reason::HostUnreadable],
    patience: Patience::SHORT,
    look,
};

/// One word for each folder, as all of its files often share one cause.
fn look(world: &World<'_>) -> Vec<Said> {
    let mut folders = BTreeMap::<&str, Vec<&Fault>>::new();
    for fault in &world.facts.faults {
        // What is a device's is said of the device.
        if !fault.path.starts_with(CLASS) {
            let folder = fault.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            folders.entry(folder).or_default().push(fault);
        }
    }
    if folders.is_empty() {
        return vec![Said::pass(NODE)];
    }
    let say = |(folder, faults): (&str, Vec<&Fault>)| {
        let told = faults.iter().take(3).map(|fault| {
            let name = fault.path.rsplit('/').next().unwrap_or_default();
            format!("{name} gives {}", fault.problem)
        });
        let told: Vec<String> = told.collect();
        let more = match faults.len().saturating_sub(told.len()) {
            0 => String::new(),
            count => format!(", and {count} more"),
        };
        let words = format!("{}{more}", told.join(", "));
        Said::unknown(format!("/{folder}"), Reason::HostUnreadable, words)
    };
    folders.into_iter().map(say).collect()
}

/// What is said where nobody has seen the node for that many seconds: neither health nor trouble that
/// was seen before is proved any more.
pub(crate) fn unseen(seconds: u64) -> Judged {
    let words = format!("it could not be looked at for {seconds} s: the kernel keeps who tries");
    Judged {
        check: CHECK.id,
        patience: CHECK.patience,
        said: vec![Said::fail(NODE, Reason::HostUnreadable, words)],
        broken: false,
    }
}

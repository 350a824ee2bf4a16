//! `DeviceAnswers`: a device whose driver holds whoever asks it is not to be used by anybody.

use std::collections::BTreeSet;

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::fault::Problem;
use crate::host::hca::CLASS;

pub(super) const CHECK: Check = Check {
    id: CheckId::DeviceAnswers,
    reasons: &[Reason::DeviceHung],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let hung = world.facts.faults.iter().filter_map(|fault| {
        let name = fault.path.strip_prefix(CLASS)?.split('/').nth(1)?;
        (fault.problem == Problem::Hung).then_some(name)
    });
    let hung: BTreeSet<&str> = hung.collect();
    let say = |hca: &crate::host::hca::Hca| {
        if hung.contains(hca.name.as_str()) {
            let words = "whoever asks the kernel about it waits without end";
            Said::fail(&hca.name, Reason::DeviceHung, words)
        } else if let Some(stage) = hca.verbs.as_ref().and_then(|answer| answer.hung) {
            let words = format!("{} by verbs does not end", stage.words());
            Said::fail(&hca.name, Reason::DeviceHung, words)
        } else {
            Said::pass(&hca.name)
        }
    };
    world.facts.hcas.iter().map(say).collect()
}

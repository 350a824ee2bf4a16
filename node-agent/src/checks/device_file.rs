//! `DeviceFile`: without its file in /dev/infiniband a device is seen by all and opened by nobody.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::DeviceFile,
    reasons: &[Reason::DeviceFileMissing],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let kernel = &world.facts.kernel;
    let loaded = kernel
        .modules
        .iter()
        .any(|module| module.name == "ib_uverbs");
    // Of a device that hangs nothing is known.
    let known = world.facts.hcas.iter().filter(|hca| !hca.ports.is_empty());
    let say = |hca: &crate::host::hca::Hca| match &hca.device_file {
        Some(_) => Said::pass(&hca.name),
        None => {
            let why = if loaded {
                "ib_uverbs is loaded"
            } else {
                "ib_uverbs is not loaded"
            };
            let words = format!("no file in /dev/infiniband has its numbers; {why}");
            Said::fail(&hca.name, Reason::DeviceFileMissing, words)
        }
    };
    known.map(say).collect()
}

//! `DeviceFile`: each RDMA device has a file in /dev/infiniband; programs cannot open a device without one.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check = Check::new(CheckId::DeviceFile, &[Reason::DeviceFileMissing], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let loaded = input.snapshot.facts.kernel.has_module("ib_uverbs");
    // Nothing is known about a device that hangs.
    let known = input
        .snapshot
        .facts
        .hcas
        .iter()
        .filter(|hca| !hca.ports.is_empty());
    let observe = |hca: &host::hca::Hca| match &hca.device_file {
        Some(_) => Observation::pass(&hca.name),
        None => {
            let module = if loaded { "is" } else { "is not" };
            let message = format!(
                "no file in /dev/infiniband has its device number; module ib_uverbs {module} loaded"
            );
            Observation::fail(&hca.name, Reason::DeviceFileMissing, message)
        }
    };
    known.map(observe).collect()
}

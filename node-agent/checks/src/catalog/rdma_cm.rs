//! `RdmaCm`: the device file of the RDMA connection manager exists. perftest, NCCL's plugins and NVMe-oF use it.

use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check = Check::new(CheckId::RdmaCm, &[Reason::RdmaCmMissing], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    const SUBJECT: &str = "/dev/infiniband/rdma_cm";
    if rails::devices(&input.snapshot.facts).next().is_none() {
        return Vec::new();
    }
    if input.snapshot.facts.rdma_cm.is_some() {
        return vec![Observation::pass(SUBJECT)];
    }
    let message = if input.snapshot.facts.kernel.has_module("rdma_ucm") {
        "module rdma_ucm is loaded, but its device file does not exist"
    } else {
        "module rdma_ucm is not loaded"
    };
    vec![Observation::warn(SUBJECT, Reason::RdmaCmMissing, message)]
}

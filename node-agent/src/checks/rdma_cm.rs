//! `RdmaCm`: perftest, NCCL's plugins and NVMe-oF meet their peers through the connection manager.

use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::RdmaCm,
    reasons: &[Reason::RdmaCmMissing],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    const SUBJECT: &str = "/dev/infiniband/rdma_cm";
    if rails::devices(world.facts).next().is_none() {
        return Vec::new();
    }
    if world.facts.rdma_cm.is_some() {
        return vec![Said::pass(SUBJECT)];
    }
    let modules = &world.facts.kernel.modules;
    let loaded = modules.iter().any(|module| module.name == "rdma_ucm");
    let words = if loaded {
        "rdma_ucm is loaded, and its device file is not there"
    } else {
        "rdma_ucm is not loaded"
    };
    vec![Said::warn(SUBJECT, Reason::RdmaCmMissing, words)]
}

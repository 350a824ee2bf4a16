//! `GpuDirect`: whether the GPU driver lets RDMA devices reach GPU memory, by either way. That it
//! really works only a registration shows.

use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

/// Modules through which a driver of RDMA devices asks that of the GPUs.
const PEER_MEMORY: [&str; 2] = ["nv_peer_mem", "nvidia_peermem"];

pub(super) const CHECK: Check = Check {
    id: CheckId::GpuDirect,
    reasons: &[Reason::GpuDirectUnavailable],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    let Some(driver) = &facts.gpu_driver else {
        return Vec::new();
    };
    let real = rails::devices(facts).any(|hca| hca.pci.is_some());
    if facts.gpus.is_empty() || !real {
        return Vec::new();
    }
    let peer = facts
        .kernel
        .modules
        .iter()
        .any(|module| PEER_MEMORY.contains(&module.name.as_str()));
    if peer || driver.open {
        return vec![Said::pass("GPU driver")];
    }
    let words = format!(
        "nvidia_peermem is not loaded, and driver {} is not the open one that exports dma-buf",
        driver.version
    );
    vec![Said::warn(
        "GPU driver",
        Reason::GpuDirectUnavailable,
        words,
    )]
}

//! `GpuRail`: a GPU whose own RDMA device is lost sends over a farther one, slowly and unnoticed. A GPU
//! that has none near by was built so, which is no fault.

use crds::inventory::Distance;
use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::Facts;
use crate::host::gpu::Gpu;
use crate::host::hca::{Hca, Port};

pub(super) const CHECK: Check = Check {
    id: CheckId::GpuRail,
    reasons: &[Reason::GpuRailLost],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    facts
        .gpus
        .iter()
        .filter_map(|gpu| say(facts, gpu))
        .collect()
}

fn say(facts: &Facts, gpu: &Gpu) -> Option<Said> {
    let is_usable = |hca: &&Hca| hca.ports.iter().any(Port::is_usable);
    let far = |hca: &Hca| Facts::distance(hca, gpu);
    let nearest = rails::devices(facts).map(far).min()?;
    if nearest > Distance::NumaNode {
        return None;
    }
    let subject = format!("GPU {}", gpu.pci.address);
    let left = rails::devices(facts).filter(is_usable).map(far).min();
    if left == Some(nearest) {
        return Some(Said::pass(subject));
    }
    let lost = rails::devices(facts).filter(|hca| far(hca) == nearest);
    let lost: Vec<&str> = lost.map(|hca| hca.name.as_str()).collect();
    let words = match left {
        Some(left) => format!(
            "{} ({nearest}) cannot be used, what is left is farther ({left})",
            lost.join(", ")
        ),
        None => format!(
            "{} ({nearest}) cannot be used, nor any other",
            lost.join(", ")
        ),
    };
    Some(Said::warn(subject, Reason::GpuRailLost, words))
}

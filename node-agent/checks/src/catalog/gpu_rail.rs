//! `GpuRail`: the RDMA device nearest to each GPU is usable. Otherwise the GPU uses a farther one, slowly and without an
//! error. A GPU without an RDMA device on its NUMA node is not checked.

use crds::inventory::Distance;
use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};
use host::Facts;
use host::gpu::Gpu;
use host::hca::{Hca, Port};

pub(crate) const CHECK: Check = Check::new(CheckId::GpuRail, &[Reason::GpuRailLost], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let facts = &input.snapshot.facts;
    facts
        .gpus
        .iter()
        .filter_map(|gpu| observe(facts, gpu))
        .collect()
}

fn observe(facts: &Facts, gpu: &Gpu) -> Option<Observation> {
    let is_usable = |hca: &&Hca| hca.ports.iter().any(Port::is_usable);
    let distance = |hca: &Hca| Facts::distance(hca, gpu);
    let nearest = rails::devices(facts).map(distance).min()?;
    if nearest > Distance::NumaNode {
        return None;
    }
    let subject = format!("GPU {}", gpu.pci.address);
    let left = rails::devices(facts).filter(is_usable).map(distance).min();
    if left == Some(nearest) {
        return Some(Observation::pass(subject));
    }
    let lost = rails::devices(facts).filter(|hca| distance(hca) == nearest);
    let lost: Vec<&str> = lost.map(|hca| hca.name.as_str()).collect();
    let left = match left {
        Some(left) => format!("the nearest usable device is farther ({left})"),
        None => "no other device can be used".to_owned(),
    };
    let message = format!("{} ({nearest}) cannot be used; {left}", lost.join(", "));
    Some(Observation::warn(subject, Reason::GpuRailLost, message))
}

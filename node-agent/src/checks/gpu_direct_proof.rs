//! `GpuDirectProof`: that drivers can do it says little. An RDMA device reaches a GPU's memory when bytes went
//! there and back, by CUDA's word. Of pairs that could not be tried nothing is said: GPUs are in use.

use crds::{CheckId, Reason};
use nvidia::Way;

use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::gpu::Reached;

pub(super) const CHECK: Check = Check {
    id: CheckId::GpuDirectProof,
    reasons: &[Reason::GpuDirectFailed],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let gpus = world.facts.gpus.iter();
    let paths = gpus.flat_map(|gpu| gpu.paths.iter().map(move |path| (gpu, path)));
    let said = paths.filter_map(|(gpu, path)| {
        let subject = format!("{} and GPU {}", path.device, gpu.pci.address);
        match &path.reached {
            Reached::Unproved { .. } => None,
            Reached::Proved { .. } => Some(Said::pass(subject)),
            Reached::Failed { proof } => {
                let failed = proof.failed.as_ref()?;
                let way = match proof.way {
                    Some(Way::DmaBuf) => "by dma-buf, ",
                    Some(Way::PeerMemory) => "by peer memory, ",
                    None => "",
                };
                let words = format!("{way}{} fails: {}", failed.stage.words(), failed.words);
                Some(Said::fail(subject, Reason::GpuDirectFailed, words))
            }
        }
    });
    said.collect()
}

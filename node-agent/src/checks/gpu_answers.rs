//! `GpuAnswers`: a GPU whose driver holds whoever asks it, or that NVML says is lost, is not to be used by
//! anybody. Where the driver's libraries are not on the node nothing is said.

use crds::{CheckId, Reason};
use nvidia::{Answer, Stage};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::GpuAnswers,
    reasons: &[
        Reason::DeviceHung,
        Reason::GpuLost,
        Reason::FabricManagerNotReady,
        Reason::GpuUnasked,
    ],
    patience: Patience::SHORT,
    look,
};

/// By which NVML says that a GPU has fallen off the bus.
const GPU_IS_LOST: u32 = 15;

/// By which CUDA says that GPUs which share memory by NVLink switches are not yet set up.
const SYSTEM_NOT_READY: u32 = 802;

fn look(world: &World<'_>) -> Vec<Said> {
    let gpus = world.facts.gpus.iter();
    let said = gpus.filter_map(|gpu| {
        let subject = format!("GPU {}", gpu.pci.address);
        say(subject, gpu.answer.as_ref()?)
    });
    said.collect()
}

fn say(subject: String, answer: &Answer) -> Option<Said> {
    if let Some(stage) = answer.hung {
        let words = format!("{} does not end", stage.words());
        return Some(Said::fail(subject, Reason::DeviceHung, words));
    }
    let Some(failed) = &answer.failed else {
        return Some(Said::pass(subject));
    };
    let words = format!("{} fails: {}", failed.stage.words(), failed.words);
    match (failed.stage, failed.number) {
        (Stage::Absent, _) => None,
        (Stage::Find, Some(GPU_IS_LOST)) => Some(Said::fail(subject, Reason::GpuLost, words)),
        (Stage::Cuda, Some(SYSTEM_NOT_READY)) => {
            Some(Said::fail(subject, Reason::FabricManagerNotReady, words))
        }
        _ => Some(Said::unknown(subject, Reason::GpuUnasked, words)),
    }
}

//! `GpuResponsive`: the driver of each GPU answers, and does not report the GPU as lost. Nothing is reported where the
//! driver's libraries are not on the node.

use crds::{CheckId, Reason};
use gpu_probe::{Report, Stage};

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check = Check::new(
    CheckId::GpuResponsive,
    &[
        Reason::DeviceHung,
        Reason::GpuLost,
        Reason::FabricManagerNotReady,
        Reason::GpuProbeFailed,
    ],
    run,
);

/// `NVML_ERROR_GPU_IS_LOST`.
const GPU_IS_LOST: u32 = 15;

/// `CUDA_ERROR_SYSTEM_NOT_READY`: the fabric manager has not set up the NVLink switches.
const SYSTEM_NOT_READY: u32 = 802;

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let gpus = input.snapshot.facts.gpus.iter();
    let observations = gpus.filter_map(|gpu| {
        let subject = format!("GPU {}", gpu.pci.address);
        observe(subject, input.snapshot.gpu_reports.get(&gpu.pci.address)?)
    });
    observations.collect()
}

fn observe(subject: String, report: &Report) -> Option<Observation> {
    if let Some(stage) = report.hung {
        let message = format!("{} does not return", stage.description());
        return Some(Observation::fail(subject, Reason::DeviceHung, message));
    }
    let Some(failed) = &report.failed else {
        return Some(Observation::pass(subject));
    };
    let message = format!("{} fails: {}", failed.stage.description(), failed.message);
    match (failed.stage, failed.number) {
        (Stage::Absent, _) => None,
        (Stage::Find, Some(GPU_IS_LOST)) => {
            Some(Observation::fail(subject, Reason::GpuLost, message))
        }
        (Stage::Cuda, Some(SYSTEM_NOT_READY)) => Some(Observation::fail(
            subject,
            Reason::FabricManagerNotReady,
            message,
        )),
        _ => Some(Observation::unknown(
            subject,
            Reason::GpuProbeFailed,
            message,
        )),
    }
}

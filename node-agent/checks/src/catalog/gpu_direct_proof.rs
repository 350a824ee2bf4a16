//! `GpuDirectProof`: bytes that an RDMA device wrote to GPU memory and read back were the same. Pairs that could not
//! be probed, such as GPUs in use, are skipped.

use crds::{CheckId, Reason};
use gpu_probe::Method;

use crate::{Check, CheckInput, Observation};
use host::gpu::Reached;

pub(crate) const CHECK: Check =
    Check::new(CheckId::GpuDirectProof, &[Reason::GpuDirectFailed], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let gpus = input.snapshot.gpu_paths.iter();
    let paths = gpus.flat_map(|(gpu, paths)| paths.iter().map(move |path| (gpu, path)));
    let observations = paths.filter_map(|(gpu, path)| {
        let subject = format!("{} and GPU {gpu}", path.device);
        match &path.reached {
            Reached::Unproved { .. } => None,
            Reached::Proved { .. } => Some(Observation::pass(subject)),
            Reached::Failed { proof } => {
                let failed = proof.failed.as_ref()?;
                let access = match proof.method {
                    Some(Method::DmaBuf) => "by dma-buf, ",
                    Some(Method::PeerMemory) => "by peer memory, ",
                    None => "",
                };
                let message = format!(
                    "{access}{} fails: {}",
                    failed.stage.description(),
                    failed.message
                );
                Some(Observation::fail(subject, Reason::GpuDirectFailed, message))
            }
        }
    });
    observations.collect()
}

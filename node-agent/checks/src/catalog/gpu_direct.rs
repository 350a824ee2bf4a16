//! `GpuDirect`: the GPU driver gives RDMA devices access to GPU memory, by dma-buf or nvidia_peermem. Whether the
//! access works is checked by `GpuDirectProof`.

use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check =
    Check::new(CheckId::GpuDirect, &[Reason::GpuDirectUnavailable], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let facts = &input.snapshot.facts;
    let Some(driver) = &facts.gpu_driver else {
        return Vec::new();
    };
    let on_pci = rails::devices(facts).any(|hca| hca.pci.is_some());
    if facts.gpus.is_empty() || !on_pci {
        return Vec::new();
    }
    let peer = facts.peer_memory();
    // A GPU that supports neither, such as a workstation GPU, lacks nothing.
    let mut capable = input
        .snapshot
        .gpu_direct()
        .filter(|(dma_buf, gpu_direct)| *dma_buf || *gpu_direct)
        .peekable();
    if capable.peek().is_none() {
        return Vec::new();
    }
    let closed = capable.filter(|(dma_buf, _)| !dma_buf && !peer).count();
    if closed == 0 {
        return vec![Observation::pass("GPU driver")];
    }
    let probed = input.snapshot.gpu_reports.values().any(|report| {
        report
            .facts
            .as_ref()
            .is_some_and(|facts| facts.cuda.is_some())
    });
    let message = if !probed {
        format!(
            "nvidia_peermem is not loaded, and driver {} is not the open kernel module, which exports dma-buf",
            driver.version
        )
    } else {
        format!(
            "nvidia_peermem is not loaded, and CUDA reports no dma-buf export for {closed} GPUs"
        )
    };
    vec![Observation::warn(
        "GPU driver",
        Reason::GpuDirectUnavailable,
        message,
    )]
}

#[cfg(test)]
mod tests {
    use crds::MooncakeNodeSpec;
    use gpu_probe::{Cuda, Report};

    use super::*;
    use host::Host;

    const MACHINE: &str = include_str!("../../../host/machines/dgx-h100.txt");

    /// Messages of the check on a DGX with these drivers and capabilities; none where nothing was checked.
    fn messages(open: bool, peer: bool, can: Option<Cuda>) -> Option<Option<String>> {
        let mut snapshot = Host::parse(MACHINE).unwrap().snapshot();
        let facts = &mut snapshot.facts;
        facts.gpu_driver.as_mut().unwrap().open = open;
        if !peer {
            let modules = &mut facts.kernel.modules;
            modules.retain(|module| !module.name.contains("peer"));
        }
        snapshot.gpu_reports.clear();
        for gpu in &facts.gpus {
            let report = can.map(|cuda| Report {
                facts: Some(gpu_probe::Facts {
                    uuid: String::new(),
                    name: String::new(),
                    driver: String::new(),
                    fabric: None,
                    processes: 0,
                    divided: false,
                    cuda: Some(cuda),
                }),
                ..Report::default()
            });
            let address = gpu.pci.address.clone();
            snapshot
                .gpu_reports
                .extend(report.map(|report| (address, report)));
        }
        let first = run(&CheckInput::of(&snapshot, &MooncakeNodeSpec::default()))
            .into_iter()
            .next()?;
        Some(first.finding.map(|finding| finding.message))
    }

    #[test]
    fn cuda_attributes_of_a_gpu_override_the_kind_of_its_driver() {
        let can = |gpu_direct, dma_buf| {
            Some(Cuda {
                gpu_direct,
                dma_buf,
            })
        };
        let pass = Some(None);
        assert_eq!(messages(true, false, None), pass);
        let none = messages(true, false, can(true, false)).unwrap().unwrap();
        assert!(none.contains("export for 8 GPUs"), "{none}");
        assert_eq!(messages(true, true, can(true, false)), pass);
        assert_eq!(messages(false, false, can(true, true)), pass);
        assert!(messages(false, false, None).unwrap().is_some());
        assert_eq!(
            messages(true, false, can(false, false)),
            None,
            "supports neither"
        );
    }
}

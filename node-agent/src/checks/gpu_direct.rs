//! `GpuDirect`: whether the GPU driver lets RDMA devices reach GPU memory, by either way. That it
//! really works only a registration shows.

use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

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
    let peer = facts.peer_memory();
    // A GPU that is made for neither, such as one for desks, lacks nothing.
    let mut ways = facts
        .gpu_direct()
        .filter(|(dma_buf, gpu_direct)| *dma_buf || *gpu_direct)
        .peekable();
    if ways.peek().is_none() {
        return Vec::new();
    }
    let shut = ways.filter(|(dma_buf, _)| !dma_buf && !peer).count();
    if shut == 0 {
        return vec![Said::pass("GPU driver")];
    }
    let asked = facts.gpus.iter().filter(|gpu| gpu.can().is_some()).count();
    let words = if asked == 0 {
        format!(
            "nvidia_peermem is not loaded, and driver {} is not the open one that exports dma-buf",
            driver.version
        )
    } else {
        format!(
            "nvidia_peermem is not loaded, and CUDA says of {shut} GPUs that they export no dma-buf"
        )
    };
    vec![Said::warn(
        "GPU driver",
        Reason::GpuDirectUnavailable,
        words,
    )]
}

#[cfg(test)]
mod tests {
    use nvidia::{Answer, Cuda};

    use super::*;
    use crate::host::recording::Recording;
    use crate::host::{Facts, Host};

    const MACHINE: &str = include_str!("../../tests/machines/dgx-h100.txt");

    /// What is said of a DGX of whose GPUs CUDA says this.
    fn said(open: bool, peer: bool, can: Option<Cuda>) -> Option<Option<String>> {
        let mut facts: Facts = Host::recorded(Recording::parse(MACHINE).unwrap()).facts();
        facts.gpu_driver.as_mut().unwrap().open = open;
        if !peer {
            let modules = &mut facts.kernel.modules;
            modules.retain(|module| !module.name.contains("peer"));
        }
        for gpu in &mut facts.gpus {
            gpu.answer = can.map(|cuda| Answer {
                facts: Some(nvidia::Facts {
                    uuid: String::new(),
                    name: String::new(),
                    driver: String::new(),
                    fabric: None,
                    processes: 0,
                    divided: false,
                    cuda: Some(cuda),
                }),
                ..Answer::default()
            });
        }
        let said = look(&World::idle(&facts)).into_iter().next()?;
        Some(said.trouble.map(|trouble| trouble.words))
    }

    #[test]
    fn s27_s28_what_cuda_says_of_a_gpu_counts_for_more_than_the_kind_of_its_driver() {
        let can = |gpu_direct, dma_buf| {
            Some(Cuda {
                gpu_direct,
                dma_buf,
            })
        };
        let well = Some(None);
        assert_eq!(said(true, false, None), well);
        let none = said(true, false, can(true, false)).unwrap().unwrap();
        assert!(none.contains("CUDA says of 8 GPUs"), "{none}");
        assert_eq!(said(true, true, can(true, false)), well);
        assert_eq!(said(false, false, can(true, true)), well);
        assert!(said(false, false, None).unwrap().is_some());
        assert_eq!(
            said(true, false, can(false, false)),
            None,
            "made for neither"
        );
    }
}

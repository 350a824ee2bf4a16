//! Probes one GPU step by step. Each result is noted at once, since the next step may hang.

use std::path::Path;
use std::time::Duration;

use harness::Progress;
use sys::nvidia::cuda::{self, Attribute};
use sys::nvidia::nvml;
use sys::verbs;

use crate::proof::{failure, prove};
use crate::{Cuda, Fabric, Facts, Failure, Pair, Proof, Report, Request, Stage};

/// Probes a GPU; the report names the stage that exceeds the deadline.
pub fn probe(request: Request) -> Report {
    let deadline = Duration::from_millis(request.deadline_ms);
    let (mut report, hung) = harness::run_until(deadline, Stage::View, move |progress| {
        if let Err(failed) = (Probe { progress }).run(&request) {
            progress.note(|report: &mut Report| report.failed = Some(failed));
        }
    });
    report.hung = hung;
    report
}

struct Probe<'a> {
    progress: &'a Progress<Report, Stage>,
}

impl Probe<'_> {
    fn at(&self, stage: Stage) {
        self.progress.at(stage);
    }

    /// Mounts the node's devices only in a network namespace of the node.
    fn run(&self, request: &Request) -> Result<(), Failure> {
        let network = request.network.as_deref();
        let root = request.root.as_deref().unwrap_or_else(|| Path::new("/"));
        let mounts = (network.is_some() && root != Path::new("/")).then_some(root);
        harness::enter(
            network,
            mounts,
            &[verbs::mount_host_devices, verbs::mount_driver_gpus],
            || self.run_inside(request, root),
        )
        .unwrap_or_else(|error| {
            Err(Failure {
                stage: Stage::View,
                number: error.errno().map(i32::unsigned_abs),
                message: error.to_string(),
            })
        })
    }

    fn run_inside(&self, request: &Request, root: &Path) -> Result<(), Failure> {
        let Some(free) = self.facts(root, &request.gpu)? else {
            return Ok(());
        };
        if let Some(pair) = &request.pair
            && let Err(failed) = idle(&free)
        {
            // CUDA opens the GPU, which would disturb its users.
            let proof = unproved(pair, failed);
            self.progress.note(|report| report.proof = Some(proof));
            return Ok(());
        }
        self.at(Stage::Cuda);
        let cuda = cuda::open(root).map_err(|error| failure(Stage::Cuda, &error))?;
        self.at(Stage::Attributes);
        let attributes = |error| failure(Stage::Attributes, &error);
        let device = cuda.device(&request.gpu).map_err(attributes)?;
        let can = |attribute| device.supports(attribute).map_err(attributes);
        let capabilities = Cuda {
            gpu_direct: can(Attribute::GpuDirectRdma)?,
            dma_buf: can(Attribute::DmaBuf)?,
        };
        self.progress.note(|report| {
            if let Some(facts) = &mut report.facts {
                facts.cuda = Some(capabilities);
            }
        });
        if let Some(pair) = &request.pair {
            let proof = self.proof(&free, &device, capabilities, pair);
            self.progress.note(|report| report.proof = Some(proof));
        }
        Ok(())
    }

    /// Reads facts with NVML. None for a GPU with MIG instances: CUDA sees only one of them.
    fn facts(&self, root: &Path, address: &str) -> Result<Option<nvml::Gpu>, Failure> {
        self.at(Stage::Nvml);
        let nvml = nvml::open(root).map_err(|error| failure(Stage::Nvml, &error))?;
        self.at(Stage::Find);
        let gpu = nvml
            .gpu(address)
            .map_err(|error| failure(Stage::Find, &error))?;
        self.at(Stage::Identify);
        let identify = |error| failure(Stage::Identify, &error);
        let (uuid, name) = (gpu.uuid().map_err(identify)?, gpu.name().map_err(identify)?);
        let driver = nvml.driver_version().map_err(identify)?;
        let divided = gpu.is_mig_enabled().map_err(identify)?;
        self.at(Stage::Fabric);
        let fabric = gpu
            .fabric()
            .map_err(|error| failure(Stage::Fabric, &error))?;
        self.at(Stage::Processes);
        let processes = gpu
            .processes()
            .map_err(|error| failure(Stage::Processes, &error))?;
        self.progress.note(|report| {
            report.facts = Some(Facts {
                uuid,
                name,
                driver,
                fabric: fabric.map(|fabric| fabric_report(&fabric)),
                processes,
                divided,
                cuda: None,
            });
        });
        Ok((!divided).then_some(gpu))
    }

    /// Proves a pair, unless a process has started to use the GPU meanwhile.
    fn proof(&self, gpu: &nvml::Gpu, device: &cuda::Device, can: Cuda, pair: &Pair) -> Proof {
        self.at(Stage::Free);
        let mut method = None;
        let proved = idle(gpu).and_then(|()| prove(self.progress, device, can, pair, &mut method));
        match proved {
            Ok(took) => Proof {
                device: pair.device.clone(),
                method,
                micros: Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
                failed: None,
            },
            Err(failed) => Proof {
                method,
                ..unproved(pair, failed)
            },
        }
    }
}

/// Checks that no process uses the GPU. Their number is not reported: it changes often.
fn idle(gpu: &nvml::Gpu) -> Result<(), Failure> {
    let processes = gpu
        .processes()
        .map_err(|error| failure(Stage::Processes, &error))?;
    if processes == 0 {
        return Ok(());
    }
    Err(Failure {
        stage: Stage::Free,
        number: None,
        message: "a process uses it".to_owned(),
    })
}

fn unproved(pair: &Pair, failed: Failure) -> Proof {
    Proof {
        device: pair.device.clone(),
        method: None,
        micros: None,
        failed: Some(failed),
    }
}

fn fabric_report(fabric: &nvml::Fabric) -> Fabric {
    let digits: String = fabric
        .cluster
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    Fabric {
        state: fabric.state,
        status: fabric.status,
        cluster: (fabric.cluster != [0; 16]).then(|| parts.join("-")),
        clique: fabric.clique,
    }
}

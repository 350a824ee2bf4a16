//! Asks one GPU, step by step, on a thread that may be held; what is known so far can be told at any moment.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sys::net::Namespace;
use sys::nvidia::cuda::{self, Attribute};
use sys::nvidia::{self, nvml};
use sys::verbs;

use crate::proving::prove;
use crate::{Answer, Cuda, Fabric, Facts, Failure, Pair, Proof, Question, Stage};

/// What is known so far.
#[derive(Debug, Clone)]
struct Known {
    answer: Answer,
    stage: Stage,
}

/// Asks a GPU; what it holds for longer than it may is named.
pub fn ask(question: Question) -> Answer {
    let end = Instant::now() + Duration::from_millis(question.patience);
    let known = Arc::new(Mutex::new(Known {
        answer: Answer::default(),
        stage: Stage::View,
    }));
    let asker = Asker(Arc::clone(&known));
    let (done, ended) = std::sync::mpsc::channel();
    let started = std::thread::Builder::new()
        .name("asker".to_owned())
        .spawn(move || {
            if let Err(failed) = asker.run(&question) {
                asker.note(|answer| answer.failed = Some(failed));
            }
            // Nobody listens any more once the time is up.
            let _ = done.send(());
        });
    let lasted = started.is_ok()
        && ended
            .recv_timeout(end.saturating_duration_since(Instant::now()))
            .is_err();
    let known = known.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut answer = known.answer;
    if lasted {
        answer.hung = Some(known.stage);
    }
    answer
}

pub(crate) struct Asker(Arc<Mutex<Known>>);

impl Asker {
    fn note(&self, change: impl FnOnce(&mut Answer)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known.answer);
    }

    pub(crate) fn at(&self, stage: Stage) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.stage = stage;
    }

    /// The view of network and devices is this thread's alone.
    fn run(&self, question: &Question) -> Result<(), Failure> {
        let root = question.root.as_deref().unwrap_or_else(|| Path::new("/"));
        let Some(network) = &question.network else {
            return self.run_there(question, root);
        };
        let entered = Namespace::open(network).and_then(|network| {
            network.run(|| {
                if root != Path::new("/")
                    && let Err(error) = verbs::take_view(root).and_then(|()| verbs::add_gpus(root))
                {
                    return Ok(Err(viewing(root, &error)));
                }
                Ok(self.run_there(question, root))
            })
        });
        entered.unwrap_or_else(|error| Err(viewing(network, &error)))
    }

    fn run_there(&self, question: &Question, root: &Path) -> Result<(), Failure> {
        let Some(free) = self.facts(root, &question.gpu)? else {
            return Ok(());
        };
        if let Some(pair) = &question.pair
            && let Err(failed) = idle(&free)
        {
            // CUDA opens the GPU; who uses it is not to be disturbed.
            let proof = unproved(pair, failed);
            self.note(|answer| answer.proof = Some(proof));
            return Ok(());
        }
        self.at(Stage::Cuda);
        let cuda = cuda::open(root).map_err(|error| failure(Stage::Cuda, &error))?;
        self.at(Stage::Attributes);
        let attributes = |error| failure(Stage::Attributes, &error);
        let device = cuda.device(&question.gpu).map_err(attributes)?;
        let can = |attribute| device.can(attribute).map_err(attributes);
        let told = Cuda {
            gpu_direct: can(Attribute::GpuDirectRdma)?,
            dma_buf: can(Attribute::DmaBuf)?,
        };
        self.note(|answer| {
            if let Some(facts) = &mut answer.facts {
                facts.cuda = Some(told);
            }
        });
        if let Some(pair) = &question.pair {
            let proof = self.proof(&free, &device, told, pair);
            self.note(|answer| answer.proof = Some(proof));
        }
        Ok(())
    }

    /// What NVML tells. None where the GPU is cut into instances: CUDA knows one of them, not the whole.
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
        let divided = gpu.is_divided().map_err(identify)?;
        self.at(Stage::Fabric);
        let fabric = gpu
            .fabric()
            .map_err(|error| failure(Stage::Fabric, &error))?;
        self.at(Stage::Processes);
        let processes = gpu
            .processes()
            .map_err(|error| failure(Stage::Processes, &error))?;
        self.note(|answer| {
            answer.facts = Some(Facts {
                uuid,
                name,
                driver,
                fabric: fabric.map(|fabric| told(&fabric)),
                processes,
                divided,
                cuda: None,
            });
        });
        Ok((!divided).then_some(gpu))
    }

    /// Once more before anything is made on it: who came meanwhile is not to be disturbed.
    fn proof(&self, gpu: &nvml::Gpu, device: &cuda::Device, can: Cuda, pair: &Pair) -> Proof {
        self.at(Stage::Free);
        let mut way = None;
        let proved = idle(gpu).and_then(|()| prove(self, device, can, pair, &mut way));
        match proved {
            Ok(took) => Proof {
                device: pair.device.clone(),
                way,
                micros: Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
                failed: None,
            },
            Err(failed) => Proof {
                way,
                ..unproved(pair, failed)
            },
        }
    }
}

/// That nobody holds it. How many do is not told: it changes while nothing happens.
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
        words: "a process holds it".to_owned(),
    })
}

fn unproved(pair: &Pair, failed: Failure) -> Proof {
    Proof {
        device: pair.device.clone(),
        way: None,
        micros: None,
        failed: Some(failed),
    }
}

fn told(fabric: &nvml::Fabric) -> Fabric {
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

fn viewing(at: &Path, error: &std::io::Error) -> Failure {
    Failure {
        stage: Stage::View,
        number: error.raw_os_error().map(i32::unsigned_abs),
        words: format!("{}: {error}", at.display()),
    }
}

pub(crate) fn failure(stage: Stage, error: &nvidia::Error) -> Failure {
    Failure {
        stage: match error {
            nvidia::Error::Absent(_) => Stage::Absent,
            _ => stage,
        },
        number: error.number(),
        words: error.to_string(),
    }
}

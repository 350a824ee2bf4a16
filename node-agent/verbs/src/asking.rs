//! Asks one device, step by step, on a thread that may be held; what is known so far can be told at any
//! moment.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sys::mem::{PageSize, Region, memfd};
use sys::net::Namespace;
use sys::verbs::{self, Call, CompletionQueue, Context, MemoryRegion, Piece, ProtectionDomain};

use crate::resources;
use crate::{Answer, Failure, Limits, Loop, Means, Question, Rail, Stage, Tried};

/// What is registered, and what is written over each port.
const LENGTH: u32 = 64 << 10;

/// How long one write may take; it is tried 7 times, 67 ms apart at least.
const WRITE: Duration = Duration::from_secs(3);

/// Made so that neither rows of equal bytes nor pages in wrong places go unnoticed.
const STEP: usize = 251;

/// What is known so far.
#[derive(Debug, Clone)]
struct Known {
    answer: Answer,
    stage: Stage,
}

/// Asks a device; what it holds for longer than it may is named.
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
            let failed = asker.run(&question).err();
            if let Some(failed) = failed {
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

struct Asker(Arc<Mutex<Known>>);

impl Asker {
    fn note(&self, change: impl FnOnce(&mut Answer)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known.answer);
    }

    fn at(&self, stage: Stage) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.stage = stage;
    }

    /// The view of root and network is this thread's alone.
    fn run(&self, question: &Question) -> Result<(), Failure> {
        let Some(network) = &question.network else {
            return self.run_there(question);
        };
        let entered = Namespace::open(network)
            .and_then(|network| network.run(|| Ok(self.run_there(question))));
        entered.unwrap_or_else(|error| Err(viewing(network, &error)))
    }

    fn run_there(&self, question: &Question) -> Result<(), Failure> {
        if let Some(root) = question
            .root
            .as_ref()
            .filter(|root| **root != Path::new("/"))
        {
            verbs::take_view(root).map_err(|error| viewing(root, &error))?;
        }
        self.at(Stage::Load);
        let devices = verbs::devices().map_err(failure)?;
        let device = devices
            .iter()
            .find(|device| device.name() == question.device)
            .ok_or_else(|| Failure {
                stage: Stage::Find,
                errno: None,
                words: "libibverbs knows no such device, or has no driver for it".to_owned(),
                means: None,
            })?;
        self.at(Stage::Open);
        let context = device.open().map_err(failure)?;
        self.at(Stage::Limits);
        let limits = context.limits().map_err(failure)?;
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        self.note(|answer| {
            answer.limits = Some(Limits {
                max_mr_size: limits.max_mr_size,
                max_mr: count(limits.max_mr),
                max_qp: count(limits.max_qp),
                max_cqe: count(limits.max_cqe),
            });
        });
        // Before anything of our own is counted.
        let taken = resources::taken(&question.device).ok();
        self.note(|answer| answer.taken = taken);
        let domain = self.register(&context)?;
        if device.needs_a_manager() {
            return Ok(());
        }
        for rail in &question.rails {
            let (wrote, failed) = match self.write(&context, &domain, *rail) {
                Ok(tried) => (Some(tried), None),
                Err(failed) => (None, Some(failed)),
            };
            let port = rail.port;
            self.note(|answer| {
                answer.loops.push(Loop {
                    port,
                    wrote,
                    failed,
                });
            });
        }
        Ok(())
    }

    /// Registers a small piece of memory and gives it back.
    fn register(&self, context: &Context) -> Result<ProtectionDomain, Failure> {
        self.at(Stage::Memory);
        let region = memory()?;
        self.at(Stage::Register);
        let domain = ProtectionDomain::new(context).map_err(failure)?;
        let began = Instant::now();
        let registered = MemoryRegion::register(&domain, region).map_err(|error| Failure {
            means: Some(means()),
            ..failure(error)
        })?;
        self.at(Stage::Deregister);
        registered.deregister().map_err(failure)?;
        let tried = tried(began);
        self.note(|answer| answer.registered = Some(tried));
        Ok(domain)
    }

    /// Writes from one queue pair to another of the same port, and compares.
    fn write(
        &self,
        context: &Context,
        domain: &ProtectionDomain,
        rail: Rail,
    ) -> Result<Tried, Failure> {
        self.at(Stage::Memory);
        let (from, to) = (memory()?, memory()?);
        let sent = pattern(rail.port);
        from.copy_in(0, &sent).map_err(|error| local(&error))?;
        self.at(Stage::Register);
        let register = |region| MemoryRegion::register(domain, region).map_err(failure);
        let (source, target) = (register(Arc::clone(&from))?, register(Arc::clone(&to))?);
        let index = u8::try_from(rail.gid).map_err(|_| Failure {
            stage: Stage::Port,
            errno: None,
            words: format!("GID {} is beyond what verbs can name", rail.gid),
            means: None,
        })?;
        self.at(Stage::CreateQp);
        let queue = CompletionQueue::new(context, 4).map_err(failure)?;
        let about_to = |call| self.at(stage(call));
        let [near, _far] = verbs::connected(context, domain, &queue, (rail.port, index), about_to)
            .map_err(failure)?;
        self.at(Stage::Post);
        let began = Instant::now();
        let piece = |memory| Piece {
            memory,
            offset: 0,
            length: LENGTH,
        };
        near.write(1, piece(&source), piece(&target))
            .map_err(failure)?;
        self.at(Stage::Complete);
        queue.wait(began + WRITE).map_err(failure)?;
        let tried = tried(began);
        self.at(Stage::Compare);
        let mut came = vec![0; sent.len()];
        to.copy_out(0, &mut came).map_err(|error| local(&error))?;
        let wrong = sent.iter().zip(&came).filter(|(sent, came)| sent != came);
        match wrong.count() {
            0 => Ok(tried),
            wrong => Err(Failure {
                stage: Stage::Compare,
                errno: None,
                words: format!("{wrong} of {LENGTH} bytes differ"),
                means: None,
            }),
        }
    }
}

fn pattern(port: u8) -> Vec<u8> {
    let bytes = (0..LENGTH as usize).map(|at| at % STEP);
    bytes
        .filter_map(|byte| u8::try_from(byte).ok())
        .map(|byte| byte ^ port)
        .collect()
}

/// Memory whose pages are there.
fn memory() -> Result<Arc<Region>, Failure> {
    let length = u64::from(LENGTH);
    let made = memfd::create("verbs", length, PageSize::Base)
        .and_then(|memory| Region::map(memory, length, PageSize::Base))
        .and_then(|region| region.populate(0, length).map(|()| region));
    made.map(Arc::new).map_err(|error| local(&error))
}

fn tried(began: Instant) -> Tried {
    Tried {
        bytes: LENGTH.into(),
        micros: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
    }
}

fn local(error: &sys::mem::Error) -> Failure {
    Failure {
        stage: Stage::Memory,
        errno: None,
        words: error.to_string(),
        means: None,
    }
}

fn viewing(at: &Path, error: &std::io::Error) -> Failure {
    Failure {
        stage: Stage::View,
        errno: error.raw_os_error(),
        words: format!("{}: {error}", at.display()),
        means: None,
    }
}

fn failure(error: verbs::Error) -> Failure {
    Failure {
        stage: stage(error.call),
        errno: error.errno(),
        words: error.why.to_string(),
        means: None,
    }
}

fn stage(call: Call) -> Stage {
    match call {
        Call::Load => Stage::Load,
        Call::Find => Stage::Find,
        Call::Open => Stage::Open,
        Call::QueryDevice => Stage::Limits,
        Call::MakeDomain | Call::Register => Stage::Register,
        Call::Deregister => Stage::Deregister,
        Call::QueryPort | Call::QueryGid => Stage::Port,
        Call::MakeQueue | Call::MakeQueuePair => Stage::CreateQp,
        Call::Init => Stage::Init,
        Call::ReadyToReceive => Stage::Rtr,
        Call::ReadyToSend => Stage::Rts,
        Call::Post => Stage::Post,
        Call::Complete => Stage::Complete,
    }
}

/// What the kernel looks at before the device does.
fn means() -> Means {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let capable = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .is_some_and(|bits| bits & IPC_LOCK != 0);
    let limit = read("/proc/self/limits").lines().find_map(|line| {
        let words = line.strip_prefix("Max locked memory")?;
        words.split_ascii_whitespace().next()?.parse().ok()
    });
    Means {
        may_lock: limit.filter(|_| !capable),
        mappings: read("/proc/self/maps").lines().count() as u64,
    }
}

/// `CAP_IPC_LOCK` as the kernel numbers it, which lifts the limit.
const IPC_LOCK: u64 = 1 << 14;

//! Probes one device step by step. Each result is noted at once, since the next step may hang.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::Progress;
use harness::transfer::{LENGTH, TRANSFER_DEADLINE, compare, host_memory, pattern, whole};
use sys::mem::Region;
use sys::verbs::{self, Call, Class, CompletionQueue, Context, MemoryRegion, ProtectionDomain};

use crate::resources;
use crate::{Failure, Limits, Loop, ProcessLimits, Rail, Report, Request, Stage, Timing};

/// Probes a device; the report names the stage that exceeds the deadline.
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
    fn run(&self, request: &Request) -> Result<(), Failure> {
        let root = request.root.as_deref();
        harness::enter(
            request.network.as_deref(),
            root.filter(|root| *root != Path::new("/")),
            &[verbs::mount_host_devices],
            || self.run_inside(request),
        )
        .unwrap_or_else(|error| {
            Err(Failure {
                errno: error.errno(),
                ..failed(Stage::View, error.to_string())
            })
        })
    }

    fn run_inside(&self, request: &Request) -> Result<(), Failure> {
        let shared = resources::is_shared().ok().flatten();
        self.progress.note(|report| report.shared = shared);
        self.progress.at(Stage::Load);
        let devices = verbs::devices().map_err(failure)?;
        let device = devices
            .iter()
            .find(|device| device.name() == request.device)
            .ok_or_else(|| {
                let cause = "libibverbs has no such device, or no driver for it";
                failed(Stage::Find, cause.to_owned())
            })?;
        self.progress.at(Stage::Open);
        let context = device.open().map_err(failure)?;
        self.progress.at(Stage::Limits);
        let limits = context.limits().map_err(failure)?;
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        self.progress.note(|report| {
            report.limits = Some(Limits {
                max_mr_size: limits.max_mr_size,
                max_mr: count(limits.max_mr),
                max_qp: count(limits.max_qp),
                max_cqe: count(limits.max_cqe),
            });
        });
        // Before this program has resources of its own.
        let taken = resources::taken(&request.device).ok();
        self.progress.note(|report| report.usage = taken);
        let domain = self.register(&context)?;
        if device.needs_connection_manager() {
            return Ok(());
        }
        let class = Class {
            traffic_class: request.traffic_class,
            service_level: request.service_level,
        };
        for rail in &request.rails {
            let mut result = Loop {
                port: rail.port,
                gid: Some(rail.gid),
                address: rail.address,
                path_mtu: None,
                wrote: None,
                read: None,
                failed: None,
            };
            result.failed = self
                .transfer(&context, &domain, (*rail, class), &mut result)
                .err();
            self.progress.note(|report| report.loops.push(result));
        }
        Ok(())
    }

    /// Registers a small memory region and deregisters it.
    fn register(&self, context: &Context) -> Result<ProtectionDomain, Failure> {
        self.progress.at(Stage::Memory);
        let region = memory()?;
        self.progress.at(Stage::Register);
        let domain = ProtectionDomain::new(context).map_err(failure)?;
        let began = Instant::now();
        let registered = MemoryRegion::register(&domain, region).map_err(|error| Failure {
            limits: Some(process_limits()),
            ..failure(error)
        })?;
        self.progress.at(Stage::Deregister);
        registered.deregister().map_err(failure)?;
        let timing = timing(began);
        self.progress
            .note(|report| report.registered = Some(timing));
        Ok(domain)
    }

    /// Writes from one queue pair to another of the same port and reads back, with the GID of the port that engines use.
    /// Compares the bytes after each.
    fn transfer(
        &self,
        context: &Context,
        domain: &ProtectionDomain,
        (rail, class): (Rail, Class),
        result: &mut Loop,
    ) -> Result<(), Failure> {
        self.progress.at(Stage::Memory);
        let (from, to, back) = (memory()?, memory()?, memory()?);
        let sent = pattern(rail.port);
        from.copy_in(0, &sent).map_err(|error| local(&error))?;
        self.progress.at(Stage::Register);
        let register = |region: &Arc<Region>| {
            MemoryRegion::register(domain, Arc::clone(region)).map_err(failure)
        };
        let (source, target, returned) = (register(&from)?, register(&to)?, register(&back)?);
        let index = u8::try_from(rail.gid).map_err(|_| {
            let cause = format!("GID index {} exceeds the range of verbs", rail.gid);
            failed(Stage::Port, cause)
        })?;
        self.progress.at(Stage::CreateQp);
        let queue = CompletionQueue::new(context, 4).map_err(failure)?;
        let about_to = |call| self.progress.at(stage(call));
        let port = (rail.port, index);
        let [near, _far] =
            verbs::connected(context, domain, &queue, port, class, about_to).map_err(failure)?;
        result.path_mtu = Some(near.packet_bytes());
        self.progress.at(Stage::Post);
        let began = Instant::now();
        near.write(1, whole(&source), whole(&target))
            .map_err(failure)?;
        self.progress.at(Stage::Complete);
        // One deadline for both: the agent grants each port so much.
        let deadline = began + TRANSFER_DEADLINE;
        queue.wait(deadline).map_err(failure)?;
        let wrote = timing(began);
        self.progress.at(Stage::Compare);
        equal(&sent, &to).map_err(|cause| failed(Stage::Compare, cause))?;
        result.wrote = Some(wrote);

        let in_read = |stage: Stage| {
            move |error| Failure {
                stage,
                ..failure(error)
            }
        };
        self.progress.at(Stage::PostRead);
        let began = Instant::now();
        near.read(2, whole(&target), whole(&returned))
            .map_err(in_read(Stage::PostRead))?;
        self.progress.at(Stage::CompleteRead);
        queue.wait(deadline).map_err(in_read(Stage::CompleteRead))?;
        let read = timing(began);
        self.progress.at(Stage::CompareRead);
        equal(&sent, &back).map_err(|cause| failed(Stage::CompareRead, cause))?;
        result.read = Some(read);
        Ok(())
    }
}

/// Compares what was sent with the content of a region.
fn equal(sent: &[u8], region: &Region) -> Result<(), String> {
    let mut content = vec![0; sent.len()];
    region
        .copy_out(0, &mut content)
        .map_err(|error| error.to_string())?;
    compare(sent, &content)
}

fn memory() -> Result<Arc<Region>, Failure> {
    host_memory().map_err(|error| local(&error))
}

fn timing(began: Instant) -> Timing {
    Timing {
        bytes: LENGTH.into(),
        micros: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
    }
}

fn local(error: &sys::mem::Error) -> Failure {
    failed(Stage::Memory, error.to_string())
}

fn failed(stage: Stage, message: String) -> Failure {
    Failure {
        stage,
        errno: None,
        message,
        limits: None,
    }
}

fn failure(error: verbs::Error) -> Failure {
    Failure {
        errno: error.errno(),
        ..failed(stage(error.call), error.why.to_string())
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
        // A probe reads no events, and reports no error of the end of a queue pair.
        Call::Events
        | Call::Notify
        | Call::Fail
        | Call::Destroy
        | Call::MakeQueue
        | Call::MakeQueuePair => Stage::CreateQp,
        Call::Init => Stage::Init,
        Call::ReadyToReceive => Stage::Rtr,
        Call::ReadyToSend => Stage::Rts,
        Call::Post => Stage::Post,
        Call::Complete => Stage::Complete,
    }
}

/// Limits that the kernel checks before the device does.
fn process_limits() -> ProcessLimits {
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
    ProcessLimits {
        may_lock: limit.filter(|_| !capable),
        mappings: read("/proc/self/maps").lines().count() as u64,
    }
}

/// Bit of `CAP_IPC_LOCK`, which lifts the memlock limit.
const IPC_LOCK: u64 = 1 << 14;

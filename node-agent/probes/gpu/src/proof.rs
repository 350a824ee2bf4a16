//! Proves that an RDMA device reaches a GPU's memory: CUDA reads bytes that the device has written, and the device
//! reads bytes that CUDA has written.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::Progress;
use harness::transfer::{TRANSFER_DEADLINE, compare, host_memory, pattern, whole};
use sys::nvidia::{self, cuda};
use sys::verbs::{self, Class, CompletionQueue, MemoryRegion, ProtectionDomain};

use crate::{Cuda, Failure, Method, Pair, Report, Stage};

/// Pages of GPU memory, of 64 KiB each.
const PAGES: u16 = 1;

/// Content of the GPU's memory before the first write.
const BLANK: u8 = 0xa5;

/// Proves one pair and returns the duration of both writes. Releases the CUDA context before it returns.
pub(crate) fn prove(
    progress: &Progress<Report, Stage>,
    device: &cuda::Device,
    can: Cuda,
    pair: &Pair,
    method: &mut Option<Method>,
) -> Result<Duration, Failure> {
    progress.at(Stage::Open);
    let context = open(&pair.device)?;
    let domain = ProtectionDomain::new(&context).map_err(|error| by_verbs(Stage::Open, &error))?;

    progress.at(Stage::Context);
    let there = device
        .context()
        .map_err(|error| failure(Stage::Context, &error))?;
    progress.at(Stage::Memory);
    let cuda = |error: nvidia::Error| failure(Stage::Memory, &error);
    let there = Arc::new(there.memory(PAGES).map_err(cuda)?);
    there.fill(BLANK).map_err(cuda)?;
    let here = host_memory().map_err(|error| local(&error))?;

    let on_gpu = register(progress, &domain, &there, can, method)?;
    progress.at(Stage::RegisterHost);
    let on_host = MemoryRegion::register(&domain, Arc::clone(&here))
        .map_err(|error| by_verbs(Stage::RegisterHost, &error))?;

    progress.at(Stage::Connect);
    let connect = |error| by_verbs(Stage::Connect, &error);
    let gid = u8::try_from(pair.gid).map_err(|_| {
        let cause = format!("GID index {} exceeds the range of verbs", pair.gid);
        failed(Stage::Connect, cause)
    })?;
    let queue = CompletionQueue::new(&context, 4).map_err(connect)?;
    // No packet of it leaves the device.
    let (port, class) = ((pair.port, gid), Class::default());
    let [near, _far] =
        verbs::connected(&context, &domain, &queue, port, class, |_| {}).map_err(connect)?;
    let write = |stage, from, to| {
        progress.at(stage);
        let began = Instant::now();
        near.write(1, whole(from), whole(to))
            .and_then(|()| queue.wait(began + TRANSFER_DEADLINE))
            .map_err(|error| by_verbs(stage, &error))?;
        Ok(began.elapsed())
    };

    let sent = pattern(1);
    here.copy_in(0, &sent).map_err(|error| local(&error))?;
    let to = write(Stage::Write, &on_host, &on_gpu)?;
    progress.at(Stage::Compare);
    let mut received = vec![0; sent.len()];
    there
        .copy_out(&mut received)
        .map_err(|error| failure(Stage::Compare, &error))?;
    compare(&sent, &received).map_err(|cause| failed(Stage::Compare, cause))?;

    let sent = pattern(2);
    there
        .copy_in(&sent)
        .map_err(|error| failure(Stage::Read, &error))?;
    let from = write(Stage::Read, &on_gpu, &on_host)?;
    progress.at(Stage::CompareBack);
    here.copy_out(0, &mut received)
        .map_err(|error| local(&error))?;
    compare(&sent, &received).map_err(|cause| failed(Stage::CompareBack, cause))?;
    Ok(to + from)
}

fn open(name: &str) -> Result<verbs::Context, Failure> {
    let by = |error| by_verbs(Stage::Open, &error);
    let devices = verbs::devices().map_err(by)?;
    let device = devices.iter().find(|device| device.name() == name);
    let device = device.ok_or_else(|| {
        let cause = format!("libibverbs has no device {name}, or no driver for it");
        failed(Stage::Open, cause)
    })?;
    device.open().map_err(by)
}

/// Registers GPU memory as dma-buf if the GPU supports it; else, or if the device does not, through the driver's
/// peer-memory module. An error is that of the path which the GPU supports first.
fn register(
    progress: &Progress<Report, Stage>,
    domain: &ProtectionDomain,
    memory: &Arc<cuda::Memory>,
    can: Cuda,
    method: &mut Option<Method>,
) -> Result<MemoryRegion, Failure> {
    let mut first = None;
    if can.dma_buf {
        *method = Some(Method::DmaBuf);
        match as_dma_buf(progress, domain, memory) {
            Ok(registered) => return Ok(registered),
            Err(failed) if !can.gpu_direct => return Err(failed),
            Err(failed) => first = Some(failed),
        }
    }
    progress.at(Stage::Register);
    match MemoryRegion::register_peer(domain, Arc::clone(memory)) {
        Ok(registered) => {
            *method = Some(Method::PeerMemory);
            Ok(registered)
        }
        Err(error) => {
            if first.is_none() {
                *method = Some(Method::PeerMemory);
            }
            Err(first.unwrap_or_else(|| by_verbs(Stage::Register, &error)))
        }
    }
}

fn as_dma_buf(
    progress: &Progress<Report, Stage>,
    domain: &ProtectionDomain,
    memory: &Arc<cuda::Memory>,
) -> Result<MemoryRegion, Failure> {
    progress.at(Stage::Export);
    let exported = memory
        .dma_buf()
        .map_err(|error| failure(Stage::Export, &error))?;
    progress.at(Stage::Register);
    MemoryRegion::register_dma_buf(domain, Arc::clone(memory), exported.as_fd())
        .map_err(|error| by_verbs(Stage::Register, &error))
}

fn local(error: &sys::mem::Error) -> Failure {
    failed(Stage::Memory, error.to_string())
}

fn failed(stage: Stage, message: String) -> Failure {
    Failure {
        stage,
        number: None,
        message,
    }
}

fn by_verbs(stage: Stage, error: &verbs::Error) -> Failure {
    Failure {
        stage,
        number: error.errno().map(i32::unsigned_abs),
        message: error.to_string(),
    }
}

pub(crate) fn failure(stage: Stage, error: &nvidia::Error) -> Failure {
    Failure {
        stage: match error {
            nvidia::Error::Absent(_) => Stage::Absent,
            _ => stage,
        },
        number: error.number(),
        message: error.to_string(),
    }
}

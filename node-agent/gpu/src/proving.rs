//! Proves that an RDMA device reaches a GPU's memory: bytes that the device writes there are read by CUDA, and
//! bytes that CUDA put there come from it by the device.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::mem::{PageSize, Region, memfd};
use sys::nvidia::{self, cuda};
use sys::verbs::{self, CompletionQueue, MemoryRegion, Piece, ProtectionDomain};

use crate::asking::{Asker, failure};
use crate::{Cuda, Failure, Pair, Stage, Way};

/// What is written each way: one page of the GPU's.
const LENGTH: u32 = 64 << 10;
const PAGES: u16 = 1;

/// How long one write may take; it is tried 7 times, 67 ms apart at least.
const WRITE: Duration = Duration::from_secs(3);

/// What the GPU's memory holds before anything is written to it.
const BLANK: u8 = 0xa5;

/// Made so that neither rows of equal bytes nor pages in wrong places go unnoticed.
const STEP: usize = 251;

/// Proves one pair; answers how long both writes took. The context, and all that is made in it, is gone when
/// this returns, or with the process.
pub(crate) fn prove(
    asker: &Asker,
    device: &cuda::Device,
    can: Cuda,
    pair: &Pair,
    way: &mut Option<Way>,
) -> Result<Duration, Failure> {
    asker.at(Stage::Open);
    let context = open(&pair.device)?;
    let domain = ProtectionDomain::new(&context).map_err(|error| by_verbs(Stage::Open, &error))?;

    asker.at(Stage::Context);
    let there = device
        .context()
        .map_err(|error| failure(Stage::Context, &error))?;
    asker.at(Stage::Memory);
    let cuda = |error: nvidia::Error| failure(Stage::Memory, &error);
    let there = Arc::new(there.memory(PAGES).map_err(cuda)?);
    there.fill(BLANK).map_err(cuda)?;
    let here = host()?;

    let on_gpu = register(asker, &domain, &there, can, way)?;
    asker.at(Stage::RegisterHost);
    let on_host = MemoryRegion::register(&domain, Arc::clone(&here))
        .map_err(|error| by_verbs(Stage::RegisterHost, &error))?;

    asker.at(Stage::Connect);
    let connect = |error| by_verbs(Stage::Connect, &error);
    let gid = u8::try_from(pair.gid).map_err(|_| Failure {
        stage: Stage::Connect,
        number: None,
        words: format!("GID {} is beyond what verbs can name", pair.gid),
    })?;
    let queue = CompletionQueue::new(&context, 4).map_err(connect)?;
    let [near, _far] =
        verbs::connected(&context, &domain, &queue, (pair.port, gid), |_| {}).map_err(connect)?;
    let write = |stage, from, to| {
        asker.at(stage);
        let began = Instant::now();
        let piece = |memory| Piece {
            memory,
            offset: 0,
            length: LENGTH,
        };
        near.write(1, piece(from), piece(to))
            .and_then(|()| queue.wait(began + WRITE))
            .map_err(|error| by_verbs(stage, &error))?;
        Ok(began.elapsed())
    };

    let sent = pattern(1);
    here.copy_in(0, &sent).map_err(|error| local(&error))?;
    let to = write(Stage::Write, &on_host, &on_gpu)?;
    asker.at(Stage::Compare);
    let mut came = vec![0; sent.len()];
    there
        .copy_out(&mut came)
        .map_err(|error| failure(Stage::Compare, &error))?;
    compare(Stage::Compare, &sent, &came)?;

    let sent = pattern(2);
    there
        .copy_in(&sent)
        .map_err(|error| failure(Stage::Read, &error))?;
    let from = write(Stage::Read, &on_gpu, &on_host)?;
    asker.at(Stage::CompareBack);
    here.copy_out(0, &mut came).map_err(|error| local(&error))?;
    compare(Stage::CompareBack, &sent, &came)?;
    Ok(to + from)
}

fn open(name: &str) -> Result<verbs::Context, Failure> {
    let by = |error| by_verbs(Stage::Open, &error);
    let devices = verbs::devices().map_err(by)?;
    let device = devices.iter().find(|device| device.name() == name);
    let device = device.ok_or_else(|| Failure {
        stage: Stage::Open,
        number: None,
        words: format!("libibverbs knows no {name}, or has no driver for it"),
    })?;
    device.open().map_err(by)
}

/// As dma-buf where the GPU can; else, and where the device cannot, through the driver's module for its peers.
/// What is told is of the way that the GPU is made for.
fn register(
    asker: &Asker,
    domain: &ProtectionDomain,
    memory: &Arc<cuda::Memory>,
    can: Cuda,
    way: &mut Option<Way>,
) -> Result<MemoryRegion, Failure> {
    let mut first = None;
    if can.dma_buf {
        *way = Some(Way::DmaBuf);
        match as_dma_buf(asker, domain, memory) {
            Ok(registered) => return Ok(registered),
            Err(failed) if !can.gpu_direct => return Err(failed),
            Err(failed) => first = Some(failed),
        }
    }
    asker.at(Stage::Register);
    match MemoryRegion::register_peer(domain, Arc::clone(memory)) {
        Ok(registered) => {
            *way = Some(Way::PeerMemory);
            Ok(registered)
        }
        Err(error) => {
            if first.is_none() {
                *way = Some(Way::PeerMemory);
            }
            Err(first.unwrap_or_else(|| by_verbs(Stage::Register, &error)))
        }
    }
}

fn as_dma_buf(
    asker: &Asker,
    domain: &ProtectionDomain,
    memory: &Arc<cuda::Memory>,
) -> Result<MemoryRegion, Failure> {
    asker.at(Stage::Export);
    let exported = memory
        .dma_buf()
        .map_err(|error| failure(Stage::Export, &error))?;
    asker.at(Stage::Register);
    MemoryRegion::register_dma_buf(domain, Arc::clone(memory), exported.as_fd())
        .map_err(|error| by_verbs(Stage::Register, &error))
}

/// Memory of the host whose pages are there.
fn host() -> Result<Arc<Region>, Failure> {
    let length = u64::from(LENGTH);
    let made = memfd::create("gpu", length, PageSize::Base)
        .and_then(|memory| Region::map(memory, length, PageSize::Base))
        .and_then(|region| region.populate(0, length).map(|()| region));
    made.map(Arc::new).map_err(|error| local(&error))
}

fn pattern(salt: u8) -> Vec<u8> {
    let bytes = (0..LENGTH as usize).map(|at| at % STEP);
    bytes
        .filter_map(|byte| u8::try_from(byte).ok())
        .map(|byte| byte ^ salt)
        .collect()
}

fn compare(stage: Stage, sent: &[u8], came: &[u8]) -> Result<(), Failure> {
    let wrong = sent.iter().zip(came).filter(|(sent, came)| sent != came);
    match wrong.count() {
        0 => Ok(()),
        wrong => Err(Failure {
            stage,
            number: None,
            words: format!("{wrong} of {LENGTH} bytes differ"),
        }),
    }
}

fn local(error: &sys::mem::Error) -> Failure {
    Failure {
        stage: Stage::Memory,
        number: None,
        words: error.to_string(),
    }
}

fn by_verbs(stage: Stage, error: &verbs::Error) -> Failure {
    Failure {
        stage,
        number: error.errno().map(i32::unsigned_abs),
        words: error.to_string(),
    }
}

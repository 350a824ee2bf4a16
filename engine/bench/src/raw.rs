//! The limit of the machine: the frames of the data plane over bare sockets, from and into as much memory as a batch
//! of the other programs has. Knows nothing of the engine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::flags::{Flags, Operation};
use crate::report::Measured;
use crate::usage::{Traffic, count, processor_seconds};

const HEADER: usize = 24;
/// Code 0, then the magic number.
const STATUS: [u8; 8] = *b"\0\0\0\0VTCM";
/// Of the code of an operation: the target answers with a status.
const WITH_STATUS: u8 = 0x80;
const READ: u8 = 0;
const WRITE: u8 = 1;
const SILENCE: Duration = Duration::from_secs(60);

/// Serves until the process is ended. Each request has `--block_size` bytes.
pub(crate) fn serve(flags: &Flags) -> anyhow::Result<()> {
    let host = &flags.local_server_name;
    let listener = TcpListener::bind((host.as_str(), 0))
        .or_else(|_| TcpListener::bind(host))
        .with_context(|| format!("listening on {host}"))?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept()?;
        let memory = Memory::allocate(flags, STATUS.as_slice())?;
        // A peer that ends its connection ends its thread with an error.
        thread::spawn(move || answer(stream, memory));
    }
}

/// The blocks of a batch. Several that are in one buffer would stay in the processor's cache, and the payload of no
/// other program does.
struct Memory {
    bytes: Vec<u8>,
    /// Bytes of one block, with the bytes that are sent before its payload.
    stride: usize,
    next: usize,
}

impl Memory {
    /// Allocates blocks and writes to all of them. Each begins with `prefix`.
    fn allocate(flags: &Flags, prefix: &[u8]) -> anyhow::Result<Self> {
        let block = usize::try_from(flags.block_size)?;
        let one = [prefix, &vec![7; block]].concat();
        Ok(Self {
            bytes: one.repeat(usize::try_from(flags.batch_size)?),
            stride: one.len(),
            next: 0,
        })
    }

    /// Returns the next block, and the first one after the last one.
    fn next(&mut self) -> &mut [u8] {
        let start = self.next;
        self.next = (start + self.stride) % self.bytes.len();
        &mut self.bytes[start..start + self.stride]
    }
}

fn answer(mut stream: TcpStream, mut memory: Memory) -> anyhow::Result<()> {
    prepare(&stream)?;
    let mut header = [0; HEADER];
    loop {
        stream.read_exact(&mut header)?;
        // The status and the payload of a read, in one call.
        let block = memory.next();
        let size = usize::try_from(u64::from_le_bytes(header[..8].try_into()?))?;
        ensure!(
            STATUS.len() + size == block.len(),
            "{size} bytes in a request"
        );
        if header[16] == WRITE | WITH_STATUS {
            stream.read_exact(&mut block[STATUS.len()..])?;
            stream.write_all(&STATUS)?;
        } else {
            stream.write_all(block)?;
        }
    }
}

/// Measures one connection for each of `--threads`. The requests of a batch are sent without waiting for answers.
pub(crate) fn measure(flags: &Flags) -> anyhow::Result<Measured> {
    flags.check_initiator(u64::MAX)?;
    let mut streams = Vec::new();
    for _ in 0..flags.threads {
        let stream = TcpStream::connect(&flags.segment_id)
            .with_context(|| format!("connecting to {}", flags.segment_id))?;
        prepare(&stream)?;
        streams.push(stream);
    }
    flags.wait_for_start()?;
    let sides = [Some(std::process::id()), flags.target_pid];
    let before = sides.map(|pid| pid.and_then(processor_seconds));
    let started = Instant::now();
    let until = started + flags.duration();
    let (latencies, system_calls) = thread::scope(|scope| {
        let threads: Vec<_> = streams
            .into_iter()
            .map(|stream| scope.spawn(move || batches(stream, flags, until)))
            .collect();
        let seconds = flags.duration().as_secs_f64() / 2.0;
        let system_calls = flags
            .system_calls
            .then(|| count(sides, seconds, Traffic::of(flags, std::process::id())));
        let mut latencies = Vec::new();
        for thread in threads {
            latencies.extend(thread.join().ok().context("a thread panicked")??);
        }
        anyhow::Ok((latencies, system_calls))
    })?;
    let took = started.elapsed();
    let after = sides.map(|pid| pid.and_then(processor_seconds));
    Ok(Measured {
        took,
        batches: latencies.len() as u64,
        latencies,
        processor: [0, 1].map(|side| Some(after[side]? - before[side]?)),
        system_calls,
    })
}

/// Returns the nanoseconds of each batch.
fn batches(mut stream: TcpStream, flags: &Flags, until: Instant) -> anyhow::Result<Vec<u64>> {
    let header = |operation: u8| {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&flags.block_size.to_le_bytes());
        header[16] = operation | WITH_STATUS;
        header
    };
    let mut memory = match flags.operation {
        Operation::Write => Memory::allocate(flags, &header(WRITE))?,
        Operation::Read => Memory::allocate(flags, &STATUS)?,
    };
    let reads = header(READ).repeat(usize::try_from(flags.batch_size)?);
    let mut status = STATUS;
    let mut latencies = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        match flags.operation {
            Operation::Write => {
                for _ in 0..flags.batch_size {
                    stream.write_all(memory.next())?;
                }
                for _ in 0..flags.batch_size {
                    stream.read_exact(&mut status)?;
                }
            }
            Operation::Read => {
                stream.write_all(&reads)?;
                for _ in 0..flags.batch_size {
                    stream.read_exact(memory.next())?;
                }
            }
        }
        latencies.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(latencies)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

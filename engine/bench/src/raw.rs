//! The limit of the machine: the frames of the data plane over bare sockets, from and into one buffer for each
//! connection. Knows nothing of the engine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

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

/// Serves until the process is ended. A request may have up to `--block_size` bytes.
pub(crate) fn serve(flags: &Flags) -> anyhow::Result<()> {
    let host = &flags.local_server_name;
    let listener = TcpListener::bind((host.as_str(), 0))
        .or_else(|_| TcpListener::bind(host))
        .with_context(|| format!("listening on {host}"))?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept()?;
        let most = usize::try_from(flags.block_size)?;
        // A peer that ends its connection ends its thread with an error.
        thread::spawn(move || answer(stream, most));
    }
}

fn answer(mut stream: TcpStream, most: usize) -> anyhow::Result<()> {
    prepare(&stream)?;
    let mut header = [0; HEADER];
    // The status and the payload of a read, in one call.
    let mut reply = [STATUS.as_slice(), &vec![7; most]].concat();
    loop {
        stream.read_exact(&mut header)?;
        let size = usize::try_from(u64::from_le_bytes(header[..8].try_into()?))?;
        if header[16] == WRITE | WITH_STATUS {
            stream.read_exact(
                reply
                    .get_mut(STATUS.len()..STATUS.len() + size)
                    .context("too long")?,
            )?;
            stream.write_all(&STATUS)?;
        } else {
            stream.write_all(reply.get(..STATUS.len() + size).context("too long")?)?;
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
    let block = usize::try_from(flags.block_size)?;
    let header = |operation: u8| {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&flags.block_size.to_le_bytes());
        header[16] = operation | WITH_STATUS;
        header
    };
    let write = [header(WRITE).as_slice(), &vec![7; block]].concat();
    let reads = header(READ).repeat(usize::try_from(flags.batch_size)?);
    let mut reply = vec![0; STATUS.len() + block];
    let mut latencies = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        match flags.operation {
            Operation::Write => {
                for _ in 0..flags.batch_size {
                    stream.write_all(&write)?;
                }
                for _ in 0..flags.batch_size {
                    stream.read_exact(&mut reply[..STATUS.len()])?;
                }
            }
            Operation::Read => {
                stream.write_all(&reads)?;
                for _ in 0..flags.batch_size {
                    stream.read_exact(&mut reply)?;
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

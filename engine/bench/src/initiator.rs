//! The initiator: as many batches in progress as `--threads`, for `--duration`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Op, Transfer};
use tokio::task::JoinSet;

use crate::flags::{Flags, Operation};
use crate::peer;
use crate::report::Measured;
use crate::target::End;
use crate::usage::{Traffic, count, processor_seconds};

/// Deadline of one batch.
const BATCH: Duration = Duration::from_secs(60);

/// Measures transfers with the target.
///
/// # Errors
/// The target does not answer; a transfer fails.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn measure(flags: &Flags) -> anyhow::Result<Measured> {
    flags.check_initiator(flags.buffer_size)?;
    let remote = peer::first_buffer(&flags.segment_id).await?;
    flags.check_initiator(remote.length)?;
    let end = Arc::new(End::open(flags)?);
    flags.wait_for_start()?;

    let sides = [Some(std::process::id()), flags.target_pid];
    let before = sides.map(|pid| pid.and_then(processor_seconds));
    let started = Instant::now();
    let until = started + flags.duration();
    let mut batches = JoinSet::new();
    for thread in 0..flags.threads {
        let batch = batch(flags, &end, thread, remote.addr);
        let end = Arc::clone(&end);
        batches.spawn(async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let begun = Instant::now();
                let mut submitted = end.endpoint.submit(&batch, begun + BATCH);
                submitted.outcome().await?;
                submitted.released().await;
                let nanoseconds = begun.elapsed().as_nanos();
                latencies.push(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            }
            anyhow::Ok(latencies)
        });
    }
    let traffic = Traffic::of(flags, std::process::id());
    let counting = flags.system_calls.then(|| {
        let seconds = flags.duration().as_secs_f64() / 2.0;
        tokio::task::spawn_blocking(move || count(sides, seconds, traffic))
    });
    let mut latencies = Vec::new();
    while let Some(thread) = batches.join_next().await {
        latencies.extend(thread??);
    }
    let took = started.elapsed();
    let after = sides.map(|pid| pid.and_then(processor_seconds));
    let [initiator, target] = [0, 1].map(|side| Some(after[side]? - before[side]?));
    let system_calls = match counting {
        Some(counting) => Some(counting.await?),
        None => None,
    };
    Ok(Measured {
        took,
        batches: latencies.len() as u64,
        latencies,
        processor: [initiator, target],
        system_calls,
    })
}

fn batch(flags: &Flags, end: &End, thread: u64, remote: u64) -> Vec<Transfer> {
    let op = match flags.operation {
        Operation::Read => Op::Read,
        Operation::Write => Op::Write,
    };
    let transfer = |request| {
        let offset = flags.offset(thread, request);
        Transfer {
            op,
            peer: flags.segment_id.clone(),
            remote: remote + offset,
            local: end.region,
            local_offset: offset,
            length: flags.block_size,
        }
    };
    (0..flags.batch_size).map(transfer).collect()
}

//! Bare sockets, the stock program and this engine in turn, each end a process of its own below this one.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::flags::{Flags, Unit};
use crate::processes::Logged;
use crate::program::Program;
use crate::report::{float, gib};
use crate::statistics::Spread;
use crate::stock_bench::{self, StockBench};
use crate::usage::{SystemCalls, Traffic, count, processor_seconds};

/// For an initiator to allocate its buffer.
const START: Duration = Duration::from_secs(60);
/// To start, and to end after the duration of the run.
const END: Duration = Duration::from_secs(90);
/// Period of the samples of the processor time.
const SAMPLE: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct Comparison {
    /// Of a comparison: how often each combination runs.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Initiator, target.
const COMBINATIONS: [(Program, Program); 5] = [
    (Program::Raw, Program::Raw),
    (Program::Ours, Program::Ours),
    (Program::Ours, Program::Stock),
    (Program::Stock, Program::Ours),
    (Program::Stock, Program::Stock),
];
/// Rows of a comparison: bare sockets, this engine at both ends, at one of them, and the stock program at both.
pub(crate) const RAW: usize = 0;
pub(crate) const OURS: usize = 1;
pub(crate) const TO_STOCK: usize = 2;
pub(crate) const FROM_STOCK: usize = 3;
pub(crate) const STOCK: usize = 4;

/// One run of one combination.
#[derive(Debug, Clone, Copy)]
struct Sample {
    bytes_per_second: f64,
    /// Processor seconds a GiB, of the initiator and of the target.
    processor: [f64; 2],
}

/// A row of the result.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) initiator: &'static str,
    pub(crate) target: &'static str,
    pub(crate) bytes_per_second: Spread,
    /// Of the runs of the same round.
    pub(crate) ratio_to_stock: Spread,
    pub(crate) ratio_to_raw: Spread,
    pub(crate) initiator_processor_seconds_per_gib: Spread,
    pub(crate) target_processor_seconds_per_gib: Spread,
    /// Of an additional run; initiator and target.
    pub(crate) system_calls_per_request: [Option<f64>; 2],
}

/// Runs all combinations in each round and prints a table, or one JSON object.
///
/// # Errors
/// A program does not start or its run fails.
#[tokio::main]
pub(crate) async fn run(flags: &Flags, comparison: &Comparison) -> anyhow::Result<()> {
    let rows = measure(flags, &StockBench::installed()?, comparison.rounds).await?;
    if flags.json {
        println!("{}", serde_json::json!(rows));
    } else {
        print(&rows, flags, comparison.rounds);
    }
    Ok(())
}

/// Runs all combinations in each round; a row for each.
///
/// # Errors
/// A program does not start or its run fails.
pub(crate) async fn measure(
    flags: &Flags,
    stock: &StockBench,
    rounds: usize,
) -> anyhow::Result<[Row; COMBINATIONS.len()]> {
    let flags = Flags {
        report_unit: Unit::GB,
        report_precision: 6,
        ..flags.clone()
    };
    let mut samples: [Vec<Sample>; COMBINATIONS.len()] = Default::default();
    for round in 0..rounds {
        for turn in 0..COMBINATIONS.len() {
            // Another one is the first in each round.
            let index = (round + turn) % COMBINATIONS.len();
            let sample = once(&flags, stock, COMBINATIONS[index]).await?;
            samples[index].push(sample);
        }
    }
    let mut rows = std::array::from_fn(|index| row(&samples, index));
    if flags.system_calls {
        for (row, combination) in rows.iter_mut().zip(COMBINATIONS) {
            match system_calls(&flags, stock, combination).await? {
                SystemCalls::Counted { per_request } => {
                    row.system_calls_per_request = per_request;
                }
                SystemCalls::NotCounted(why) => eprintln!("system calls were not counted: {why}"),
            }
        }
    }
    Ok(rows)
}

fn row(samples: &[Vec<Sample>; COMBINATIONS.len()], index: usize) -> Row {
    let of = &samples[index];
    let (initiator, target) = COMBINATIONS[index];
    let ratio_to = |other: usize| {
        let pairs = of.iter().zip(&samples[other]);
        let ratios = pairs.map(|(a, b)| a.bytes_per_second / b.bytes_per_second);
        Spread::of(ratios.collect())
    };
    let processor =
        |side: usize| Spread::of(of.iter().map(|sample| sample.processor[side]).collect());
    Row {
        initiator: initiator.name(),
        target: target.name(),
        bytes_per_second: Spread::of(of.iter().map(|sample| sample.bytes_per_second).collect()),
        ratio_to_stock: ratio_to(STOCK),
        ratio_to_raw: ratio_to(RAW),
        initiator_processor_seconds_per_gib: processor(0),
        target_processor_seconds_per_gib: processor(1),
        system_calls_per_request: [None; 2],
    }
}

/// A target and an initiator that has started.
struct Pair {
    target: Logged,
    initiator: Logged,
}

impl Pair {
    async fn start(
        flags: &Flags,
        stock: &StockBench,
        (initiator, target_program): (Program, Program),
    ) -> anyhow::Result<Self> {
        let (target, name) = target_program.serve(flags, stock).await?;
        let command = initiator.initiator(flags, stock, &name)?;
        let initiator = Logged::start(command)?;
        Ok(Self { target, initiator })
    }

    fn pids(&self) -> [u32; 2] {
        [self.initiator.process.pid(), self.target.process.pid()]
    }

    fn processor(&self) -> Option<[f64; 2]> {
        let [initiator, target] = self.pids().map(processor_seconds);
        Some([initiator?, target?])
    }
}

async fn once(
    flags: &Flags,
    stock: &StockBench,
    combination: (Program, Program),
) -> anyhow::Result<Sample> {
    let mut pair = Pair::start(flags, stock, combination).await?;
    let deadline = Instant::now() + flags.duration() + END;
    let mut used = Vec::new();
    while pair.initiator.process.ended()?.is_none() && Instant::now() < deadline {
        used.extend(pair.processor().map(|seconds| (Instant::now(), seconds)));
        tokio::time::sleep(SAMPLE).await;
    }
    let (initiator, target) = combination;
    let bytes_per_second = pair
        .initiator
        .until(Duration::ZERO, |printed| {
            stock_bench::throughput(printed, flags.report_unit)
        })
        .await
        .with_context(|| format!("{} to {}", initiator.name(), target.name()))?;
    Ok(Sample {
        bytes_per_second,
        processor: rate(&used, flags.duration())
            .map(|rate| rate * float(1 << 30) / bytes_per_second),
    })
}

/// Processor seconds a second, well inside the run: at its end the processes free their memory, at its beginning they
/// allocate it.
fn rate(used: &[(Instant, [f64; 2])], duration: Duration) -> [f64; 2] {
    let nothing = [f64::NAN; 2];
    let Some((end, _)) = used.last() else {
        return nothing;
    };
    let inside = |(at, _): &&(Instant, [f64; 2])| {
        let before_end = end.duration_since(*at);
        before_end >= duration / 5 && before_end <= duration * 4 / 5
    };
    let mut window = used.iter().filter(inside);
    match (window.next(), window.next_back()) {
        (Some((from, before)), Some((to, after))) => {
            let seconds = to.duration_since(*from).as_secs_f64();
            [0, 1].map(|side| (after[side] - before[side]) / seconds)
        }
        _ => nothing,
    }
}

async fn system_calls(
    flags: &Flags,
    stock: &StockBench,
    combination: (Program, Program),
) -> anyhow::Result<SystemCalls> {
    let pair = Pair::start(flags, stock, combination).await?;
    let before = pair.processor().context("a process has ended")?;
    let end = Instant::now() + START;
    // The target works as soon as the initiator has allocated its memory.
    while Instant::now() < end
        && pair
            .processor()
            .is_some_and(|now| now[1] - before[1] < 0.05)
    {
        tokio::time::sleep(SAMPLE).await;
    }
    let seconds = flags.duration().as_secs_f64() / 2.0;
    let pids = pair.pids().map(Some);
    let traffic = Traffic::of(flags, pair.initiator.process.pid());
    Ok(tokio::task::spawn_blocking(move || count(pids, seconds, traffic)).await?)
}

pub(crate) fn print(rows: &[Row], flags: &Flags, rounds: usize) {
    println!(
        "{} of {} KiB, batches of {}, {} at a time, {} s each, {rounds} rounds: medians, in brackets least and most",
        flags.operation,
        gib(flags.block_size) * float(1 << 20),
        flags.batch_size,
        flags.threads,
        flags.duration
    );
    println!(
        "{:<16} {:>20} {:>20} {:>20} {:>24}  {:>16}",
        "initiator→target",
        "GB/s",
        "/stock→stock",
        "/raw",
        "CPU s/GiB init., target",
        "calls/request"
    );
    for row in rows {
        let calls = row
            .system_calls_per_request
            .map(|calls| calls.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.2}")));
        println!(
            "{:<16} {:>20} {:>20} {:>20} {:>24}  {:>16}",
            format!("{}→{}", row.initiator, row.target),
            row.bytes_per_second.text(1e9),
            row.ratio_to_stock.text(1.0),
            row.ratio_to_raw.text(1.0),
            format!(
                "{:.3}, {:.3}",
                row.initiator_processor_seconds_per_gib.median,
                row.target_processor_seconds_per_gib.median
            ),
            calls.join(", "),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_is_that_of_the_middle_of_the_run() {
        let begin = Instant::now();
        // Two seconds of allocation, ten of the run: one processor each of the initiator, half of the target's.
        let used: Vec<_> = (0..=120)
            .map(|tenth| {
                let at = begin + Duration::from_millis(tenth * 100);
                let running = float(tenth.saturating_sub(20)) / 10.0;
                let allocating = if tenth > 10 { 50.0 } else { 0.0 };
                (at, [allocating + running, running / 2.0])
            })
            .collect();
        let [initiator, target] = rate(&used, Duration::from_secs(10));
        assert!((initiator - 1.0).abs() < 0.01, "{initiator}");
        assert!((target - 0.5).abs() < 0.01, "{target}");
        assert!(rate(&[], Duration::from_secs(10))[0].is_nan());
    }

    #[test]
    fn ratios_are_of_runs_of_the_same_round() {
        let sample = |rate| Sample {
            bytes_per_second: rate,
            processor: [1.0, 2.0],
        };
        let mut samples: [Vec<Sample>; COMBINATIONS.len()] = Default::default();
        for (index, of) in samples.iter_mut().enumerate() {
            // The machine is twice as fast in the second round.
            let rate = float(u64::try_from(index + 1).unwrap());
            *of = vec![sample(rate), sample(rate * 2.0)];
        }
        let row = row(&samples, 1);
        assert_eq!((row.initiator, row.target), ("ours", "ours"));
        let Spread { least, most, .. } = row.ratio_to_raw;
        assert_eq!((least, most), (2.0, 2.0));
        assert_eq!(row.ratio_to_stock.median, 0.4);
    }
}

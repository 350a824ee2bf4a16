//! Fairness of a target: nine peers with small requests alone, beside a peer with large ones, and beside one that stops; the large
//! one alone. All peers are processes with this engine, the target is ours or the stock one.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::flags::{Flags, READY};
use crate::processes::Logged;
use crate::program::Program;
use crate::statistics::Spread;
use crate::stock_bench::StockBench;

/// Peers with small requests.
const PEERS: usize = 9;
/// Bytes of a small request. Each peer has one in progress.
const SMALL: u64 = 4096;
/// Bytes of memory of a peer with small requests.
const SMALL_BUFFER: u64 = 1 << 20;
/// From the first request of the peer that stops to its stop.
const STOP: Duration = Duration::from_millis(300);
/// For a peer to allocate its memory, and to end after the duration of a part.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Debug, Args)]
pub(crate) struct Fairness {
    /// Of the peer with large requests.
    #[command(flatten)]
    flags: Flags,
    /// How often each part runs.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The peer beside the nine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Large {
    Absent,
    Works,
    /// It stops in the midst of its requests, and reads and writes nothing more.
    Stops,
}

/// What a peer measured.
#[derive(Debug, Clone, Copy)]
struct Peer {
    bytes_per_second: f64,
    /// Microseconds.
    p99: f64,
}

/// What the nine measured: the sum of their rates, and the p99 of the slowest one.
fn together(peers: &[Peer]) -> Peer {
    Peer {
        bytes_per_second: peers.iter().map(|peer| peer.bytes_per_second).sum(),
        p99: peers.iter().map(|peer| peer.p99).fold(0.0, f64::max),
    }
}

/// One round with one target.
#[derive(Debug, Clone, Copy)]
struct Round {
    nine_alone: Peer,
    large_alone: Peer,
    nine_beside: Peer,
    large_beside: Peer,
    nine_beside_stopped: Peer,
}

/// A row of the result. Ratios are those of the same round.
#[derive(Debug, Serialize)]
struct Row {
    target: &'static str,
    nine_alone_p99_microseconds: Spread,
    nine_alone_bytes_per_second: Spread,
    large_alone_bytes_per_second: Spread,
    /// Beside the large one.
    nine_p99_ratio: Spread,
    nine_rate_ratio: Spread,
    large_rate_ratio: Spread,
    /// Beside the one that stopped.
    stopped_p99_ratio: Spread,
    stopped_rate_ratio: Spread,
}

impl Row {
    fn of(target: Program, rounds: &[Round]) -> Self {
        let spread =
            |figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure).collect::<Vec<_>>());
        Self {
            target: target.name(),
            nine_alone_p99_microseconds: spread(|round| round.nine_alone.p99),
            nine_alone_bytes_per_second: spread(|round| round.nine_alone.bytes_per_second),
            large_alone_bytes_per_second: spread(|round| round.large_alone.bytes_per_second),
            nine_p99_ratio: spread(|round| round.nine_beside.p99 / round.nine_alone.p99),
            nine_rate_ratio: spread(|round| {
                round.nine_beside.bytes_per_second / round.nine_alone.bytes_per_second
            }),
            large_rate_ratio: spread(|round| {
                round.large_beside.bytes_per_second / round.large_alone.bytes_per_second
            }),
            stopped_p99_ratio: spread(|round| round.nine_beside_stopped.p99 / round.nine_alone.p99),
            stopped_rate_ratio: spread(|round| {
                round.nine_beside_stopped.bytes_per_second / round.nine_alone.bytes_per_second
            }),
        }
    }
}

/// Runs all parts with both targets in each round and prints a table, or one JSON object.
///
/// # Errors
/// A program does not start or its run fails.
#[tokio::main]
pub(crate) async fn run(fairness: Fairness) -> anyhow::Result<()> {
    let stock = StockBench::installed()?;
    let Fairness { flags, rounds } = fairness;
    let mut targets = [(Program::Ours, Vec::new()), (Program::Stock, Vec::new())];
    for _ in 0..rounds {
        for (target, measured) in &mut targets {
            let (_process, name) = target.serve(&flags, &stock).await?;
            let round = round(&flags, &stock, &name).await;
            measured.push(round.with_context(|| format!("target {}", target.name()))?);
        }
        // Another one is the first in each round.
        targets.reverse();
    }
    let mut rows: Vec<Row> = targets
        .iter()
        .map(|(target, rounds)| Row::of(*target, rounds))
        .collect();
    rows.sort_by_key(|row| row.target);
    if flags.json {
        println!("{}", serde_json::json!(rows));
    } else {
        print(&rows, &flags, rounds);
    }
    Ok(())
}

async fn round(flags: &Flags, stock: &StockBench, target: &str) -> anyhow::Result<Round> {
    let part = async |peers, large| part(flags, stock, target, peers, large).await;
    let nine = async |large| part(PEERS, large).await;
    let (nine_alone, _) = nine(Large::Absent).await?;
    let (_, large_alone) = part(0, Large::Works).await?;
    let (nine_beside, large_beside) = nine(Large::Works).await?;
    let (nine_beside_stopped, _) = nine(Large::Stops).await?;
    Ok(Round {
        nine_alone,
        large_alone: large_alone.context("the large peer did not run")?,
        nine_beside,
        large_beside: large_beside.context("the large peer did not run")?,
        nine_beside_stopped,
    })
}

/// Runs peers that start together when all of them are ready.
async fn part(
    flags: &Flags,
    stock: &StockBench,
    target: &str,
    peers: usize,
    large: Large,
) -> anyhow::Result<(Peer, Option<Peer>)> {
    let small = Flags {
        block_size: SMALL,
        batch_size: 1,
        threads: 1,
        buffer_size: SMALL_BUFFER,
        ..flags.clone()
    };
    let of_nine = std::iter::repeat_n(&small, peers);
    let beside = (large != Large::Absent).then_some(flags);
    let mut processes = Vec::new();
    for flags in of_nine.chain(beside) {
        let mut command = Program::Ours.initiator(flags, stock, target)?;
        command.args(["--json", "--wait_for_line"]);
        processes.push(Logged::start_waiting(command)?);
    }
    for process in &mut processes {
        process.until(PATIENCE, ready).await?;
    }
    let (nine, beside) = processes.split_at_mut(peers);
    for beside in &mut *beside {
        beside.process.write_line()?;
        if large == Large::Stops {
            // Before the nine start: they are not measured beside its work.
            tokio::time::sleep(STOP).await;
            beside.process.stop()?;
        }
    }
    for peer in &mut *nine {
        peer.process.write_line()?;
    }
    let mut measured = Vec::new();
    for peer in nine {
        measured.push(peer.until(flags.duration() + PATIENCE, result).await?);
    }
    let large = match (large, beside) {
        (Large::Works, [beside]) => Some(beside.until(flags.duration() + PATIENCE, result).await?),
        (Large::Absent | Large::Works | Large::Stops, _) => None,
    };
    Ok((together(&measured), large))
}

fn ready(printed: &str) -> Option<()> {
    printed.lines().any(|line| line == READY).then_some(())
}

/// The JSON object that an initiator prints.
fn result(printed: &str) -> Option<Peer> {
    let line = printed.lines().find(|line| line.starts_with('{'))?;
    let report: Value = serde_json::from_str(line).ok()?;
    Some(Peer {
        bytes_per_second: report["bytes_per_second"].as_f64()?,
        p99: report["batch_latency_microseconds"]["p99"].as_f64()?,
    })
}

fn print(rows: &[Row], flags: &Flags, rounds: usize) {
    println!(
        "{PEERS} peers with one {} of {} KiB each; one peer with {} of {} KiB; {} s each, {rounds} rounds: medians, in brackets \
         least and most",
        flags.operation,
        SMALL >> 10,
        flags.batch_size * flags.threads,
        flags.block_size >> 10,
        flags.duration
    );
    println!(
        "{:<8} {:>22} {:>22} {:>22} {:>22} {:>22} {:>22}",
        "target",
        "nine: p99 in µs",
        "GB/s",
        "large one: GB/s",
        "beside it: p99 ratio",
        "rate ratio of nine",
        "of the large one"
    );
    for row in rows {
        println!(
            "{:<8} {:>22} {:>22} {:>22} {:>22} {:>22} {:>22}",
            row.target,
            row.nine_alone_p99_microseconds.text(1.0),
            row.nine_alone_bytes_per_second.text(1e9),
            row.large_alone_bytes_per_second.text(1e9),
            row.nine_p99_ratio.text(1.0),
            row.nine_rate_ratio.text(1.0),
            row.large_rate_ratio.text(1.0),
        );
    }
    for row in rows {
        println!(
            "{:<8} beside a peer that stops: p99 ratio {}, rate ratio {}",
            row.target,
            row.stopped_p99_ratio.text(1.0),
            row.stopped_rate_ratio.text(1.0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(bytes_per_second: f64, p99: f64) -> Peer {
        Peer {
            bytes_per_second,
            p99,
        }
    }

    #[test]
    fn nine_peers_have_the_sum_of_their_rates_and_the_slowest_p99() {
        let all = together(&[peer(1.0, 5.0), peer(2.0, 7.0), peer(3.0, 6.0)]);
        assert_eq!((all.bytes_per_second, all.p99), (6.0, 7.0));
    }

    #[test]
    fn ratios_are_those_of_one_round() {
        // The machine is twice as fast in the second round.
        let round = |speed: f64| Round {
            nine_alone: peer(10.0 * speed, 100.0 / speed),
            large_alone: peer(1000.0 * speed, 1.0),
            nine_beside: peer(5.0 * speed, 300.0 / speed),
            large_beside: peer(800.0 * speed, 1.0),
            nine_beside_stopped: peer(9.0 * speed, 110.0 / speed),
        };
        let row = Row::of(Program::Ours, &[round(1.0), round(2.0)]);
        let equal = |spread: Spread, wanted: f64| {
            let Spread { least, most, .. } = spread;
            assert!((least - wanted).abs() < 1e-9 && (most - wanted).abs() < 1e-9);
        };
        equal(row.nine_p99_ratio, 3.0);
        equal(row.nine_rate_ratio, 0.5);
        equal(row.large_rate_ratio, 0.8);
        equal(row.stopped_p99_ratio, 1.1);
        equal(row.stopped_rate_ratio, 0.9);
    }

    #[test]
    fn only_a_whole_report_is_a_result() {
        let report = r#"{"bytes_per_second": 5.0, "batch_latency_microseconds": {"p99": 7.5}}"#;
        let found = result(&format!("a log line\n{report}\n")).map(|peer| peer.p99);
        assert_eq!(found, Some(7.5));
        assert!(result("{\"bytes_per_second\": 5.0}\n").is_none());
        assert!(result("").is_none());
    }
}

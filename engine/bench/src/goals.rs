//! All sizes in turn, each with every combination of programs, and what follows from them beside the goals of this engine.

use std::fmt;

use clap::Args;

use crate::compare::{self, FROM_STOCK, OURS, RAW, Row, STOCK, TO_STOCK};
use crate::flags::{Flags, Operation};
use crate::statistics::Spread;
use crate::stock_bench::StockBench;

#[derive(Debug, Args)]
pub(crate) struct Goals {
    /// How often each combination runs, for each size.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a run.
    #[arg(long, default_value_t = 2)]
    duration: u64,
}

/// Bytes of a request, requests of a batch, batches at a time.
type Load = [u64; 3];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const EIGHT_TOGETHER: Load = [64 * KIB, 8, 1];
const EIGHT_THREADS: Load = [64 * KIB, 1, 8];
const LOADS: [Load; 8] = [
    [4 * KIB, 1, 1],
    [64 * KIB, 1, 1],
    [MIB, 1, 1],
    [4 * KIB, 16, 1],
    [64 * KIB, 16, 1],
    [MIB, 16, 1],
    EIGHT_TOGETHER,
    EIGHT_THREADS,
];

/// What is required of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// At least 1 in the best round.
    NotSlower,
}

/// A goal and what was measured.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    what: String,
    bound: Bound,
    measured: Spread,
}

impl Bound {
    /// `None` where nothing was measured.
    fn is_met(self, measured: Spread) -> Option<bool> {
        let figure = measured.median;
        (!figure.is_nan()).then_some(match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
            Self::NotSlower => measured.most >= 1.0,
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::NotSlower => f.write_str("1 within the spread"),
        }
    }
}

/// Measures all sizes and prints a table for each, then the goals.
///
/// # Errors
/// A program does not start or its run fails.
#[tokio::main]
pub(crate) async fn run(goals: &Goals) -> anyhow::Result<()> {
    let stock = StockBench::installed()?;
    let mut lines = Vec::new();
    for operation in [Operation::Read, Operation::Write] {
        let mut together = None;
        for load in LOADS {
            let [block_size, batch_size, threads] = load;
            let flags = Flags {
                operation,
                block_size,
                batch_size,
                threads,
                duration: goals.duration,
                ..Flags::default()
            };
            let rows = compare::measure(&flags, &stock, goals.rounds).await?;
            compare::print(&rows, &flags, goals.rounds);
            let what = format!(
                "{operation} of {} KiB, batches of {batch_size}, {threads} at a time",
                block_size / KIB
            );
            lines.extend(of_load(&what, load, &rows));
            let own = rows[OURS].bytes_per_second;
            match load {
                EIGHT_TOGETHER => together = Some(own),
                EIGHT_THREADS => lines.extend(of_threads(&what, together, &rows)),
                _ => {}
            }
        }
    }
    let width = lines.iter().map(|line| line.what.chars().count()).max();
    let width = width.unwrap_or_default();
    println!("{:<width$}  {:<20} {:>22}  met", "goal", "", "measured");
    for line in lines {
        let met = match line.bound.is_met(line.measured) {
            None => "not measured",
            Some(true) => "yes",
            Some(false) => "no",
        };
        println!(
            "{:<width$}  {:<20} {:>22}  {met}",
            line.what,
            line.bound.to_string(),
            line.measured.text(1.0)
        );
    }
    Ok(())
}

/// The goals that apply to each size.
fn of_load(what: &str, [block_size, batch_size, threads]: Load, rows: &[Row; 5]) -> Vec<Line> {
    let line = |part: &str, bound, measured| Line {
        what: format!("{what}: {part}"),
        bound,
        measured,
    };
    // A program that ended before its measurement has used nothing in it.
    let used = |seconds: Spread| match seconds.median {
        some if some > 0.0 => some,
        _ => f64::NAN,
    };
    let target = |row: &Row| used(row.target_processor_seconds_per_gib);
    let initiator = |row: &Row| used(row.initiator_processor_seconds_per_gib);
    let both = |row: &Row| initiator(row) + target(row);
    // A row has no single rounds, so this is a ratio of medians.
    let ratio = |of: f64, to: f64| Spread::of(vec![of / to]);
    let mut lines = vec![
        line(
            "stock→ours, rate of stock→stock",
            Bound::NotSlower,
            rows[FROM_STOCK].ratio_to_stock,
        ),
        line(
            "ours→stock, rate of stock→stock",
            Bound::NotSlower,
            rows[TO_STOCK].ratio_to_stock,
        ),
        line(
            "processor time of both ends, of raw",
            Bound::AtMost(1.2),
            ratio(both(&rows[OURS]), both(&rows[RAW])),
        ),
        line(
            "processor time of both ends, of stock→stock",
            Bound::AtMost(0.65),
            ratio(both(&rows[OURS]), both(&rows[STOCK])),
        ),
        line(
            "processor time of our target, of a stock one",
            Bound::AtMost(0.6),
            ratio(target(&rows[FROM_STOCK]), target(&rows[STOCK])),
        ),
        line(
            "processor time of our initiator, of a stock one",
            Bound::AtMost(0.6),
            ratio(initiator(&rows[TO_STOCK]), initiator(&rows[STOCK])),
        ),
    ];
    if threads == 1 {
        let part = "ours→ours, rate of raw";
        lines.push(line(part, Bound::AtLeast(0.9), rows[OURS].ratio_to_raw));
    }
    if (block_size, batch_size, threads) == (4 * KIB, 1, 1) {
        // One request at a time, so half of the time is twice the rate.
        let part = "ours→ours, rate of stock→stock";
        lines.push(line(part, Bound::AtLeast(2.0), rows[OURS].ratio_to_stock));
    }
    lines
}

/// The goals of eight threads. `together`: this engine by one thread with as many requests in progress.
fn of_threads(what: &str, together: Option<Spread>, rows: &[Row; 5]) -> Vec<Line> {
    let own = rows[OURS].bytes_per_second.median;
    let together = together.map_or(f64::NAN, |spread| spread.median);
    vec![
        Line {
            what: format!("{what}: ours→ours, rate of one thread with batches of 8"),
            bound: Bound::AtLeast(0.9),
            measured: Spread::of(vec![own / together]),
        },
        Line {
            what: format!("{what}: ours→ours, rate of stock→stock"),
            bound: Bound::AtLeast(6.0),
            measured: rows[OURS].ratio_to_stock,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread {
            median,
            least: median * 0.8,
            most: median * 1.2,
        }
    }

    /// Rates, and processor seconds a GiB of initiator and target, in the sequence of the rows.
    fn rows(rates: [f64; 5], processor: [[f64; 2]; 5]) -> [Row; 5] {
        [0, 1, 2, 3, 4].map(|index| Row {
            initiator: "a",
            target: "b",
            bytes_per_second: spread(rates[index]),
            ratio_to_stock: spread(rates[index] / rates[STOCK]),
            ratio_to_raw: spread(rates[index] / rates[RAW]),
            initiator_processor_seconds_per_gib: spread(processor[index][0]),
            target_processor_seconds_per_gib: spread(processor[index][1]),
            system_calls_per_request: [None; 2],
        })
    }

    #[test]
    fn each_goal_is_compared_with_its_own_figure() {
        let processor = [[1.0, 1.0], [1.0, 1.1], [1.1, 9.0], [9.0, 1.3], [2.0, 2.0]];
        let rows = rows([10.0, 9.5, 4.0, 3.0, 5.0], processor);
        let met: Vec<_> = of_load("x", [4 * KIB, 1, 1], &rows)
            .into_iter()
            .map(|line| (line.what, line.bound.is_met(line.measured)))
            .collect();
        let expected = [
            // The best round had 0.6 * 1.2.
            ("x: stock→ours, rate of stock→stock", false),
            // 0.8 * 1.2 is less than 1.
            ("x: ours→stock, rate of stock→stock", false),
            ("x: processor time of both ends, of raw", true),
            ("x: processor time of both ends, of stock→stock", true),
            ("x: processor time of our target, of a stock one", false),
            ("x: processor time of our initiator, of a stock one", true),
            ("x: ours→ours, rate of raw", true),
            ("x: ours→ours, rate of stock→stock", false),
        ];
        let expected = expected.map(|(what, met)| (what.to_owned(), Some(met)));
        assert_eq!(met, expected);
    }

    #[test]
    fn processor_time_that_was_not_measured_meets_no_goal_and_misses_none() {
        let mut processor = [[1.0, 1.0]; 5];
        processor[STOCK] = [0.0, 0.0];
        processor[FROM_STOCK] = [1.0, 0.0];
        let lines = of_load("x", [MIB, 16, 1], &rows([1.0; 5], processor));
        let met = lines.iter().map(|line| line.bound.is_met(line.measured));
        let unknown = lines.iter().zip(met).filter(|(_, met)| met.is_none());
        let unknown: Vec<&str> = unknown.map(|(line, _)| line.what.as_str()).collect();
        let expected = [
            "x: processor time of both ends, of stock→stock",
            "x: processor time of our target, of a stock one",
            "x: processor time of our initiator, of a stock one",
        ];
        assert_eq!(unknown, expected);
    }

    #[test]
    fn a_slower_median_within_the_spread_is_not_slower() {
        assert_eq!(Bound::NotSlower.is_met(spread(0.9)), Some(true));
        assert_eq!(Bound::NotSlower.is_met(spread(0.8)), Some(false));
        assert_eq!(Bound::AtLeast(0.9).is_met(spread(f64::NAN)), None);
    }

    #[test]
    fn eight_threads_are_compared_with_one_and_with_stock() {
        let rows = rows([10.0, 8.0, 1.0, 1.0, 1.0], [[1.0; 2]; 5]);
        let of = |together| {
            let lines = of_threads("x", together, &rows).into_iter();
            lines
                .map(|line| line.bound.is_met(line.measured))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Some(spread(8.0))), [Some(true), Some(true)]);
        assert_eq!(of(Some(spread(9.0))), [Some(false), Some(true)]);
        assert_eq!(of(None), [None, Some(true)]);
    }
}

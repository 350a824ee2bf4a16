//! Measures a stock client on our pool and on a stock segment of the same node, in alternating rounds.

use crate::setup::{OTHER, Plan, STORING, Setup};
use crate::table::{Table, number};
use anyhow::{Context, ensure};
use mooncake_e2e::scenario::{Pool, StockPod, StockWork};
use serde::Deserialize;
use std::time::Duration;

const VALUES: [u64; 3] = [64 << 10, 1 << 20, 4 << 20];
const STOCK: &str = "stock-segment";
const MOUNTED: Duration = Duration::from_secs(120);

/// One round on one segment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Sample {
    segment: String,
    value: u64,
    bytes: u64,
    /// Seconds.
    put: f64,
    get: f64,
}

impl Sample {
    /// MB/s, 10^6 bytes.
    fn put(&self) -> f64 {
        number(self.bytes) / self.put / 1e6
    }

    /// MB/s, 10^6 bytes.
    fn get(&self) -> f64 {
        number(self.bytes) / self.get / 1e6
    }
}

/// Measures from both nodes. Leaves only the pool.
pub(crate) async fn measure(
    setup: &Setup,
    pool: &Pool,
    bytes: u64,
    table: &mut Table,
) -> anyhow::Result<()> {
    StockPod::new(STOCK, StockWork::Segment { bytes })
        .node(STORING)
        .inject(&pool.name)
        .start(&setup.namespace)
        .await?;
    setup.namespace.pod_ready(STOCK, MOUNTED).await?;
    let segments = pool.mounted(2, MOUNTED).await?;
    let own = crds::names::segment(&pool.name, "default", STORING, 0);
    let stock = segments
        .iter()
        .find(|segment| segment.name != own)
        .with_context(|| format!("the stock segment beside {own}: {segments:?}"))?;
    for node in [STORING, OTHER] {
        tracing::info!(
            node,
            "a stock client puts and gets in both segments in turn"
        );
        let plan = Plan {
            fill: bytes / 8 * 7,
            values: &VALUES,
            segments: &[&own, &stock.name],
        };
        let log = setup.client(node, &pool.name, plan).await?;
        let samples = samples(&log);
        let what = format!("stock pod on {node}, segments on {STORING}: MB/s");
        table.title(what, &["our pool", "stock", "ours/stock"]);
        for value in VALUES {
            let of = |segment: &str| -> Vec<&Sample> {
                let of = |sample: &&Sample| sample.value == value && sample.segment == segment;
                samples.iter().filter(of).collect()
            };
            let (ours, theirs) = (of(&own), of(&stock.name));
            let rounds = setup.args.rounds;
            ensure!(
                ours.len() == rounds && theirs.len() == rounds,
                "samples are missing:\n{log}"
            );
            table.row(
                format!("  {} KiB, put", value >> 10),
                cells(&ours, &theirs, Sample::put),
            );
            table.row(
                format!("  {} KiB, get", value >> 10),
                cells(&ours, &theirs, Sample::get),
            );
        }
    }
    setup.remove(&[STOCK]).await
}

/// The lines that are samples; the stock engine prints other lines.
fn samples(log: &str) -> Vec<Sample> {
    log.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The medians of both, and the median of the ratios per round.
fn cells(ours: &[&Sample], theirs: &[&Sample], rate: fn(&Sample) -> f64) -> [String; 3] {
    let rates = |samples: &[&Sample]| samples.iter().map(|sample| rate(sample)).collect();
    let ratios = ours
        .iter()
        .zip(theirs)
        .map(|(ours, theirs)| rate(ours) / rate(theirs));
    [
        format!("{:.0}", median(rates(ours))),
        format!("{:.0}", median(rates(theirs))),
        format!("{:.2}", median(ratios.collect())),
    ]
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_among_other_lines_and_compared_by_round() {
        let line = |segment: &str, put: f64| {
            format!(
                r#"{{"segment":"{segment}","value":65536,"bytes":1000000,"put":{put},"get":1}}"#
            )
        };
        let log = [line("a", 0.1), "I1121 engine".to_owned(), line("b", 0.2)].join("\n");
        let samples = samples(&log);
        assert_eq!(samples.len(), 2);
        let cells = cells(&[&samples[0]], &[&samples[1]], Sample::put);
        assert_eq!(cells, ["10", "5", "2.00"].map(str::to_owned));
    }
}

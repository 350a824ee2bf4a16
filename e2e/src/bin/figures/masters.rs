//! Measures stock clients of two MooncakeClusters, one with the built-in master and one with the stock master, in alternating
//! rounds. Pools and masters are on one node.

use crate::args::Args;
use crate::setup::{OTHER, PROGRAM, STORING, Setup};
use crate::table::{Table, number};
use crate::throughput::median;
use anyhow::Context;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{CommandPod, Pool};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

/// Names of the clusters.
const OURS: &str = "builtin";
const STOCK: &str = "stock";
const VALUES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Most values of a turn. All of `--volume` in values of 4 KiB would take longer than the other sizes together.
const MOST: u64 = 1024;
/// Values with which a pool is filled.
const LARGE: u64 = 4 << 20;
const TURN: Duration = Duration::from_secs(120);
/// Columns with a spread are wider than the others.
const SPREAD: usize = 22;

/// The seconds of all puts, and of all gets, of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Turn {
    put: f64,
    get: f64,
}

/// Two turns in immediate succession.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    ours: Turn,
    stock: Turn,
}

/// Measures from both nodes.
pub(crate) async fn measure(setup: &Setup, table: &mut Table) -> anyhow::Result<()> {
    apply(setup, OURS, "BuiltIn").await?;
    apply(setup, STOCK, "Stock").await?;
    for node in [STORING, OTHER] {
        let (ours, stock) = tokio::try_join!(
            Client::start(setup, OURS, node),
            Client::start(setup, STOCK, node)
        )?;
        let clients = Clients { ours, stock };
        if node == STORING {
            let bytes = (setup.args.pool << 20) / 8 * 7;
            clients.ours.turn(LARGE, bytes).await?;
            clients.stock.turn(LARGE, bytes).await?;
        }
        tracing::info!(node, "stock clients of both masters put and get in turn");
        let pairs = clients.rounds(&setup.args).await?;
        table.title(
            format!("stock pod on {node}, pools and masters on {STORING}"),
            &[
                &wide("built-in: op/s"),
                &wide("stock: op/s"),
                &wide("built-in/stock"),
                "faster in",
            ],
        );
        for (value, pairs) in VALUES.into_iter().zip(&pairs) {
            let amount = number(operations(&setup.args, value));
            table.row(
                format!("  {} KiB, put", value >> 10),
                cells(pairs, |turn| amount / turn.put),
            );
            table.row(
                format!("  {} KiB, get", value >> 10),
                cells(pairs, |turn| amount / turn.get),
            );
        }
        setup
            .remove(&[&clients.ours.name, &clients.stock.name])
            .await?;
    }
    Ok(())
}

/// Applies a MooncakeCluster with this master and waits until it is Ready.
async fn apply(setup: &Setup, name: &str, master: &str) -> anyhow::Result<()> {
    let spec = spec(setup.args.pool, master);
    let pool = Pool::apply(&setup.namespace, name, &spec).await?;
    pool.ready(READY).await
}

/// One pool pod of this many MiB, and the masters, on [`STORING`]. A built-in master uses the range of a removed value again
/// when the lease of its readers has ended: with the default of 10 s, removed values would fill the pool.
fn spec(mebibytes: u64, master: &str) -> String {
    format!(
        "{{pools: [{{name: default, size: {mebibytes}Mi, drainSeconds: 2, \
         nodeSelector: {{kubernetes.io/hostname: {STORING}}}}}], \
         master: {{type: {master}, kvLeaseSeconds: 2, podTemplate: {{affinity: {{nodeAffinity: \
         {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{matchExpressions: \
         [{{key: kubernetes.io/hostname, operator: In, values: [{STORING}]}}]}}]}}}}}}}}}}}}"
    )
}

/// The values that are put, and got, in one turn.
fn operations(args: &Args, value: u64) -> u64 {
    ((args.volume << 20) / value).min(MOST)
}

struct Client {
    pod: CommandPod,
    name: String,
}

impl Client {
    async fn start(setup: &Setup, cluster: &str, node: &str) -> anyhow::Result<Self> {
        let name = format!("client-{cluster}-{node}");
        let pod = CommandPod::start(&setup.namespace, &name, node, cluster, PROGRAM).await?;
        Ok(Self { pod, name })
    }

    /// Puts and gets `bytes` in values of one size.
    async fn turn(&self, value: u64, bytes: u64) -> anyhow::Result<Turn> {
        let command = json!({"command": "turn", "size": value, "volume": bytes});
        let answer = self.pod.run(command, TURN).await?;
        serde_json::from_value(answer).with_context(|| format!("{}: seconds of a turn", self.name))
    }
}

struct Clients {
    ours: Client,
    stock: Client,
}

impl Clients {
    /// The pairs of each of [`VALUES`], after a round that does not count. All sizes have turns in each round, and the first
    /// client changes with the round.
    async fn rounds(&self, args: &Args) -> anyhow::Result<[Vec<Pair>; VALUES.len()]> {
        let mut pairs: [Vec<Pair>; VALUES.len()] = Default::default();
        for round in 0..=args.rounds {
            for (value, pairs) in VALUES.into_iter().zip(&mut pairs) {
                let bytes = operations(args, value) * value;
                let pair = if round % 2 == 0 {
                    let ours = self.ours.turn(value, bytes).await?;
                    let stock = self.stock.turn(value, bytes).await?;
                    Pair { ours, stock }
                } else {
                    let stock = self.stock.turn(value, bytes).await?;
                    let ours = self.ours.turn(value, bytes).await?;
                    Pair { ours, stock }
                };
                if round > 0 {
                    pairs.push(pair);
                }
            }
        }
        Ok(pairs)
    }
}

/// Both rates, their ratio in each pair, and in how many pairs ours is greater.
fn cells(pairs: &[Pair], rate: impl Fn(Turn) -> f64) -> [String; 4] {
    let ours: Vec<_> = pairs.iter().map(|pair| rate(pair.ours)).collect();
    let stock: Vec<_> = pairs.iter().map(|pair| rate(pair.stock)).collect();
    let ratios: Vec<_> = ours
        .iter()
        .zip(&stock)
        .map(|(ours, stock)| ours / stock)
        .collect();
    let faster = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    [
        spread(ours, 0),
        spread(stock, 0),
        spread(ratios, 2),
        format!("{faster} of {}", pairs.len()),
    ]
}

/// The median, and in brackets the least and the most.
fn spread(values: Vec<f64>, decimals: usize) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let middle = median(values);
    wide(&format!(
        "{middle:.decimals$} ({least:.decimals$}–{most:.decimals$})"
    ))
}

fn wide(text: &str) -> String {
    format!("{text:>SPREAD$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use crds::MooncakeClusterSpec;
    use crds::cluster::MasterType;

    #[test]
    fn the_ratio_is_of_pairs_and_every_spread_is_shown() {
        let pair = |ours: f64, stock: f64| {
            let turn = |put| Turn { put, get: 1.0 };
            Pair {
                ours: turn(ours),
                stock: turn(stock),
            }
        };
        // The medians of the rates alone have the ratio 1.25.
        let pairs = [pair(1.0, 2.0), pair(2.0, 3.0), pair(5.0, 2.5)];
        let cells = cells(&pairs, |turn| 600.0 / turn.put);
        let shown = cells.each_ref().map(|cell| cell.trim());
        let expected = [
            "300 (120–600)",
            "240 (200–300)",
            "1.50 (0.50–2.00)",
            "2 of 3",
        ];
        assert_eq!(shown, expected);
        assert_eq!(cells[0].chars().count(), SPREAD);
    }

    #[test]
    fn the_masters_of_both_types_are_on_the_node_of_the_pools() {
        let types = [
            ("BuiltIn", MasterType::BuiltIn),
            ("Stock", MasterType::Stock),
        ];
        for (word, kind) in types {
            let parsed: MooncakeClusterSpec = serde_yaml_ng::from_str(&spec(64, word)).unwrap();
            assert_eq!(
                parsed.pools[0].node_selector["kubernetes.io/hostname"],
                STORING
            );
            assert_eq!(
                (parsed.pools[0].size.0, parsed.master.kind()),
                (64 << 20, kind)
            );
            let affinity = parsed.master.pod_template.unwrap().affinity.unwrap();
            let required = affinity
                .node_affinity
                .unwrap()
                .required_during_scheduling_ignored_during_execution
                .unwrap();
            let rule = &required.node_selector_terms[0]
                .match_expressions
                .as_ref()
                .unwrap()[0];
            assert_eq!(rule.values.as_deref().unwrap(), [STORING]);
        }
    }

    #[test]
    fn a_turn_moves_the_volume_or_a_limited_number_of_values() {
        let args = Args::parse_from(["figures", "--volume", "128"]);
        let amounts = VALUES.map(|value| operations(&args, value));
        assert_eq!(amounts, [MOST, MOST, 128]);
    }
}

//! Measures stock clients of three MooncakeClusters in turn, with the built-in master, with the same and early answers, and with
//! the stock master. Pools and masters are on one node.

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

/// The clusters: name and master. The last one is the one that the others are compared with.
const CLUSTERS: [(&str, &str); 3] = [
    ("sync", "type: BuiltIn"),
    ("async", "type: BuiltIn, commit: Async"),
    ("stock", "type: Stock"),
];
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

/// A turn of each cluster, in immediate succession.
type Round = [Turn; CLUSTERS.len()];

/// Measures from both nodes.
pub(crate) async fn measure(setup: &Setup, table: &mut Table) -> anyhow::Result<()> {
    for (cluster, master) in CLUSTERS {
        apply(setup, cluster, master).await?;
    }
    for node in [STORING, OTHER] {
        let [sync, early, stock] = CLUSTERS.map(|(cluster, _)| Client::start(setup, cluster, node));
        let (sync, early, stock) = tokio::try_join!(sync, early, stock)?;
        let clients = Clients([sync, early, stock]);
        if node == STORING {
            let bytes = (setup.args.pool << 20) / 8 * 7;
            for client in &clients.0 {
                client.turn(LARGE, bytes).await?;
            }
        }
        tracing::info!(node, "stock clients of all masters put and get in turn");
        let rounds = clients.rounds(&setup.args).await?;
        let [built_in @ .., _] = CLUSTERS;
        for (at, (_, master)) in built_in.into_iter().enumerate() {
            table.title(
                format!("stock pod on {node}, pools and masters on {STORING}; {{{master}}}"),
                &[
                    &wide("built-in: op/s"),
                    &wide("stock: op/s"),
                    &wide("built-in/stock"),
                    "faster in",
                ],
            );
            for (value, rounds) in VALUES.into_iter().zip(&rounds) {
                let amount = number(operations(&setup.args, value));
                table.row(
                    format!("  {} KiB, put", value >> 10),
                    cells(rounds, at, |turn| amount / turn.put),
                );
                table.row(
                    format!("  {} KiB, get", value >> 10),
                    cells(rounds, at, |turn| amount / turn.get),
                );
            }
        }
        let names = clients.0.each_ref().map(|client| client.name.as_str());
        setup.remove(&names).await?;
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
         master: {{{master}, kvLeaseSeconds: 2, podTemplate: {{affinity: {{nodeAffinity: \
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

/// One of each of [`CLUSTERS`].
struct Clients([Client; CLUSTERS.len()]);

impl Clients {
    /// The rounds of each of [`VALUES`], after one that does not count. All sizes have turns in each round, and the first client
    /// changes with the round.
    async fn rounds(&self, args: &Args) -> anyhow::Result<[Vec<Round>; VALUES.len()]> {
        let mut rounds: [Vec<Round>; VALUES.len()] = Default::default();
        for number in 0..=args.rounds {
            for (value, rounds) in VALUES.into_iter().zip(&mut rounds) {
                let bytes = operations(args, value) * value;
                let mut round = [Turn { put: 0.0, get: 0.0 }; CLUSTERS.len()];
                for next in 0..CLUSTERS.len() {
                    let at = (number + next) % CLUSTERS.len();
                    round[at] = self.0[at].turn(value, bytes).await?;
                }
                if number > 0 {
                    rounds.push(round);
                }
            }
        }
        Ok(rounds)
    }
}

/// The rates of a cluster and of the last one, their ratio in each round, and in how many rounds that of the former is greater.
fn cells(rounds: &[Round], at: usize, rate: impl Fn(Turn) -> f64) -> [String; 4] {
    let ours: Vec<_> = rounds.iter().map(|round| rate(round[at])).collect();
    let stock: Vec<_> = rounds
        .iter()
        .map(|round| rate(round[CLUSTERS.len() - 1]))
        .collect();
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
        format!("{faster} of {}", rounds.len()),
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
    use crds::cluster::{MasterCommit, MasterType};

    #[test]
    fn the_ratio_is_of_each_round_and_every_spread_is_shown() {
        let round = |ours: f64, stock: f64| {
            let turn = |put| Turn { put, get: 1.0 };
            [turn(7.0), turn(ours), turn(stock)]
        };
        // The medians of the rates alone have the ratio 1.25.
        let rounds = [round(1.0, 2.0), round(2.0, 3.0), round(5.0, 2.5)];
        let cells = cells(&rounds, 1, |turn| 600.0 / turn.put);
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
    fn all_masters_are_on_the_node_of_the_pools() {
        let expected = [
            (MasterType::BuiltIn, MasterCommit::Sync),
            (MasterType::BuiltIn, MasterCommit::Async),
            (MasterType::Stock, MasterCommit::Sync),
        ];
        for ((_, master), expected) in CLUSTERS.into_iter().zip(expected) {
            let parsed: MooncakeClusterSpec = serde_yaml_ng::from_str(&spec(64, master)).unwrap();
            let (pool, master) = (&parsed.pools[0], parsed.master);
            assert_eq!(pool.node_selector["kubernetes.io/hostname"], STORING);
            assert_eq!(pool.size.0, 64 << 20);
            assert_eq!((master.kind(), master.commit()), expected);
            let affinity = master.pod_template.unwrap().affinity.unwrap();
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

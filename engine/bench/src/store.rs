//! A stock client with a segment of this engine, with a stock segment, and with a plain socket, in turn. Prints rates
//! and ratios.

mod client;
mod ours;
mod socket;
mod stock;

use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::statistics::median;
use client::{Client, Sample};

#[derive(Debug, Args)]
pub(crate) struct Comparison {
    /// Value sizes in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096])]
    sizes: Vec<u64>,
    /// MiB that are put and got in each round. The segments have twice the size.
    #[arg(long, default_value_t = 256)]
    volume: u64,
    /// Number of rounds; every subject is measured in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Longest time for one round of one subject, in seconds.
    #[arg(long, default_value_t = 60)]
    deadline: u64,
}

#[tokio::main]
pub(crate) async fn run(comparison: Comparison) -> anyhow::Result<()> {
    let Comparison {
        sizes,
        volume,
        rounds,
        deadline,
    } = comparison;
    let deadline = Duration::from_secs(deadline);
    let segment_bytes = (volume << 20) * 2;
    let wheel = stock::Wheel::installed()?;

    let mut master = wheel
        .master(deadline)
        .await
        .context("starting the stock master")?;
    let theirs = master
        .segment(segment_bytes, deadline)
        .await
        .context("a stock segment")?;
    let ours = ours::Segment::mount(&master.address, segment_bytes, deadline)
        .await
        .context("mounting our segment")?;

    println!(
        "{:>8} {:>4}  {:>10} {:>10} {:>10}   {:>10} {:>10}",
        "value", "", "ours", "stock", "socket", "ours/stock", "ours/socket"
    );
    for kib in sizes {
        let round = client::Round {
            value_bytes: kib << 10,
            volume_bytes: volume << 20,
            deadline,
        };
        let mut samples: [Vec<Sample>; 2] = Default::default();
        let mut socket = Vec::new();
        let warm = client::Round {
            volume_bytes: round.value_bytes,
            ..round
        };
        for turn in 0..=rounds {
            // The rate of a connection depends on its processor and memory, so each round has new ones,
            // and the segments alternate as the first one.
            let mut subjects = [(0, ours::NAME), (1, theirs.name.as_str())];
            subjects.rotate_left(turn % 2);
            let mut client =
                Client::start(&wheel, &master.address).context("starting a stock client")?;
            for (_, name) in subjects {
                client.measure(name, warm).context("connecting")?;
            }
            for (subject, name) in subjects {
                let sample = client
                    .measure(name, round)
                    .with_context(|| format!("segment {name}"))?;
                // The first run allocates the memory.
                if turn > 0 {
                    samples[subject].push(sample);
                }
            }
            client.stop(deadline)?;
            socket.push(socket::megabytes_per_second(
                round.value_bytes,
                round.volume_bytes,
            )?);
        }
        let socket = median(socket);
        let [ours, theirs] = samples;
        for (what, pick) in [
            ("put", Sample::put as fn(&Sample) -> f64),
            ("get", Sample::get),
        ] {
            let ratios = ours
                .iter()
                .zip(&theirs)
                .map(|(a, b)| pick(a) / pick(b))
                .collect();
            let ours = median(ours.iter().map(pick).collect());
            let theirs = median(theirs.iter().map(pick).collect());
            println!(
                "{kib:>4} KiB {what:>4}  {ours:>10.0} {theirs:>10.0} {socket:>10.0}   {:>10.2} {:>10.2}",
                median(ratios),
                ours / socket,
            );
        }
    }
    println!(
        "MB/s (10^6 bytes), medians of {rounds} rounds; ours/stock is the median of the pairs' ratios."
    );
    let stats = ours.stats();
    println!(
        "our segment: {} bytes written, {} read",
        stats.bytes_written, stats.bytes_read
    );
    theirs.stop(deadline).await?;
    master.stop(deadline).await
}

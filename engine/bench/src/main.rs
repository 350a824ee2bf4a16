//! `bench`: what a stock client gets from our segment, from a stock one, and from a bare socket,
//! in turn within one run. Prints figures and ratios; passes no judgement.

mod client;
mod ours;
mod raw;
mod stock;

use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use client::{Client, Sample};

#[derive(Parser)]
#[command(about = "Throughput of a stock client against our segment and a stock one")]
struct Args {
    /// Value sizes in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096])]
    sizes: Vec<u64>,
    /// Bytes put and got in each round, in MiB. The segments hold twice as much.
    #[arg(long, default_value_t = 256)]
    volume: u64,
    /// Rounds; the subjects take turns within each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Longest time for one round of one subject, in seconds.
    #[arg(long, default_value_t = 60)]
    deadline: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Args {
        sizes,
        volume,
        rounds,
        deadline,
    } = Args::parse();
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
            // A connection keeps its luck (processor, memory) for life, so each round has new ones;
            // and neither segment is always the first.
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
                // The first turn touches the memory.
                if turn > 0 {
                    samples[subject].push(sample);
                }
            }
            client.stop(deadline)?;
            socket.push(raw::megabytes_per_second(
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

//! `bench`: what a stock client gets from our segment, from a stock one, and from a bare socket,
//! in turn within one run. Prints figures and ratios; passes no judgement.

mod client;
mod ours;
mod raw;
mod stock;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use client::{Client, Sample};

#[derive(Parser)]
#[command(about = "Throughput of a stock client against our segment and a stock one")]
struct Args {
    /// Folder that holds the stock wheel's packages (`pip install --target`).
    #[arg(long, env = "MOONCAKE_STOCK")]
    stock: PathBuf,
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
        stock,
        sizes,
        volume,
        rounds,
        deadline,
    } = Args::parse();
    let deadline = Duration::from_secs(deadline);
    let segment_bytes = (volume << 20) * 2;
    let wheel = stock::Wheel::at(stock)?;

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
    let mut client = Client::start(&wheel, &master.address).context("starting a stock client")?;

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
        for turn in 0..=rounds {
            for (subject, name) in [ours::NAME, theirs.name.as_str()].into_iter().enumerate() {
                let sample = client
                    .measure(name, round)
                    .with_context(|| format!("segment {name}"))?;
                // The first turn connects and touches memory.
                if turn > 0 {
                    samples[subject].push(sample);
                }
            }
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
    client.stop(deadline)?;
    theirs.stop(deadline).await?;
    master.stop(deadline).await
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

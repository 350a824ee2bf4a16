//! `figures`: what stock pods get from our pool beside a stock segment, and what the product costs, on
//! a local cluster of its own. Prints a table; passes no judgement.

mod args;
mod cost;
mod setting;
mod table;
mod throughput;

use anyhow::Context;
use args::Args;
use clap::Parser;
use mooncake_e2e::settings::Environment;
use mooncake_e2e::story::Product;
use mooncake_e2e::{Cluster, Settings};
use setting::Setting;
use std::io::IsTerminal;
use std::sync::Arc;
use table::Table;
use tokio::sync::Mutex;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(tracing::Level::INFO)
        .init();
    let args = Args::parse();
    let settings = Settings::from_environment(Environment::read());
    let name = args.name.clone();
    let measured = measure(args).await;
    let down = tokio::task::spawn_blocking(move || Cluster::down(&settings, &name)).await?;
    let table = measured?;
    down.context("taking the cluster down")?;
    print(&table);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the table is the answer")]
fn print(table: &Table) {
    print!("\n{table}");
}

async fn measure(args: Args) -> anyhow::Result<Table> {
    let product = Arc::new(Product::alone_on(&args.name).await?);
    let table = Arc::new(Mutex::new(Table::default()));
    let (measured, filled) = (Arc::clone(&product), Arc::clone(&table));
    product
        .tell("figures", async move |namespace| {
            let setting = Setting {
                product: measured,
                namespace,
                args,
            };
            let mut table = filled.lock().await;
            let pool = cost::of_small_pages(&setting, &mut table).await?;
            cost::of_huge_pages(&setting, &mut table).await?;
            cost::at_rest(&setting, &pool, &mut table).await
        })
        .await?;
    let table = table.lock().await.clone();
    Ok(table)
}

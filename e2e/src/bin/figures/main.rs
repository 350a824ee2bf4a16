//! `figures`: measures stock clients on our pool and on a stock segment, and with either master, and the resources that the
//! product uses, on a local cluster of its own. Prints a table.

mod args;
mod cost;
mod masters;
mod setup;
mod table;
mod throughput;

use anyhow::Context;
use args::{Args, Part};
use clap::Parser;
use local_cluster::{Cluster, Settings};
use mooncake_e2e::scenario::Product;
use setup::Setup;
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
    let settings = Settings::read();
    let name = args.name.clone();
    let measured = measure(args).await;
    let down = tokio::task::spawn_blocking(move || Cluster::down(&settings, &name)).await?;
    let table = measured?;
    down.context("removing the cluster")?;
    print(&table);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the table is the answer")]
fn print(table: &Table) {
    print!("\n{table}");
}

async fn measure(args: Args) -> anyhow::Result<Table> {
    let product = Product::exclusive_on(&args.name).await?;
    let table = Arc::new(Mutex::new(Table::default()));
    for part in args.only.clone() {
        let (filled, args) = (Arc::clone(&table), args.clone());
        product
            .run(part.title(), async move |product, namespace| {
                let setup = Setup {
                    product,
                    namespace,
                    args,
                };
                let mut table = filled.lock().await;
                match part {
                    Part::Pools => pools(&setup, &mut table).await,
                    Part::Masters => masters::measure(&setup, &mut table).await,
                }
            })
            .await?;
    }
    let table = table.lock().await.clone();
    Ok(table)
}

async fn pools(setup: &Setup, table: &mut Table) -> anyhow::Result<()> {
    let pool = cost::of_small_pages(setup, table).await?;
    cost::of_huge_pages(setup, table).await?;
    cost::at_rest(setup, &pool, table).await
}

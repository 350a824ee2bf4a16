//! The program `admitted`: keeps the file with the admitted addresses of one cluster's master up to date until SIGTERM.

use std::path::PathBuf;

use admitted::{Admitted, file, members, operators};
use anyhow::Context;
use clap::Parser;
use kube::runtime::watcher::DefaultBackoff;
use tokio::signal::unix::{SignalKind, signal};

/// Writes the addresses that may connect to the master of a MooncakeCluster, whenever they change.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Namespace of the MooncakeCluster.
    #[arg(long)]
    namespace: String,
    /// Name of the MooncakeCluster.
    #[arg(long)]
    cluster: String,
    /// Namespace of the operator and the agents.
    #[arg(long)]
    operator_namespace: String,
    /// The file. It is not changed before all addresses are known, and not while the API server is unavailable.
    #[arg(long)]
    file: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?
        .block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let client = kube::Client::try_default()
        .await
        .context("cannot find the API server and a token in this pod")?;
    let watch = |namespace: &str, selector: &str| {
        Admitted::watch(
            client.clone(),
            namespace,
            selector,
            DefaultBackoff::default(),
        )
    };
    // The Service of pods on the host network exists only while they are allowed.
    let selector = members(&args.cluster, true);
    let mut members = watch(&args.namespace, &selector);
    let mut operators = watch(&args.operator_namespace, &operators());
    let mut written = None;
    loop {
        if let (Some(members), Some(operators)) = (members.now(), operators.now()) {
            let text = file::text(&members, &operators);
            if written.as_ref() != Some(&text) {
                file::replace(&args.file, &text)
                    .with_context(|| format!("cannot write {}", args.file.display()))?;
                tracing::info!(
                    members = members.len(),
                    operators = operators.len(),
                    "addresses written"
                );
                written = Some(text);
            }
        }
        tokio::select! {
            () = members.changed() => {}
            () = operators.changed() => {}
            _ = term.recv() => return Ok(()),
        }
    }
}

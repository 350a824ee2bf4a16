//! The program `mooncake-master`: serves the index until SIGTERM or SIGINT.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use clap::Parser;
use mooncake_master::admission::{Admission, File};
use mooncake_master::args::Args;
use mooncake_master::http;
use mooncake_master::index::Index;
use mooncake_master::server::{Master, listen, serve};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the master ends");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let settings = args.settings().map_err(|text| anyhow!(text))?;
    let seed = getrandom::u64().context("no random bytes from the operating system")?;
    let (file, admission) = match args.admitted_file() {
        None => (None, Admission::Anyone),
        Some(path) => {
            let (file, admission) = File::new(path);
            (Some(file), admission)
        }
    };
    // A run must have a higher epoch than the one before. Owners report that one, so a clock that went back does no harm.
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let epoch = epoch.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let index = Index::new(settings, seed).in_epoch(epoch);
    let master = Arc::new(Master::new(index, args.limits(), admission));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads())
        .enable_all()
        .build()
        .context("starting threads")?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let bind = |what, address| {
            listen(address).with_context(|| format!("cannot listen on {address} for {what}"))
        };
        let admin = bind("HTTP (--metrics_host, --metrics_port)", args.admin())?;
        let metadata = args
            .metadata()
            .map(|address| bind("metadata (--http_metadata_server_port)", address))
            .transpose()?;
        let open = args
            .open()
            .map(|address| bind("health and metrics (--open_port)", address))
            .transpose()?;
        let rpc = bind("RPC (--rpc_address, --rpc_port)", args.rpc())?;
        tracing::info!(rpc = %args.rpc(), http = %args.admin(), open = ?args.open(), metadata = ?args.metadata(), "the master serves");
        let stop = async {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            tracing::info!(signal = name, "the master ends");
        };
        let listeners = http::Listeners {
            admin,
            open,
            metadata,
        };
        let http = http::serve(Arc::clone(&master), listeners);
        let follow = async {
            match file {
                Some(file) => file.follow().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = follow => Ok(()),
            () = serve(master, rpc, stop) => Ok(()),
            ended = http => ended.context("HTTP"),
        }
    })
}

//! The program: ports, signals, and one index for each term of leadership.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::admission::{Admission, File};
use crate::args::Args;
use crate::http::{self, Listeners, Open};
use crate::index::Index;
use crate::leadership::{Candidate, Leadership};
use crate::memory;
use crate::server::{Master, listen, serve};
use crate::tenants::{self, Policies};

/// Longest wait for the first file with quotas: the program that writes it may start later than this one.
const QUOTAS: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT, always or whenever this master is elected. Blocks.
///
/// # Errors
/// Contradicting settings, a wrong file with quotas, a port that cannot be opened, or a listener that has ended.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.settings(memory::limit())
        .map_err(|text| anyhow!(text))?;
    let (file, admission) = match args.admitted_file() {
        None => (None, Admission::Anyone),
        Some(path) => {
            let (file, admission) = File::new(path);
            (Some(file), admission)
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads())
        .enable_all()
        .build()
        .context("starting threads")?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let stop = async {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            tracing::info!(signal = name, "the master ends");
        };
        let mut stop = std::pin::pin!(stop);
        let (quotas, policies) = tokio::select! {
            read = quotas(args) => read?,
            () = &mut stop => return Ok(()),
        };
        let follow = async {
            match file {
                Some(file) => file.follow().await,
                None => std::future::pending().await,
            }
        };
        let follow_quotas = async {
            match quotas {
                Some(quotas) => quotas.follow().await,
                None => std::future::pending().await,
            }
        };
        let serve_with = Common {
            args,
            admission: &admission,
            policies: policies.as_ref(),
        };
        let (serving, master) = watch::channel(None);
        let open = Open {
            master,
            admission: admission.clone(),
            elected: args.elector_socket().is_some(),
        };
        let open = async {
            match args.open() {
                Some(address) => {
                    let listener = bind("health and metrics (--open_port)", address)?;
                    let ended = http::serve_open(open, listener).await;
                    ended.context("HTTP for health and metrics")
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = follow => Ok(()),
            () = follow_quotas => Ok(()),
            ended = open => ended,
            ended = serve_terms(serve_with, &serving) => ended,
            () = &mut stop => Ok(()),
        }
    })
}

/// The file with the quotas of tenants and what it contains; `None`: there are no tenants.
async fn quotas(args: &Args) -> anyhow::Result<(Option<tenants::File>, Option<Policies>)> {
    let Some(path) = args.quota_file() else {
        return Ok((None, None));
    };
    let shown = path.display().to_string();
    let read = tenants::File::when_written(path, QUOTAS).await;
    let (file, policies) = read.map_err(|error| {
        anyhow!("quotas of tenants (--tenant_quota_connector_uri) in {shown}: {error}")
    })?;
    Ok((Some(file), Some(policies)))
}

/// What is the same in all terms.
#[derive(Debug, Clone, Copy)]
struct Common<'a> {
    args: &'a Args,
    admission: &'a Admission,
    policies: Option<&'a Policies>,
}

/// Serves always or, with an elector, whenever this master leads.
async fn serve_terms(common: Common<'_>, serving: &Serving) -> anyhow::Result<()> {
    let Some(socket) = common.args.elector_socket() else {
        // A run must have a higher epoch than the one before. Owners report that one, which raises this one if the clock went back.
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = epoch.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
        return serve_term(common, serving, epoch, Leadership::alone()).await;
    };
    let (candidate, mut terms) = Candidate::new(socket);
    let elections = candidate.follow();
    let terms = async {
        while let Some(term) = terms.recv().await {
            tracing::info!(epoch = term.epoch, "this master leads");
            serve_term(common, serving, term.epoch, term.leadership.clone()).await?;
            tracing::warn!(epoch = term.epoch, "this master no longer leads");
        }
        Ok(())
    };
    tokio::select! {
        () = elections => Ok(()),
        ended = terms => ended,
    }
}

/// Shows the open port which master serves.
type Serving = watch::Sender<Option<Arc<Master>>>;

/// Serves an index that is empty in the beginning until the end of the leadership. Then the ports are closed.
async fn serve_term(
    common: Common<'_>,
    serving: &Serving,
    epoch: u64,
    leadership: Leadership,
) -> anyhow::Result<()> {
    let Common {
        args,
        admission,
        policies,
    } = common;
    let settings = args
        .settings(memory::limit())
        .map_err(|text| anyhow!(text))?;
    let seed = getrandom::u64().context("no random bytes from the operating system")?;
    let mut index = Index::new(settings, seed).in_epoch(epoch);
    let mut policies = policies.cloned();
    if let Some(policies) = &mut policies {
        index.set_quotas(policies.borrow_and_update().quotas());
    }
    let ended = leadership.clone().ended();
    let master = Master::new(index, args.limits(), admission.clone(), leadership);
    let master = Arc::new(master);
    let admin = bind("HTTP (--metrics_host, --metrics_port)", args.admin())?;
    let metadata = args
        .metadata()
        .map(|address| bind("metadata (--http_metadata_server_port)", address))
        .transpose()?;
    let rpc = bind("RPC (--rpc_address, --rpc_port)", args.rpc())?;
    tracing::info!(rpc = %args.rpc(), http = %args.admin(), open = ?args.open(), metadata = ?args.metadata(), "the master serves");
    let http = http::serve(Arc::clone(&master), Listeners { admin, metadata });
    serving.send_replace(Some(Arc::clone(&master)));
    let change_quotas = change_quotas(Arc::clone(&master), policies);
    let ended = tokio::select! {
        () = serve(master, rpc, ended) => Ok(()),
        () = change_quotas => Ok(()),
        ended = http => ended.context("HTTP"),
    };
    serving.send_replace(None);
    ended
}

/// Applies each change of the quotas, until the future is dropped.
async fn change_quotas(master: Arc<Master>, policies: Option<Policies>) {
    if let Some(mut policies) = policies {
        while policies.changed().await.is_ok() {
            let policy = Arc::clone(&policies.borrow_and_update());
            master.with_index(|index, _| index.set_quotas(policy.quotas()));
        }
    }
    // The file is not read any more, or there is none.
    std::future::pending().await
}

fn bind(what: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    listen(address).with_context(|| format!("cannot listen on {address} for {what}"))
}

//! The program `admitted`: keeps the file with the admitted addresses of one cluster's master up to date until SIGTERM, and elects
//! one of several masters.

use std::net::IpAddr;
use std::path::PathBuf;

use admitted::elector::{Elector, Settings};
use admitted::seat::Local;
use admitted::{Admitted, file, members, operators};
use anyhow::Context;
use clap::{Parser, value_parser};
use crds::cluster::{DEFAULT_LEASE_SECONDS, LEAST_LEASE_SECONDS, LONGEST_LEASE_SECONDS};
use kube::runtime::watcher::DefaultBackoff;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Writes the addresses that may connect to the master of a MooncakeCluster, whenever they change. Elects one of several masters.
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
    /// Socket of the master beside this program. With it, the program elects one of several masters by a Lease.
    #[arg(long, requires_all = ["cluster_uid", "pod", "addresses"])]
    elector_socket: Option<PathBuf>,
    /// UID of the MooncakeCluster, which owns the Lease.
    #[arg(long, default_value = "")]
    cluster_uid: String,
    /// Name of this pod, which is the holder of the Lease.
    #[arg(long, default_value = "")]
    pod: String,
    /// Addresses of this pod, separated by commas. The Service of masters leads to one of them while this master leads.
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<IpAddr>,
    /// Seconds after which another master takes a Lease that this one has not renewed. All other times of the election follow from it.
    #[arg(long, default_value_t = DEFAULT_LEASE_SECONDS,
        value_parser = value_parser!(u32).range(i64::from(LEAST_LEASE_SECONDS)..=i64::from(LONGEST_LEASE_SECONDS)))]
    lease_seconds: u32,
}

impl Args {
    /// Returns the elector, if there are several masters.
    fn elector(&self, client: &kube::Client) -> anyhow::Result<Option<Elector>> {
        let Some(socket) = &self.elector_socket else {
            return Ok(None);
        };
        let local = Local::listen(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let settings = Settings {
            namespace: self.namespace.clone(),
            cluster: self.cluster.clone(),
            cluster_uid: self.cluster_uid.clone(),
            pod: self.pod.clone(),
            addresses: self.addresses.clone(),
            lease_seconds: self.lease_seconds,
        };
        Ok(Some(Elector::new(client.clone(), settings, local)))
    }
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
    let (stop, stopped) = watch::channel(false);
    let elector = args.elector(&client)?;
    let elector = elector.map(|elector| tokio::spawn(elector.run(stopped)));
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
        if let (Some(members), Some(operators)) = (members.with_pods(), operators.with_pods()) {
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
            _ = term.recv() => break,
        }
    }
    stop.send_replace(true);
    if let Some(elector) = elector {
        elector.await.context("the elector failed")?;
    }
    Ok(())
}

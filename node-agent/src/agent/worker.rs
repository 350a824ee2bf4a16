//! The process that does the agent's work: takes the node, then serves its pool pods.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use crds::reason::Reason;
use engine::Engine;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::args::Settings;
use super::claim::{self, Claim};
use super::http::{self, Face, Standing};
use super::ledger::Ledger;
use super::orphans::Orphans;
use super::pool::Context;
use super::proof::{self, Ways};
use super::readers::Readers;
use super::report::{self, Board};
use super::{
    assignments, canary, clock, containers, fixing, fleet, gpus, hardware, health, inventory,
    inventory_object, metrics, name_service, runtime,
};
use crate::checks::sickness::Sick;
use crate::devices;
use crate::host::round::Node;

/// Where a kubelet has its folder that was not named: devices are offered only where it was.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// How often a waiting agent tries to take the node.
const CLAIM_PERIOD: Duration = Duration::from_millis(100);

/// How long the driver of devices may take to leave; the supervisor waits for 5 seconds.
const FAREWELL: Duration = Duration::from_secs(4);

/// How long the worker waits before it looks for Kubernetes again.
const KUBERNETES_PERIOD: Duration = Duration::from_secs(5);

/// Works until told to end. Nothing is unmounted then: a successor takes over.
///
/// # Errors
/// What keeps it from working at all.
pub async fn work(settings: Settings) -> anyhow::Result<()> {
    // The supervisor's end is ours, also when it was killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (leave, left) = watch::channel(false);
    tokio::select! {
        done = run(settings, left) => done,
        _ = terminate.recv() => {
            tracing::info!("told to end: nothing is unmounted, a successor takes over");
            leave.send_replace(true);
            // The kubelet is told by the driver of devices, which lets go of this as its last act.
            let _ = tokio::time::timeout(FAREWELL, leave.closed()).await;
            Ok(())
        }
    }
}

async fn run(settings: Settings, left: watch::Receiver<bool>) -> anyhow::Result<()> {
    let Settings {
        node_name,
        pod_uid,
        pod_namespace,
        state_dir,
        host_proc,
        host_root,
        host_network,
        metrics_port,
        pod_ip,
        probe_port,
        data_threads,
        kubelet_dir,
        cdi_dir,
        slots_per_hca,
        log: _,
        assignments_file,
    } = settings;
    let board = Board::default();
    let (standing, watched) = watch::channel(Standing::Waiting);
    let readers = Arc::new(OnceLock::new());
    let (tell, ways) = watch::channel(Ways::new());
    let tell = Arc::new(tell);
    let face = Face {
        standing: watched,
        board: board.clone(),
        ways: ways.clone(),
        readers: Arc::clone(&readers),
    };
    let face = tokio::spawn(http::serve(metrics_port, face));
    let claim = take(&state_dir, &node_name).await?;
    let key = claim::key(&state_dir, &claim)?;
    let orphans = Orphans::open(&state_dir).context("reading what was mounted")?;
    let orphans = Arc::new(orphans);
    standing.send_replace(Standing::Working);
    tracing::info!(
        node = node_name,
        pod_uid,
        pod_namespace,
        version = env!("CARGO_PKG_VERSION"),
        "this agent works on the node"
    );
    let mut engine = engine::Settings::default();
    if data_threads > 0 {
        engine.data_threads = data_threads;
    }
    let engine = Engine::start(engine).context("starting the engine")?;
    let kubernetes = match assignments_file {
        Some(_) => None,
        None => Some(client().await),
    };
    readers.get_or_init(|| Readers::new(kubernetes.clone()));
    let assigned = match (&kubernetes, assignments_file) {
        (Some(client), _) => assignments::of_kubernetes(client.clone(), &node_name),
        (None, Some(path)) => assignments::of_file(path),
        (None, None) => anyhow::bail!("neither Kubernetes nor a file of assignments"),
    };
    if let Some(client) = kubernetes.clone() {
        let boot_id = boot_id(&host_proc)?;
        let node = Node {
            root: host_root,
            network: host_network,
        };
        let known = hardware::watch(node.clone());
        let known = canary::watch(canary::program(), node.clone(), assigned.clone(), known);
        let kubelet = kubelet_dir.as_deref();
        let kubelet = kubelet.unwrap_or_else(|| Path::new(KUBELET_DIR));
        let known = gpus::watch(
            gpus::program(),
            node.clone(),
            kubelet,
            assigned.clone(),
            known,
        );
        let known = runtime::watch(&node, &host_proc, known);
        let fixes = fixing::start(
            node,
            (&state_dir, &boot_id),
            known.clone(),
            assigned.clone(),
            board.clone(),
        );
        tokio::spawn(show(known.clone(), board.clone()));
        let (tell_sick, sick) = watch::channel(Sick::new());
        let (tell_owners, owners) = watch::channel(Vec::new());
        tokio::spawn(health::keep(
            known.clone(),
            assigned.clone(),
            health::Beside {
                ways: ways.clone(),
                fixes,
                owners,
                containers: containers::watch(procfs_above(&host_proc), assigned.clone()),
                names: name_service::watch(assigned.clone()),
                clock: clock::watch(client.clone()),
                cdi: kubelet_dir.is_some().then(|| cdi_dir.clone()),
            },
            board.clone(),
            tell_sick,
        ));
        if let Some(kubelet) = kubelet_dir {
            let settings = devices::Settings {
                node_name: node_name.clone(),
                pod_uid: pod_uid.clone(),
                kubelet,
                cdi: cdi_dir,
                state: state_dir.clone(),
                boot_id: boot_id.clone(),
                slots_per_hca,
            };
            tokio::spawn(devices::keep(
                settings,
                client.clone(),
                known.clone(),
                assigned.clone(),
                sick,
                tell_owners,
                left,
            ));
        }
        tokio::spawn(inventory_object::keep(
            client.clone(),
            node_name.clone(),
            assigned.clone(),
            known,
        ));
        let (board, assigned) = (board.clone(), assigned.clone());
        tokio::spawn(report::write(
            client,
            node_name.clone(),
            boot_id,
            board,
            assigned,
        ));
    }
    if let Some(ip) = pod_ip {
        let address = SocketAddr::new(ip, probe_port);
        let (engine, assigned) = (engine.clone(), assigned.clone());
        tokio::spawn(proof::keep(engine, address, assigned, Arc::clone(&tell)));
    }
    let left_behind = (Arc::clone(&orphans), host_proc.clone());
    tokio::spawn(async move { left_behind.0.watch(&left_behind.1).await });
    let context = Context {
        node_name,
        proc: host_proc,
        key,
        engine,
        ledger: Ledger::default(),
        orphans,
        board,
        kubernetes,
    };
    tokio::select! {
        () = fleet::serve(Arc::new(context), assigned) => anyhow::bail!("the watch has ended"),
        ended = face => ended?,
    }
}

/// Passes on what is known of the node's RDMA devices.
async fn show(mut known: hardware::Known, board: Board) {
    while known.changed().await.is_ok() {
        let facts = known.borrow_and_update().clone();
        if let Some(facts) = facts {
            board.set_hcas(inventory::lines(&facts));
            board.set_took(metrics::took(&facts));
        }
    }
}

/// Waits until no other agent works on this node.
async fn take(folder: &Path, node: &str) -> anyhow::Result<Claim> {
    let mut told = false;
    loop {
        if let Some(claim) = Claim::take(folder)? {
            return Ok(claim);
        }
        if !told {
            tracing::warn!(
                node, reason = %Reason::AnotherAgentActive,
                "another agent works on this node: waiting for its end"
            );
            told = true;
        }
        tokio::time::sleep(CLAIM_PERIOD).await;
    }
}

/// A client of the API of this pod's service account. Making it talks to nobody.
async fn client() -> kube::Client {
    loop {
        match kube::Client::try_default().await {
            Ok(client) => return client,
            Err(error) => {
                tracing::error!(%error, "no access to Kubernetes is configured in this pod");
                tokio::time::sleep(KUBERNETES_PERIOD).await;
            }
        }
    }
}

/// The folder that holds a procfs; its processes are live also where a recording stands for the hardware.
fn procfs_above(proc: &Path) -> PathBuf {
    proc.parent().unwrap_or_else(|| Path::new("/")).to_owned()
}

/// The running kernel's id, as the kubelet reports it.
fn boot_id(proc: &Path) -> anyhow::Result<String> {
    let path = proc.join("sys/kernel/random/boot_id");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().to_owned())
}

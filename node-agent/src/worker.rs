//! The worker process of the agent: acquires the node lock, then starts all tasks. This file is the map of what flows
//! between them.
//!
//! ```text
//! assigned:   MooncakeNode ─► pool tasks, peer probes, sources of snapshots, checks, fixes, devices, inventory
//! inbox:      sources, fixes, devices ─► gather
//! snapshots:  gather ─► checks, fixes, devices, inventory, /metrics
//! paths:      peer probes ─► gather, /metrics
//! unhealthy:  checks ─► devices
//! reporter:   pool tasks, checks, fixes ─► status of the MooncakeNode, /metrics
//! engine processes: reports, counters, calls ─► pool tasks; assignments, admitted addresses ─► engine processes
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use engine::Engine;
use http_server::{Readers, Resolver};
use kube::{Api, Client};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::Settings;
use crate::assignments::{self, Assignments};
use crate::facts::gather;
use crate::facts::inbox::{Inbox, Publish};
use crate::health::{self, fixing};
use crate::peers::{self, PeerPaths};
use crate::pools::engine_process::EngineProcesses;
use crate::pools::memory_budget::MemoryBudget;
use crate::pools::mounts::Mounts;
use crate::pools::{Context, pod_tasks};
use crate::process::node_lock::{self, NodeLock};
use crate::publish::http::{self, AgentState, Observed};
use crate::publish::report::Reporter;
use crate::publish::{certificate, inventory, status};
use checks::fixes::journal::Journal;
use checks::unhealthy_devices::UnhealthyDevices;
use host::kernel;

/// Time that the DRA driver has to stop; the supervisor waits for 5 seconds.
const STOP_DEADLINE: Duration = Duration::from_secs(4);

/// Runs until SIGTERM. Nothing is unmounted then: a successor takes over.
///
/// # Errors
/// The node lock, the state folder, the engine or the configuration cannot be used; or a task that must not end has ended.
pub(crate) async fn work(settings: Settings) -> anyhow::Result<()> {
    // Ends with the supervisor, also when that is killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (stop, stopped) = watch::channel(false);
    tokio::select! {
        done = run(settings, stopped) => done,
        _ = terminate.recv() => {
            tracing::info!("terminating: nothing is unmounted, a successor takes over");
            stop.send_replace(true);
            // The DRA driver drops the receiver when it has deregistered from the kubelet.
            let _ = tokio::time::timeout(STOP_DEADLINE, stop.closed()).await;
            Ok(())
        }
    }
}

async fn run(settings: Settings, stopped: watch::Receiver<bool>) -> anyhow::Result<()> {
    let reporter = Reporter::default();
    let (publish_state, agent) = watch::channel(AgentState::Waiting);
    let (publish_paths, paths) = watch::channel(PeerPaths::new());
    let (publish_snapshots, snapshots) = watch::channel(None);
    let health = tokio::spawn(http::serve_health(settings.health_port, agent));

    let name = &settings.node_name;
    let lock = NodeLock::acquire(&settings.state_dir, name).await?;
    let key = node_lock::key(&settings.state_dir, &lock)?;
    let mounts = Mounts::open(&settings.state_dir);
    let mounts = Arc::new(mounts.context("cannot read the mounts of earlier agents")?);
    let engines = EngineProcesses::open(&settings).context("cannot prepare engine processes")?;
    publish_state.send_replace(AgentState::Active);
    tracing::info!(
        node = name,
        pod_uid = settings.pod_uid,
        pod_namespace = settings.pod_namespace,
        version = env!("CARGO_PKG_VERSION"),
        "this agent holds the node lock"
    );
    let engine = Engine::start(settings.engine()).context("cannot start the engine")?;
    let (kubernetes, assigned) = match &settings.assignments_file {
        Some(path) => (None, assignments::of_file(path.clone())),
        None => {
            let client = assignments::client().await;
            let assigned = assignments::of_kubernetes(client.clone(), name);
            (Some(client), assigned)
        }
    };
    let observed = Observed {
        report: reporter.subscribe(),
        paths: paths.clone(),
        snapshots,
        readers: Arc::new(Readers::new(kubernetes.clone())),
    };
    let served = (kubernetes.as_ref()).map(|client| follow_certificate(&settings, client));
    let metrics = http::serve_metrics(settings.metrics_port, observed, served);
    let metrics = tokio::spawn(metrics);

    // An agent without Kubernetes serves pools, but does not observe its node.
    let inbox = match &kubernetes {
        None => None,
        Some(client) => Some(observe_node(
            &settings,
            client,
            &assigned,
            paths,
            publish_snapshots,
            &reporter,
            stopped,
        )?),
    };
    // Without peer probes, the paths stay empty.
    let publish_paths = Arc::new(publish_paths);
    if let Some(ip) = settings.pod_ip {
        let address = SocketAddr::new(ip, settings.probe_port);
        let (engine, paths) = (engine.clone(), Arc::clone(&publish_paths));
        tokio::spawn(peers::keep(engine, address, assigned.clone(), paths));
    }

    let context = Arc::new(Context {
        engines,
        proc: settings.host_proc,
        key,
        budget: MemoryBudget::default(),
        mounts,
        reporter,
        inbox,
        kubernetes,
    });
    let of_mounts = Arc::clone(&context);
    tokio::spawn(async move {
        let mounts = &of_mounts.mounts;
        mounts.watch(&of_mounts.proc, &of_mounts.engines).await;
    });
    tokio::select! {
        () = pod_tasks::run(context, assigned) => anyhow::bail!("the watch of assignments has ended"),
        ended = health => ended?,
        ended = metrics => ended?,
    }
}

/// Follows the certificate of the metrics.
fn follow_certificate(settings: &Settings, client: &Client) -> Arc<Resolver> {
    let secrets = Api::namespaced(client.clone(), &settings.pod_namespace);
    let served = Arc::new(Resolver::default());
    let name = settings.certificate_secret.clone();
    tokio::spawn(certificate::follow(secrets, name, Arc::clone(&served)));
    served
}

/// Starts what observes, checks, fixes and reports the node, and offers its devices. Returns the inbox of the sources.
fn observe_node(
    settings: &Settings,
    client: &Client,
    assigned: &watch::Receiver<Assignments>,
    paths: watch::Receiver<PeerPaths>,
    publish: Publish,
    reporter: &Reporter,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<Inbox> {
    let boot_id = kernel::boot_id(&settings.host_proc)?;
    let name = &settings.node_name;
    let snapshots = publish.subscribe();
    let inputs = || (snapshots.clone(), assigned.clone());
    let inbox = gather::start(settings, client.clone(), assigned.clone(), paths, publish);
    let (publish_unhealthy, unhealthy) = watch::channel(UnhealthyDevices::new());
    let offered = settings.devices(&boot_id);
    let cdi_folder = offered.as_ref().map(|devices| devices.cdi.clone());
    tokio::spawn(health::run(
        boot_id.clone(),
        inputs(),
        cdi_folder,
        reporter.clone(),
        publish_unhealthy,
    ));
    let journal = Journal::open(&settings.state_dir, &boot_id);
    let (node, to) = (settings.node(), inbox.clone());
    tokio::spawn(fixing::run(node, journal, inputs(), reporter.clone(), to));
    if let Some(settings) = offered {
        tokio::spawn(devices::keep(devices::Inputs {
            settings,
            client: client.clone(),
            snapshots: snapshots.clone(),
            node_uid: assignments::node_uid(assigned.clone()),
            unhealthy,
            inbox: inbox.clone(),
            stopped,
        }));
    }
    tokio::spawn(inventory::run(client.clone(), name.clone(), inputs()));
    let (report, spec) = (reporter.subscribe(), assigned.clone());
    tokio::spawn(status::write(
        client.clone(),
        name.clone(),
        boot_id,
        report,
        spec,
    ));
    Ok(inbox)
}

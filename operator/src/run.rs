//! The one place that spawns: caches, Lease, controllers while leading, webhook, health, metrics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use crds::MooncakeCluster;
use crds::update::OnCordon;
use futures::TryFutureExt as _;
use http_server::Resolver;
use k8s_openapi::api::core::v1::Node;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::apply::Writer;
use crate::args::Args;
use crate::cache::{Caches, ClusterName, Trigger};
use crate::certificates::{self, Endpoint, Schedule};
use crate::cluster::validate::Settings;
use crate::compute_domain::view;
use crate::event::Events;
use crate::health::{self, Health};
use crate::lease::{Fence, Keeper};
use crate::metrics::{self, Metrics};
use crate::{admission, cluster, compute_domain, controller, node, policy};

/// Changes of one object within this are one reconcile.
const CLUSTER_WINDOW: Duration = Duration::from_millis(100);
const NODE_WINDOW: Duration = Duration::from_millis(20);
/// First label of the DNS name in the certificate of the agents' metrics. Nothing resolves it: clients compare it only.
const AGENT_NAME: &str = "mooncake-agent";
/// Longest time for all to end after SIGTERM.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(20);

/// Runs until SIGTERM or SIGINT, or until a port cannot be opened.
///
/// Blocks: the runtime is here and not in the program, or the compiler makes the code of all tasks for both.
#[tokio::main]
pub async fn run(args: Args) -> anyhow::Result<()> {
    end_on_panic();
    let client = Client::try_default()
        .await
        .context("cannot find a configuration for the API server (in-cluster or kubeconfig)")?;
    let metrics = Metrics::new();
    let caches = Caches::start(&client, &args.namespace, &metrics);
    let certificate = Arc::new(Resolver::default());
    let (stop_work, work_stops) = watch::channel(false);
    let (stop_lease, lease_stops) = watch::channel(false);
    let (leads, leader) = watch::channel(false);

    let (keeper, fence) = Keeper::new(client.clone(), args.lease(), metrics.clone());
    let synced = synced(&caches);
    let health = Health {
        turned: keeper.turned(),
        synced: synced.clone(),
        certificate: certificate.clone(),
    };
    let keeper = tokio::spawn(keeper.run(lease_stops));
    let controllers = Controllers {
        client: client.clone(),
        caches: caches.clone(),
        fence,
        metrics: metrics.clone(),
        settings: args.clusters(),
        identity: args.identity.clone(),
        paused: args.paused,
    };
    let controllers = tokio::spawn(lead(synced, controllers, leads, work_stops.clone()));

    let stop = || stopped(work_stops.clone());
    let mut servers = JoinSet::<anyhow::Result<()>>::new();
    servers.spawn(health::serve(args.health_port, health, stop()).err_into());
    let endpoint = metrics::Settings {
        port: args.metrics_port,
        certificate: certificate.clone(),
    };
    let clusters = caches.clusters.clone();
    servers.spawn(metrics::serve(endpoint, client.clone(), metrics, clusters, stop()).err_into());
    let agents = certificates::Keeper::new(
        client.clone(),
        &args.namespace,
        args.agent_certificate_secret.clone(),
        Endpoint::Pods(format!("{AGENT_NAME}.{}.svc", args.namespace)),
        Schedule::default(),
    );
    servers.spawn(keep(agents, leader.clone(), stop()));
    let webhook = args.webhook();
    servers
        .spawn(admission::serve(webhook, client, caches, certificate, leader, stop()).err_into());

    let outcome = tokio::select! {
        () = termination_signal() => Ok(()),
        Some(ended) = servers.join_next() => ended.context("a server panicked")?,
    };
    tracing::info!("ending");
    // Writers first, then the Lease, so that no write overlaps with the next leader.
    stop_work.send_replace(true);
    let ended = tokio::time::timeout(SHUTDOWN_LIMIT, async {
        controllers.await.ok();
        stop_lease.send_replace(true);
        keeper.await.ok();
        while servers.join_next().await.is_some() {}
    });
    if ended.await.is_err() {
        tracing::warn!("shutdown not complete after {} s", SHUTDOWN_LIMIT.as_secs());
    }
    outcome
}

/// A panic ends the process, also one of a task that nothing awaits: a leader without its controllers would keep the Lease. The kubelet
/// starts the container again, and the other replica leads meanwhile.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the end as well.
    stop.wait_for(|stop| *stop).await.ok();
}

async fn termination_signal() {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("cannot receive signals; only SIGKILL ends this process");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Keeps a certificate until `stop` resolves.
async fn keep(
    keeper: certificates::Keeper,
    leader: watch::Receiver<bool>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::select! {
        () = stop => Ok(()),
        never = keeper.run(leader) => match never {},
    }
}

fn synced(caches: &Caches) -> watch::Receiver<bool> {
    let (sender, synced) = watch::channel(false);
    let caches = caches.clone();
    tokio::spawn(async move {
        if caches.synced().await.is_ok() {
            sender.send_replace(true);
            tracing::info!("caches synced");
        }
        // The value is final.
        sender.closed().await;
    });
    synced
}

/// What the controllers work with.
pub struct Controllers {
    pub client: Client,
    pub caches: Caches,
    pub fence: Fence,
    pub metrics: Metrics,
    pub settings: Settings,
    /// This pod's name, for Events.
    pub identity: String,
    /// Write statuses and Events only.
    pub paused: bool,
}

/// The clusters that drain cordoned nodes.
fn draining(caches: &Caches) -> Vec<ClusterName> {
    let clusters = caches.clusters.state();
    let drains = |cluster: &&MooncakeCluster| {
        let update = cluster.spec.update.as_ref();
        update.is_some_and(|update| update.on_cordon == OnCordon::Drain)
    };
    let clusters = clusters
        .iter()
        .filter_map(|cluster| cluster.0.as_ref().ok());
    clusters
        .filter(drains)
        .filter_map(|cluster| {
            Some(ClusterName {
                namespace: cluster.namespace()?,
                name: cluster.name_any(),
            })
        })
        .collect()
}

/// Runs the controllers whenever this replica leads; losing the lead drops them at once.
async fn lead(
    mut synced: watch::Receiver<bool>,
    controllers: Controllers,
    leads: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) {
    tokio::select! {
        _ = synced.wait_for(|synced| *synced) => {}
        _ = stop.wait_for(|stop| *stop) => return,
    }
    let mut fence = controllers.fence.clone();
    loop {
        tokio::select! {
            () = fence.raised() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        leads.send_replace(true);
        tokio::select! {
            () = controllers.work() => {}
            () = fence.lowered() => tracing::warn!("lost the lead; controllers stopped"),
            _ = stop.wait_for(|stop| *stop) => {}
        }
        leads.send_replace(false);
        if *stop.borrow() {
            return;
        }
    }
}

impl Controllers {
    /// Reconciles every kind until dropped.
    pub async fn work(&self) {
        let Self {
            client,
            caches,
            fence,
            metrics,
            settings,
            identity,
            paused,
        } = self;
        if *paused {
            tracing::warn!(
                "paused: statuses are written, no object is created, changed or deleted"
            );
        }
        let writer = Writer::new(fence.clone(), metrics.clone());
        let writer = Arc::new(writer.pausing(*paused));
        let events = || Events::new(client.clone(), identity.clone());
        let usage = Arc::new(cluster::usage::Meter::default());
        let clusters = controller::run(
            metrics.clone(),
            caches.clusters.clone(),
            caches.subscribe(),
            |trigger| clusters_of(caches, trigger),
            CLUSTER_WINDOW,
            Arc::new(cluster::Context {
                client: client.clone(),
                caches: caches.clone(),
                writer: writer.clone(),
                events: events(),
                metrics: metrics.clone(),
                settings: settings.clone(),
                usage: usage.clone(),
                drains: cluster::cordoned::Recent::default(),
            }),
            cluster::reconcile,
        );
        let nodes = controller::run(
            metrics.clone(),
            caches.nodes.clone(),
            caches.subscribe(),
            |trigger| nodes_of(caches, trigger),
            NODE_WINDOW,
            Arc::new(node::Context {
                client: client.clone(),
                caches: caches.clone(),
                writer: writer.clone(),
                events: events(),
                unresponsive: node::lost_segments::UnresponsiveNodes::default(),
                without_agent: node::lost_segments::UnresponsiveNodes::default(),
                health: node::transitions::LastHealth::default(),
                fixes: node::transitions::LastFixes::default(),
                device_owners: node::transitions::LastDeviceOwners::default(),
                free_memory: node::hugepage_capacity::FreeMemory::default(),
            }),
            node::reconcile,
        );
        let policies = policy::run(policy::Context {
            client: client.clone(),
            caches: caches.clone(),
            writer: writer.clone(),
            events: events(),
            metrics: metrics.clone(),
        });
        let domains =
            compute_domain::retire::run(client.clone(), caches.clone(), writer, caches.subscribe());
        tokio::join!(clusters, nodes, policies, domains, usage.run(caches));
    }
}

/// The clusters that a trigger reconciles.
fn clusters_of(
    caches: &Caches,
    trigger: &Trigger,
) -> Vec<ObjectRef<DeserializeGuard<MooncakeCluster>>> {
    let clusters = match trigger {
        Trigger::Cluster(cluster) => vec![cluster.clone()],
        Trigger::Node(node) | Trigger::Ring(node) => view::clusters_near(caches, node),
        Trigger::Domain(uid) => view::clusters_of(caches, uid),
        Trigger::Mnnvl(namespace) => view::clusters_in(caches, namespace),
        Trigger::Cordons => draining(caches),
        Trigger::NodesOf(_) | Trigger::Policies | Trigger::Everything => Vec::new(),
    };
    let clusters = clusters.iter();
    clusters
        .map(|cluster| ObjectRef::new(&cluster.name).within(&cluster.namespace))
        .collect()
}

/// The nodes that a trigger reconciles.
fn nodes_of(caches: &Caches, trigger: &Trigger) -> Vec<ObjectRef<Node>> {
    let nodes = match trigger {
        Trigger::Node(name) => BTreeSet::from([name.clone()]),
        Trigger::Ring(name) => {
            let around = caches.neighbours(name, []);
            let around = around.affected().map(str::to_owned);
            around.chain([name.clone()]).collect()
        }
        Trigger::NodesOf(cluster) => node::observe::of_cluster(caches, cluster),
        Trigger::Domain(uid) => view::nodes_of(caches, uid),
        Trigger::Policies => {
            let nodes = caches.nodes.state();
            nodes.iter().map(|node| node.name_any()).collect()
        }
        Trigger::Cluster(_) | Trigger::Mnnvl(_) | Trigger::Cordons | Trigger::Everything => {
            BTreeSet::new()
        }
    };
    nodes.iter().map(|name| ObjectRef::new(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const SIGABRT: i32 = 6;
    const PANICKING: &str = "run::tests::a_task_that_panics";

    #[tokio::test]
    #[ignore = "ends its process: the next test runs it in another"]
    async fn a_task_that_panics() {
        end_on_panic();
        tokio::spawn(async { panic!("in a task") }).await.ok();
    }

    #[test]
    fn a_panic_of_a_task_ends_the_process() {
        let this = std::env::current_exe().unwrap();
        let arguments = ["--include-ignored", "--exact", "--nocapture", PANICKING];
        let done = Command::new(this).args(arguments).output().unwrap();
        assert_eq!(done.status.signal(), Some(SIGABRT), "{done:?}");
        let printed = String::from_utf8_lossy(&done.stderr);
        assert!(printed.contains("in a task"), "{printed}");
    }
}

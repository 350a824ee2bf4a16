//! Runs one command: reads objects and computes the report.

use std::fmt::Debug;

use crds::sizing::{Launch, TooLarge};
use crds::{MooncakeCluster, MooncakeInventory, MooncakeNode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};
use mooncake_operator::admission::InjectionRequest;
use serde::de::DeserializeOwned;

use crate::args::{self, Args, Command, Flags, Output};
use crate::bundle::{self, bundle};
use crate::collect::{CLUSTER_SCOPE, Objects, api, collect, or_error};
use crate::connection::{Connection, Error};
use crate::doctor::doctor;
use crate::drain;
use crate::keys;
use crate::node::{current, node};
use crate::preflight::{self, Plan};
use crate::read_error::{Cause, ReadError, Resources};
use crate::report::Report;
use crate::segment::{self, segment};
use crate::sizing::{Hugepages, sizing, total, used_by_pools};
use crate::snapshot::Snapshot;
use crate::status::status;
use crate::why::{Inputs, why};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Connection(#[from] Error),
    #[error(transparent)]
    Bundle(#[from] bundle::Error),
    #[error(transparent)]
    Plan(#[from] preflight::PlanError),
    #[error(transparent)]
    Drain(#[from] drain::carry_out::Error),
    #[error(transparent)]
    Keys(#[from] keys::collect::Error),
    #[error("{0}")]
    Sizes(#[from] TooLarge),
    #[error("cannot start a runtime: {0}")]
    Runtime(std::io::Error),
}

/// Release of this program.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Runs a command. Blocks.
///
/// # Errors
/// An API server that cannot be read, the requested object cannot be read, sizes that overflow, or no runtime.
pub fn run(args: &Args) -> Result<Report, Box<Failure>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let result = runtime.block_on(report(args));
    // A credential plugin that still runs must not keep the process alive.
    runtime.shutdown_background();
    Ok(result?)
}

async fn report(args: &Args) -> Result<Report, Failure> {
    let flags = &args.flags;
    Ok(match &args.command {
        Command::Status => Report::Status(status(&snapshot(flags, Objects::Clusters).await?)),
        Command::Doctor => {
            let snapshot = snapshot(flags, Objects::All).await?;
            Report::Doctor(doctor(&snapshot, RELEASE, Timestamp::now()))
        }
        Command::Node { name } => one_node(&Connection::open(flags).await?, name).await?,
        Command::Why { pod } => {
            let connection = Connection::open(flags).await?;
            let namespace = flags.namespace.as_ref().unwrap_or(&connection.namespace);
            let name = pod.strip_prefix("pod/").unwrap_or(pod);
            Report::Why(Box::new(why(&inputs(&connection, namespace, name).await?)))
        }
        Command::Segment { name } => {
            let inputs = segment_inputs(&Connection::open(flags).await?, name).await;
            Report::Segment(Box::new(segment(inputs, Timestamp::now())))
        }
        Command::Keys(args) => {
            let connection = Connection::open(flags).await?;
            let namespace = flags.namespace.as_ref().unwrap_or(&connection.namespace);
            let inputs = keys::collect::collect(&connection, namespace, args).await?;
            Report::Keys(keys::keys(inputs))
        }
        Command::Drain(args) => {
            let is_text = !matches!(flags.output, Some(Output::Json));
            let progress = |line: &str| {
                if is_text {
                    eprintln!("{line}");
                }
            };
            let connection = Connection::open(flags).await?;
            Report::Drain(drain::carry_out::drain(&connection, args, progress).await?)
        }
        Command::Undrain { node } => {
            let connection = Connection::open(flags).await?;
            Report::Drain(drain::carry_out::undrain(&connection, node).await?)
        }
        Command::Bundle(args) => {
            let connection = Connection::open(flags).await?;
            let own = flags.namespace.as_ref().unwrap_or(&connection.namespace);
            let namespace = Some(own.as_str()).filter(|_| !flags.all_namespaces);
            Report::Bundle(bundle(&connection, namespace, args).await?)
        }
        Command::Preflight(args) => {
            let mut plan = Plan::read(flags.namespace.as_deref(), args)?;
            let connection = Connection::open(flags).await?;
            plan.default_namespace(&connection.namespace);
            let facts = preflight::collect(&connection, &plan).await;
            Report::Preflight(preflight::preflight(&facts, &plan))
        }
        Command::Sizing(sizes) => {
            let launch = Launch {
                tp_size: sizes.tp_size,
                hicache: sizes.hicache_size,
                segment: sizes.global_segment_size,
                arena: sizes.arena_pool_size,
            };
            let hugepages = hugepages(flags, sizes).await?;
            Report::Sizing(sizing(&launch, sizes.hugepage_size, hugepages)?)
        }
    })
}

/// Reads a snapshot of the namespaces that the flags select.
async fn snapshot(flags: &Flags, objects: Objects) -> Result<Snapshot, Error> {
    let connection = Connection::open(flags).await?;
    let own = flags.namespace.as_ref().unwrap_or(&connection.namespace);
    let namespace = Some(own.as_str()).filter(|_| !flags.all_namespaces);
    Ok(collect(&connection, namespace, objects).await)
}

/// Reads a cluster-scoped object.
async fn get<K>(connection: &Connection, resource: Resources, name: &str) -> Result<K, ReadError>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = Api::all(connection.client.clone());
    connection.get(resource, &api, name).await
}

fn fatal(connection: &Connection, error: ReadError) -> Failure {
    let server = connection.server.clone();
    Error::Read { server, error }.into()
}

async fn one_node(connection: &Connection, name: &str) -> Result<Report, Failure> {
    let (found, inventory) = tokio::join!(
        get::<MooncakeNode>(connection, Resources::MOONCAKE_NODES, name),
        get::<MooncakeInventory>(connection, Resources::INVENTORIES, name),
    );
    let mut errors = Vec::new();
    let found = or_error(found, &mut errors);
    let inventory = or_error(inventory, &mut errors);
    if found.is_none() && inventory.is_none() {
        return Err(fatal(connection, errors.remove(0)));
    }
    let report = node(name, found.as_ref(), inventory.as_ref(), errors);
    Ok(Report::Node(Box::new(report)))
}

async fn inputs(connection: &Connection, namespace: &str, name: &str) -> Result<Inputs, Failure> {
    let pods = api::<Pod>(connection, Some(namespace));
    let pod = connection.get(Resources::PODS, &pods, name).await;
    let pod = pod.map_err(|error| fatal(connection, error))?;
    let request = InjectionRequest::of(&pod, namespace).ok().flatten();
    let events = api::<Event>(connection, Some(namespace));
    let about = format!("involvedObject.uid={}", pod.uid().unwrap_or_default());
    let scope = format!("namespace {namespace}");
    let webhooks = Api::all(connection.client.clone());
    let (labels, webhooks, events, cluster) = tokio::join!(
        get::<Namespace>(connection, Resources::NAMESPACES, namespace),
        connection.list(
            Resources::WEBHOOKS,
            CLUSTER_SCOPE,
            &webhooks,
            ListParams::default()
        ),
        connection.list(
            Resources::EVENTS,
            &scope,
            &events,
            ListParams::default().fields(&about)
        ),
        cluster(connection, request.as_ref()),
    );
    let mut read_errors = Vec::new();
    let errors = &mut read_errors;
    Ok(Inputs {
        pod,
        namespace_labels: or_error(labels, errors).map(|namespace| namespace.labels().clone()),
        webhooks: or_error(webhooks, errors).unwrap_or_default(),
        events: or_error(events, errors).unwrap_or_default(),
        cluster: or_error(cluster, errors).flatten(),
        read_errors,
    })
}

/// Reads all MooncakeNodes, and the pods that have the address of a server name.
async fn segment_inputs(connection: &Connection, name: &str) -> segment::Inputs {
    let nodes = Api::all(connection.client.clone());
    let pods = api::<Pod>(connection, None);
    let holders = async {
        let Some(address) = segment::address(name) else {
            return Ok(Vec::new());
        };
        let params = ListParams::default().fields(&format!("status.podIP={address}"));
        connection
            .list(Resources::PODS, "all namespaces", &pods, params)
            .await
    };
    let (nodes, holders) = tokio::join!(
        connection.list_ours(Resources::MOONCAKE_NODES, CLUSTER_SCOPE, &nodes),
        holders
    );
    let (nodes, mut read_errors) = nodes;
    segment::Inputs {
        name: name.to_owned(),
        nodes,
        holders: or_error(holders, &mut read_errors).unwrap_or_default(),
        read_errors,
    }
}

/// The cluster that the pod names; `None` when it does not exist.
async fn cluster(
    connection: &Connection,
    request: Option<&InjectionRequest>,
) -> Result<Option<MooncakeCluster>, ReadError> {
    let Some(InjectionRequest {
        namespace, cluster, ..
    }) = request
    else {
        return Ok(None);
    };
    let resource = Resources::CLUSTERS;
    let api = api::<DeserializeGuard<MooncakeCluster>>(connection, Some(namespace));
    match connection.get(resource, &api, cluster).await {
        Ok(DeserializeGuard(Ok(cluster))) => Ok(Some(cluster)),
        Ok(DeserializeGuard(Err(invalid))) => {
            let name = format!("{namespace}/{cluster}");
            let cause = Cause::DecodeFailed;
            Err(ReadError::new(resource, name, cause, invalid.error))
        }
        Err(error) if error.cause == Cause::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Hugepages of the flags or of the node that they name.
async fn hugepages(flags: &Flags, sizes: &args::Sizing) -> Result<Hugepages, Failure> {
    let Some(name) = &sizes.node else {
        return Ok(Hugepages {
            total: sizes.available_hugetlb,
            ..Hugepages::default()
        });
    };
    let connection = Connection::open(flags).await?;
    let (inventory, node) = tokio::join!(
        get(&connection, Resources::INVENTORIES, name),
        get::<MooncakeNode>(&connection, Resources::MOONCAKE_NODES, name),
    );
    let inventory = inventory.map_err(|error| fatal(&connection, error))?;
    Ok(Hugepages {
        node: Some(name.clone()),
        total: current(&inventory).and_then(|status| total(&status, sizes.hugepage_size)),
        // RBAC rules usually allow both kinds or none.
        used_by_pools: node.map_or(0, |node| used_by_pools(&node, sizes.hugepage_size)),
    })
}

//! One command, from its words to its answer.

use crds::{MooncakeCluster, MooncakeInventory, MooncakeNode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};

use crate::admission::Wish;
use crate::cli::answer::Answer;
use crate::cli::args::{self, Args, Command, Flags};
use crate::cli::connection::{Connection, Error};
use crate::cli::doctor::doctor;
use crate::cli::node::{current, node};
use crate::cli::sizing::{Supply, set_aside, sizing, taken};
use crate::cli::status::status;
use crate::cli::survey::{Depth, survey, within};
use crate::cli::unseen::{Cause, Unseen, What};
use crate::cli::why::{Subject, why};
use crate::sizing::{Launch, TooLarge};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Connection(#[from] Error),
    #[error("{0}")]
    Sizes(#[from] TooLarge),
}

/// Release of this program.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Carries a command out.
///
/// # Errors
/// Where nothing at all could be looked at, or not the one object that is asked for.
pub async fn run(args: &Args) -> Result<Answer, Failure> {
    let flags = &args.flags;
    match &args.command {
        Command::Status => {
            let connection = Connection::open(flags).await?;
            let namespace = namespace(flags, &connection);
            let picture = survey(&connection, namespace.as_deref(), Depth::Clusters).await;
            Ok(Answer::Status(status(&picture)))
        }
        Command::Doctor => {
            let connection = Connection::open(flags).await?;
            let namespace = namespace(flags, &connection);
            let picture = survey(&connection, namespace.as_deref(), Depth::All).await;
            Ok(Answer::Doctor(doctor(&picture, RELEASE, Timestamp::now())))
        }
        Command::Node { name } => {
            let connection = Connection::open(flags).await?;
            one_node(&connection, name).await
        }
        Command::Why { pod } => {
            let connection = Connection::open(flags).await?;
            let own = connection.namespace.clone();
            let namespace = flags.namespace.clone().unwrap_or(own);
            let name = pod.strip_prefix("pod/").unwrap_or(pod);
            let subject = subject(&connection, &namespace, name).await?;
            Ok(Answer::Why(Box::new(why(&subject))))
        }
        Command::Sizing(words) => {
            let supply = supply(flags, words).await?;
            let launch = Launch {
                tp_size: words.tp_size,
                hicache: words.hicache_size,
                segment: words.global_segment_size,
                arena: words.arena_pool_size,
            };
            let answer = sizing(&launch, words.hugepage_size, supply)?;
            Ok(Answer::Sizing(answer))
        }
    }
}

/// As kubectl chooses it; `None`: all.
fn namespace(flags: &Flags, connection: &Connection) -> Option<String> {
    if flags.all_namespaces {
        return None;
    }
    let own = || connection.namespace.clone();
    Some(flags.namespace.clone().unwrap_or_else(own))
}

/// The object, or what could not be looked at.
fn noted<K>(answer: Result<K, Unseen>, unseen: &mut Vec<Unseen>) -> Option<K> {
    answer.map_err(|not| unseen.push(not)).ok()
}

async fn one_node(connection: &Connection, name: &str) -> Result<Answer, Failure> {
    let nodes = Api::<MooncakeNode>::all(connection.client.clone());
    let inventories = Api::<MooncakeInventory>::all(connection.client.clone());
    let (there, hardware) = tokio::join!(
        connection.get(What::Nodes, &nodes, name),
        connection.get(What::Inventories, &inventories, name),
    );
    let mut unseen = Vec::new();
    let there = noted(there, &mut unseen);
    let hardware = noted(hardware, &mut unseen);
    if there.is_none() && hardware.is_none() {
        let place = connection.place.clone();
        let unseen = unseen.remove(0);
        return Err(Error::Object { place, unseen }.into());
    }
    let answer = node(name, there.as_ref(), hardware.as_ref(), unseen);
    Ok(Answer::Node(Box::new(answer)))
}

async fn subject(connection: &Connection, namespace: &str, name: &str) -> Result<Subject, Failure> {
    let client = || connection.client.clone();
    let pods = within::<Pod>(connection, Some(namespace));
    let pod = match connection.get(What::Pods, &pods, name).await {
        Ok(pod) => pod,
        Err(unseen) => {
            let place = connection.place.clone();
            return Err(Error::Object { place, unseen }.into());
        }
    };
    let wish = Wish::of(&pod, namespace).ok().flatten();
    let events = within::<Event>(connection, Some(namespace));
    let about = format!("involvedObject.uid={}", pod.uid().unwrap_or_default());
    let scope = format!("namespace {namespace}");
    let namespaces = Api::<Namespace>::all(client());
    let webhooks = Api::all(client());
    let (labels, webhooks, events, cluster) = tokio::join!(
        connection.get(What::Namespaces, &namespaces, namespace),
        connection.list(What::Webhooks, "the whole cluster", &webhooks, None),
        connection.list_by_field(What::Events, &scope, &events, &about),
        cluster(connection, wish.as_ref()),
    );
    let mut unseen = Vec::new();
    let labels = noted(labels, &mut unseen);
    let webhooks = noted(webhooks, &mut unseen).unwrap_or_default();
    let events = noted(events, &mut unseen).unwrap_or_default();
    let cluster = noted(cluster, &mut unseen).flatten();
    Ok(Subject {
        pod,
        cluster,
        labels: labels.map(|namespace| namespace.labels().clone()),
        webhooks,
        events,
        unseen,
    })
}

/// `None` where there is none.
async fn cluster(
    connection: &Connection,
    wish: Option<&Wish>,
) -> Result<Option<MooncakeCluster>, Unseen> {
    let Some(wish) = wish else { return Ok(None) };
    let api = within::<DeserializeGuard<MooncakeCluster>>(connection, Some(&wish.namespace));
    match connection.get(What::Clusters, &api, &wish.cluster).await {
        Ok(DeserializeGuard(Ok(cluster))) => Ok(Some(cluster)),
        Ok(DeserializeGuard(Err(invalid))) => {
            let place = format!("{}/{}", wish.namespace, wish.cluster);
            let cause = Cause::NotUnderstood;
            Err(Unseen::new(What::Clusters, place, cause, invalid.error))
        }
        Err(not) if not.cause == Cause::NotFound => Ok(None),
        Err(not) => Err(not),
    }
}

/// What there is, where the words or a node say so.
async fn supply(flags: &Flags, words: &args::Sizing) -> Result<Supply, Failure> {
    let Some(name) = &words.node else {
        return Ok(Supply {
            available: words.available_hugetlb,
            ..Supply::default()
        });
    };
    let connection = Connection::open(flags).await?;
    let inventories = Api::<MooncakeInventory>::all(connection.client.clone());
    let nodes = Api::<MooncakeNode>::all(connection.client.clone());
    let (hardware, node) = tokio::join!(
        connection.get(What::Inventories, &inventories, name),
        connection.get(What::Nodes, &nodes, name),
    );
    let hardware = match hardware {
        Ok(hardware) => hardware,
        Err(unseen) => {
            let place = connection.place.clone();
            return Err(Error::Object { place, unseen }.into());
        }
    };
    let status = current(&hardware);
    Ok(Supply {
        node: Some(name.clone()),
        available: status.and_then(|status| set_aside(&status, words.hugepage_size)),
        // Who may see the one may see the other; without it nothing is known to be taken.
        taken: node.map_or(0, |node| taken(&node, words.hugepage_size)),
    })
}

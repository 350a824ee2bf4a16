//! Takes the picture: every list at a time, each with its deadline; what cannot be read is noted and
//! hides nothing else.

use std::fmt::Debug;
use std::sync::Arc;

use crds::names;
use k8s_openapi::NamespaceResourceScope;
use kube::core::DeserializeGuard;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::cli::connection::Connection;
use crate::cli::picture::Picture;
use crate::cli::unseen::{Cause, Unseen, What};

/// Where every list of the whole cluster looks.
const EVERYWHERE: &str = "all namespaces";
const CLUSTER_WIDE: &str = "the whole cluster";

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// MooncakeClusters alone.
    Clusters,
    /// Everything.
    All,
}

/// Looks. `namespace` narrows clusters and their pods; `None` means everywhere.
pub async fn survey(connection: &Connection, namespace: Option<&str>, depth: Depth) -> Picture {
    let scope = namespace.map_or_else(|| EVERYWHERE.to_owned(), |ns| format!("namespace {ns}"));
    let mut unseen = Vec::new();
    let clusters = connection
        .list_ours(
            What::Clusters,
            &scope,
            &within(connection, namespace),
            &mut unseen,
        )
        .await;
    let mut picture = Picture {
        namespace: namespace.map(ToOwned::to_owned),
        clusters,
        unseen,
        ..Picture::default()
    };
    if depth == Depth::Clusters || picture.is_not_installed() {
        return picture;
    }
    let component = |parts: &[&str]| format!("{} in ({})", names::LABEL_COMPONENT, parts.join(","));
    let ours = component(&[names::COMPONENT_MASTER, names::COMPONENT_POOL]);
    let crew = component(&[names::COMPONENT_OPERATOR, names::COMPONENT_AGENT]);
    let operator = component(&[names::COMPONENT_OPERATOR]);
    let agent = component(&[names::COMPONENT_AGENT]);
    let pods = |what, namespace, scope, labels: String| {
        let api = within(connection, namespace);
        async move { connection.list(what, scope, &api, Some(&labels)).await }
    };
    let (mut not_understood, mut of_policies) = (Vec::new(), Vec::new());
    let policies =
        Api::<DeserializeGuard<crds::MooncakeNodePolicy>>::all(connection.client.clone());
    let all = Api::<DeserializeGuard<crds::MooncakeNode>>::all(connection.client.clone());
    let deployments = within(connection, None);
    let daemon_sets = within(connection, None);
    let webhooks = Api::all(connection.client.clone());
    let (nodes, policies, pool_pods, labelled, crew, operators, agents, webhooks) = tokio::join!(
        connection.list_ours(What::Nodes, CLUSTER_WIDE, &all, &mut not_understood),
        connection.list_ours(What::Policies, CLUSTER_WIDE, &policies, &mut of_policies),
        pods(What::PoolPods, namespace, &scope, ours),
        pods(
            What::LabelledPods,
            namespace,
            &scope,
            names::LABEL_INJECT.to_owned()
        ),
        pods(What::CrewPods, None, EVERYWHERE, crew),
        connection.list(What::Operators, EVERYWHERE, &deployments, Some(&operator)),
        connection.list(What::Agents, EVERYWHERE, &daemon_sets, Some(&agent)),
        connection.list(What::Webhooks, CLUSTER_WIDE, &webhooks, None),
    );
    let unseen = &mut picture.unseen;
    unseen.extend(not_understood);
    // A release before them has none, and nothing is unseen.
    of_policies.retain(|not| not.cause != Cause::NotInstalled);
    unseen.extend(of_policies);
    picture.nodes = nodes;
    picture.policies = policies;
    picture.pods = shared(seen(pool_pods, unseen));
    picture.labelled = shared(seen(labelled, unseen));
    picture.crew = shared(seen(crew, unseen));
    picture.operators = seen(operators, unseen);
    picture.agents = seen(agents, unseen);
    picture.webhooks = seen(webhooks, unseen);
    picture
}

fn seen<K>(listed: Result<Vec<K>, Unseen>, unseen: &mut Vec<Unseen>) -> Vec<K> {
    listed.unwrap_or_else(|not| {
        unseen.push(not);
        Vec::new()
    })
}

fn shared<K>(objects: Vec<K>) -> Vec<Arc<K>> {
    objects.into_iter().map(Arc::new).collect()
}

/// One namespace, or all.
pub fn within<K>(connection: &Connection, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let client = connection.client.clone();
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

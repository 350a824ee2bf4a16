//! Reads a snapshot: all lists at once, each with its own deadline. A list that fails does not hide the others.

use std::fmt::Debug;
use std::sync::Arc;

use crds::{ConditionType, MooncakeNodePolicy, Reason, names};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DynamicObject, ListParams};
use kube::discovery::ApiResource;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::connection::Connection;
use crate::masters;
use crate::read_error::{Cause, ReadError, Resources};
use crate::snapshot::Snapshot;

/// Scope of lists of cluster-scoped objects.
pub(crate) const CLUSTER_SCOPE: &str = "cluster scope";

/// Which objects to read.
#[derive(Clone, Copy, PartialEq)]
pub enum Objects {
    /// MooncakeClusters only.
    Clusters,
    All,
}

/// Reads a snapshot. `namespace` selects clusters and their pods; `None` means all namespaces.
pub async fn collect(
    connection: &Connection,
    namespace: Option<&str>,
    objects: Objects,
) -> Snapshot {
    let scope = scope(namespace);
    let clusters = api(connection, namespace);
    let (clusters, read_errors) = connection
        .list_ours(Resources::CLUSTERS, &scope, &clusters)
        .await;
    let mut snapshot = Snapshot {
        namespace: namespace.map(ToOwned::to_owned),
        clusters,
        read_errors,
        ..Snapshot::default()
    };
    if objects == Objects::Clusters || !snapshot.is_installed() {
        return snapshot;
    }
    let components = |names: &[&str]| {
        let label = names::LABEL_COMPONENT;
        format!("{label} in ({})", names.join(","))
    };
    let operator = components(&[names::COMPONENT_OPERATOR]);
    let agent = components(&[names::COMPONENT_AGENT]);
    let control_plane = components(&[names::COMPONENT_OPERATOR, names::COMPONENT_AGENT]);
    let stores = components(&[names::COMPONENT_MASTER, names::COMPONENT_POOL]);
    let client = || connection.client.clone();
    let (nodes, webhooks) = (Api::all(client()), Api::all(client()));
    let (nodes, policies, pods, labelled, control_plane, operators, agents, webhooks) = tokio::join!(
        connection.list_ours(Resources::MOONCAKE_NODES, CLUSTER_SCOPE, &nodes),
        list_policies(connection),
        list(connection, Resources::POOL_PODS, namespace, &stores),
        list(
            connection,
            Resources::LABELLED_PODS,
            namespace,
            names::LABEL_INJECT
        ),
        list(
            connection,
            Resources::CONTROL_PLANE_PODS,
            None,
            &control_plane
        ),
        list(connection, Resources::OPERATORS, None, &operator),
        list(connection, Resources::AGENTS, None, &agent),
        connection.list(
            Resources::WEBHOOKS,
            CLUSTER_SCOPE,
            &webhooks,
            ListParams::default(),
        ),
    );
    let errors = &mut snapshot.read_errors;
    errors.extend(nodes.1);
    // Releases before MooncakeNodePolicy do not serve the kind.
    let policy_errors = policies.1.into_iter();
    errors.extend(policy_errors.filter(|error| error.cause != Cause::NotInstalled));
    snapshot.nodes = nodes.0;
    snapshot.policies = policies.0;
    snapshot.pods = shared(or_error(pods, errors));
    snapshot.labelled = shared(or_error(labelled, errors));
    snapshot.control_plane = shared(or_error(control_plane, errors));
    snapshot.operators = or_error(operators, errors).unwrap_or_default();
    snapshot.agents = or_error(agents, errors).unwrap_or_default();
    snapshot.webhooks = or_error(webhooks, errors).unwrap_or_default();
    let built_in = masters::read(
        &connection.client,
        &snapshot.clusters,
        &snapshot.pods,
        connection.deadline(),
    );
    let (readings, errors) = built_in.await;
    snapshot.built_in = readings;
    snapshot.read_errors.extend(errors);
    snapshot
}

/// Lists policies. One whose rules cannot be decoded has no rules here: `doctor` reads its conditions.
async fn list_policies(connection: &Connection) -> (Vec<MooncakeNodePolicy>, Vec<ReadError>) {
    let resource = Resources::POLICIES;
    let kind = ApiResource::erase::<MooncakeNodePolicy>(&());
    let api = Api::<DynamicObject>::all_with(connection.client.clone(), &kind);
    let params = ListParams::default();
    let listed = match connection.list(resource, CLUSTER_SCOPE, &api, params).await {
        Ok(listed) => listed,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let (mut policies, mut errors) = (Vec::new(), Vec::new());
    for mut object in listed {
        let name = object.name_any();
        let error = match object.clone().try_parse::<MooncakeNodePolicy>() {
            Ok(policy) => {
                policies.push(policy);
                continue;
            }
            Err(error) => error.to_string(),
        };
        object.data["spec"] = json!({});
        let policy = object.try_parse::<MooncakeNodePolicy>().ok();
        // Otherwise only this program cannot decode it.
        let reported = policy.as_ref().is_some_and(is_reported_undecodable);
        if !reported {
            errors.push(ReadError::new(resource, name, Cause::DecodeFailed, error));
        }
        policies.extend(policy);
    }
    (policies, errors)
}

fn is_reported_undecodable(policy: &MooncakeNodePolicy) -> bool {
    let conditions = policy.status.iter().flat_map(|status| &status.conditions);
    conditions
        .filter(|condition| condition.type_ == ConditionType::Accepted.as_str())
        .any(|accepted| accepted.reason == Reason::InvalidSpec.as_str())
}

fn scope(namespace: Option<&str>) -> String {
    match namespace {
        Some(name) => format!("namespace {name}"),
        None => "all namespaces".to_owned(),
    }
}

/// Lists the objects with these labels.
async fn list<K>(
    connection: &Connection,
    resource: Resources,
    namespace: Option<&str>,
    labels: &str,
) -> Result<Vec<K>, ReadError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let params = ListParams::default().labels(labels);
    let api = api(connection, namespace);
    connection
        .list(resource, &scope(namespace), &api, params)
        .await
}

/// The value; an error is added to `errors`.
pub(crate) fn or_error<T>(result: Result<T, ReadError>, errors: &mut Vec<ReadError>) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

fn shared<K>(objects: Option<Vec<K>>) -> Vec<Arc<K>> {
    objects.into_iter().flatten().map(Arc::new).collect()
}

/// The API of one namespace, or of all.
pub(crate) fn api<K>(connection: &Connection, namespace: Option<&str>) -> Api<K>
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

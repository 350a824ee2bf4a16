//! Reads the facts: all lists at once, each request with its own deadline. What cannot be read does not hide the rest.

use std::sync::Arc;

use crds::{MooncakeNode, names};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use mooncake_operator::cache::compute_domains::objects as nvidia;
use serde_json::json;
use tokio::task::JoinSet;

use super::definitions;
use super::permissions::{Permission, needed};
use super::{Attempt, Dra, Facts, GroupVersions, Plan};
use crate::collect::{CLUSTER_SCOPE, or_error};
use crate::connection::Connection;
use crate::read_error::{Cause, ReadError, Resources};

/// API group of device claims.
const CLAIMS: &str = "resource.k8s.io";

/// Reads everything that the checks evaluate. Nothing is stored: reviews of permissions and one dry run are the only
/// requests that are not reads.
pub async fn collect(connection: &Connection, plan: &Plan) -> Facts {
    let client = || connection.client.clone();
    let (operators_of_all, webhooks, nodes) = (
        Api::<Deployment>::all(client()),
        Api::all(client()),
        Api::<Node>::all(client()),
    );
    let mooncake_nodes = Api::all(client());
    let operator = format!("{}={}", names::LABEL_COMPONENT, names::COMPONENT_OPERATOR);
    let (
        version,
        groups,
        definitions,
        denied,
        namespace,
        operators,
        webhooks,
        nodes,
        (mooncake_nodes, unread),
    ) = tokio::join!(
        connection.request(Resources::VERSION, "API server", async {
            connection.client.apiserver_version().await
        }),
        connection.request(Resources::API_GROUPS, "API server", async {
            connection.client.list_api_groups().await
        }),
        installed_definitions(connection),
        denied(connection, plan),
        namespace(connection, plan),
        connection.list(
            Resources::OPERATORS,
            "all namespaces",
            &operators_of_all,
            ListParams::default().labels(&operator),
        ),
        connection.list(
            Resources::WEBHOOKS,
            CLUSTER_SCOPE,
            &webhooks,
            ListParams::default()
        ),
        connection.list(
            Resources::NODES,
            CLUSTER_SCOPE,
            &nodes,
            ListParams::default()
        ),
        connection.list_ours::<MooncakeNode>(
            Resources::MOONCAKE_NODES,
            CLUSTER_SCOPE,
            &mooncake_nodes
        ),
    );
    let mut read_errors = Vec::new();
    let errors = &mut read_errors;
    let kubernetes = or_error(version, errors).map(release);
    let groups = or_error(groups, errors);
    let served = |group| groups.as_ref().map(|groups| versions(groups, group));
    // Before the installation the API server does not serve the kind.
    let unread = unread.into_iter();
    errors.extend(unread.filter(|error| error.cause != Cause::NotInstalled));
    let (namespace_labels, agent_pod) = or_error(namespace, errors).unwrap_or_default();
    Facts {
        kubernetes,
        groups: Dra {
            claims: served(CLAIMS),
            compute_domains: served(nvidia::GROUP),
        },
        definitions: or_error(definitions, errors),
        denied: or_error(denied, errors),
        namespace_labels,
        agent_pod,
        operators: or_error(operators, errors),
        webhooks: or_error(webhooks, errors),
        nodes: or_error(nodes, errors),
        mooncake_nodes,
        read_errors,
    }
}

/// The release of the API server, such as `v1.35.4`.
fn release(info: Info) -> String {
    match info.git_version.is_empty() {
        true => format!("v{}.{}", info.major, info.minor),
        false => info.git_version,
    }
}

/// The versions of a group that the API server serves.
fn versions(groups: &APIGroupList, name: &str) -> GroupVersions {
    let group = groups.groups.iter().find(|group| group.name == name);
    let versions = group.into_iter().flat_map(|group| &group.versions);
    versions.map(|version| version.version.clone()).collect()
}

async fn installed_definitions(
    connection: &Connection,
) -> Result<Vec<CustomResourceDefinition>, ReadError> {
    let api = Api::<CustomResourceDefinition>::all(connection.client.clone());
    let mut installed = Vec::new();
    for own in definitions::own() {
        match connection
            .get(Resources::DEFINITIONS, &api, &own.name_any())
            .await
        {
            Ok(found) => installed.push(found),
            Err(error) if error.cause == Cause::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(installed)
}

/// The permissions that the user lacks.
async fn denied(connection: &Connection, plan: &Plan) -> Result<Vec<Permission>, ReadError> {
    if is_allowed(connection, &Permission::every()).await? {
        return Ok(Vec::new());
    }
    let mut reviews = JoinSet::new();
    let connection = Arc::new(connection.clone());
    for permission in needed(plan) {
        let connection = Arc::clone(&connection);
        reviews.spawn(async move {
            let allowed = is_allowed(&connection, &permission).await;
            allowed.map(|allowed| (permission, allowed))
        });
    }
    let mut denied = Vec::new();
    while let Some(review) = reviews.join_next().await {
        let Ok(review) = review else { continue };
        let (permission, allowed) = review?;
        denied.extend((!allowed).then_some(permission));
    }
    denied.sort();
    Ok(denied)
}

async fn is_allowed(connection: &Connection, permission: &Permission) -> Result<bool, ReadError> {
    let text = |word: &str| Some(word.to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: text(permission.verb),
                group: text(permission.group),
                resource: text(permission.resource),
                namespace: permission.namespace.clone(),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api = Api::all(connection.client.clone());
    let params = PostParams::default();
    let review = connection
        .request(Resources::ACCESS_REVIEWS, &permission.to_string(), async {
            api.create(&params, &review).await
        })
        .await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

type Labels = std::collections::BTreeMap<String, String>;

/// The labels of the namespace, and the result of the dry run; nothing if it does not exist yet.
async fn namespace(
    connection: &Connection,
    plan: &Plan,
) -> Result<(Option<Labels>, Attempt), ReadError> {
    if plan.installed {
        return Ok((None, Attempt::Untried));
    }
    let api = Api::<Namespace>::all(connection.client.clone());
    let found = connection
        .get(Resources::NAMESPACES, &api, &plan.namespace)
        .await;
    match found {
        Ok(namespace) => {
            let attempt = try_agent_pod(connection, plan).await?;
            Ok((Some(namespace.labels().clone()), attempt))
        }
        Err(error) if error.cause == Cause::NotFound => Ok((None, Attempt::Untried)),
        Err(error) => Err(error),
    }
}

/// Has the API server admit a pod with the privileges of an agent, without creating it.
async fn try_agent_pod(connection: &Connection, plan: &Plan) -> Result<Attempt, ReadError> {
    let pod = json!({
        "metadata": {"name": "mooncake-preflight"},
        "spec": {
            "hostPID": true,
            "priorityClassName": plan.agent_priority_class,
            "containers": [{
                "name": "agent", "image": "mooncake-agent", "securityContext": {"privileged": true},
                "resources": {
                    "requests": {"cpu": "100m", "memory": "192Mi"}, "limits": {"memory": "704Mi"},
                },
            }],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    });
    let Ok(pod) = serde_json::from_value::<Pod>(pod) else {
        return Ok(Attempt::Untried);
    };
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api = Api::namespaced(connection.client.clone(), &plan.namespace);
    let scope = format!("namespace {}", plan.namespace);
    let attempt = connection.request(Resources::PODS, &scope, async {
        Ok(match api.create(&params, &pod).await {
            Ok(_) => Attempt::Admitted,
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                judge(&status.message)
            }
            Err(error) => return Err(error),
        })
    });
    attempt.await
}

/// What a rejection means: a user without the right to create pods, and a namespace whose ServiceAccount is not created yet,
/// are no statement about agents.
fn judge(message: &str) -> Attempt {
    let unrelated = [
        "cannot create resource",
        "service account",
        "serviceaccount",
    ];
    match unrelated.iter().any(|words| message.contains(words)) {
        true => Attempt::Untried,
        false => Attempt::Rejected(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rejection_of_the_privileges_counts() {
        let forbidden =
            "pods is forbidden: User \"a\" cannot create resource \"pods\" in API group \"\"";
        assert_eq!(judge(forbidden), Attempt::Untried);
        let early =
            "error looking up service account a/default: serviceaccount \"default\" not found";
        assert_eq!(judge(early), Attempt::Untried);
        let quota = "pods \"a\" is forbidden: insufficient quota to match these scopes";
        assert_eq!(judge(quota), Attempt::Rejected(quota.to_owned()));
    }
}

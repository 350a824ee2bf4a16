//! The operator's role of the chart suffices to give masters the rights of their election and of their tenants, and those reach no
//! other object.

use anyhow::ensure;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::Api;
use kube::api::PostParams;
use mooncake_operator::cluster::desired::access;
use mooncake_operator::cluster::validate::validate;
use serde_json::{Value, json};

use crate::harness::{TEAM, eventually, make_namespace, settings};
use crate::server::{Server, TENANT};

/// Gives the tenant the operator's role of the chart.
async fn play_operator(server: &Server) -> anyhow::Result<()> {
    let create = PostParams::default();
    let installed = include_str!("../../../charts/install.yaml");
    for document in serde_yaml_ng::Deserializer::from_str(installed) {
        let object: Value = serde::Deserialize::deserialize(document)?;
        let named = object["metadata"]["name"] == "mooncake-operator";
        let read = object["metadata"]["name"] == "mooncake-admitted";
        if object["kind"] == "ClusterRole" && (named || read) {
            let role: ClusterRole = serde_json::from_value(object)?;
            Api::all(server.client.clone())
                .create(&create, &role)
                .await?;
        }
    }
    let group = "rbac.authorization.k8s.io";
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "mooncake-operator"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": TENANT}],
    }))?;
    Api::all(server.client.clone())
        .create(&create, &binding)
        .await?;
    Ok(())
}

/// Checks that the operator gives the rights, and what the account of the masters may do with them.
pub(crate) async fn are_given_and_narrow(server: &Server) -> anyhow::Result<()> {
    make_namespace(&server.client, TEAM).await?;
    play_operator(server).await?;
    let cluster = serde_json::from_value(json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster",
        "metadata": {"name": "kv", "namespace": TEAM, "uid": "c1"},
        "spec": {"master": {
            "type": "BuiltIn", "replicas": 2, "tenants": [{"name": "a", "quota": "1Gi"}],
        }},
    }))?;
    let cluster = validate(&cluster)?;
    let operator = server.tenant()?;
    let create = PostParams::default();
    let roles = Api::<Role>::namespaced(operator.clone(), TEAM);
    let bindings = Api::<RoleBinding>::namespaced(operator, TEAM);
    for role in access::roles(&cluster) {
        eventually("the operator's rights to take effect", || async {
            let outcome = roles.create(&create, &role).await;
            Ok(match outcome {
                Err(kube::Error::Api(status)) if status.code == 409 => true,
                other => other.map(|_| true)?,
            })
        })
        .await?;
    }
    for binding in access::bindings(&cluster, &settings()) {
        bindings.create(&create, &binding).await?;
    }
    let (leases, slices, clusters) = (
        "coordination.k8s.io leases",
        "discovery.k8s.io endpointslices",
        "mooncake.io mooncakeclusters",
    );
    let tried = [
        (leases, "create", "", true),
        (leases, "get", "kv-master", true),
        (leases, "list", "kv-master", true),
        (leases, "watch", "kv-master", true),
        (leases, "update", "kv-master", true),
        (leases, "update", "another", false),
        (leases, "get", "another", false),
        (leases, "delete", "kv-master", false),
        (slices, "get", "kv-master-leader", true),
        (slices, "update", "kv-master-leader", true),
        (slices, "update", "kv-clients-x", false),
        (slices, "create", "", false),
        (clusters, "get", "kv", true),
        (clusters, "list", "kv", true),
        (clusters, "watch", "kv", true),
        (clusters, "patch", "kv", false),
        (clusters, "get", "another", false),
        (clusters, "list", "", false),
    ];
    eventually("the masters' rights", || async {
        for (kind, verb, name, may) in tried {
            let allowed = allowed(server, kind, verb, name).await?;
            ensure!(allowed == may, "{verb} {kind} {name:?}: {allowed}");
        }
        Ok(true)
    })
    .await
}

/// Whether the account of the masters may do this in its namespace.
async fn allowed(server: &Server, kind: &str, verb: &str, name: &str) -> anyhow::Result<bool> {
    let (group, resource) = kind.split_once(' ').unwrap_or_default();
    let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
        "user": format!("system:serviceaccount:{TEAM}:kv-master"),
        "resourceAttributes": {
            "namespace": TEAM, "group": group, "resource": resource, "verb": verb, "name": name,
        },
    }}))?;
    let reviews = Api::<SubjectAccessReview>::all(server.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

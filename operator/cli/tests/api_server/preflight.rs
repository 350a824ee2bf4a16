//! `preflight` against a real API server without Mooncake: an administrator, a tenant, a restricted namespace, and a policy
//! that denies privileged pods.

use anyhow::ensure;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{SYSTEM, TEAM, eventually, make_namespace};
use crate::installation::{make, run};
use crate::server::{Server, TENANT};

async fn enforce(server: &Server, level: Option<&str>) -> anyhow::Result<()> {
    let labels = json!({"pod-security.kubernetes.io/enforce": level});
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    let namespaces = Api::<Namespace>::all(server.client.clone());
    let merge = PatchParams::default();
    namespaces.patch(SYSTEM, &merge, &patch).await?;
    Ok(())
}

/// Denies privileged pods without a label on the namespace, as Gatekeeper and Kyverno do.
async fn deny_privileged(server: &Server) -> anyhow::Result<()> {
    let policy = json!({
        "metadata": {"name": "unprivileged"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"],
            }]},
            "validations": [{
                "expression": "object.spec.containers.all(c, !has(c.securityContext) || !has(c.securityContext.privileged))",
                "reason": "Forbidden", "message": "no privileged pods here",
            }],
        },
    });
    let binding = json!({
        "metadata": {"name": "unprivileged"},
        "spec": {"policyName": "unprivileged", "validationActions": ["Deny"]},
    });
    make(
        &Api::<ValidatingAdmissionPolicy>::all(server.client.clone()),
        policy,
    )
    .await?;
    make(
        &Api::<ValidatingAdmissionPolicyBinding>::all(server.client.clone()),
        binding,
    )
    .await
}

pub(crate) async fn before_the_installation(server: &Server) -> anyhow::Result<()> {
    let output = run(server, false, &["preflight"]).await?;
    output.expect(1, &["the cluster has no Linux node", "Kubernetes v1.35."])?;
    let nodes = Api::<Node>::all(server.client.clone());
    make(&nodes, json!({"metadata": {"name": "n1"}})).await?;
    let output = run(server, false, &["preflight"]).await?;
    output.expect(0, &["No obstacles found.", "1 node;"])?;

    make_namespace(&server.client, SYSTEM).await?;
    enforce(server, Some("restricted")).await?;
    let output = run(server, false, &["preflight"]).await?;
    let words = [
        "Error PodSecurity Namespace mooncake-system",
        "enforces the Pod Security level `restricted`",
        "kubectl label --overwrite namespace mooncake-system",
    ];
    output.expect(1, &words)?;
    enforce(server, None).await?;
    let output = run(server, false, &["preflight", "-o", "json"]).await?;
    let found: Value = output.json()?;
    ensure!(
        output.code == 0 && found["findings"] == json!([]),
        "{found}"
    );
    ensure!(
        found["kind"] == "Preflight" && found["release"] == "mooncake",
        "{found}"
    );

    deny_privileged(server).await?;
    eventually("the denial of the dry run", || async {
        let output = run(server, false, &["preflight"]).await?;
        output.expect(1, &["Error PodSecurity", "no privileged pods here"])?;
        Ok(true)
    })
    .await?;
    let pods = Api::<Pod>::namespaced(server.client.clone(), SYSTEM);
    let stored = pods.list(&ListParams::default()).await?.items;
    ensure!(stored.is_empty(), "the dry run was stored: {stored:?}");

    // A user without rights learns which are missing, and what could not be read.
    let output = run(server, true, &["preflight"]).await?;
    let words = [
        "Error Permissions",
        "create customresourcedefinitions.apiextensions.k8s.io",
        "patch daemonsets.apps in namespace mooncake-system",
        "nodes (cluster scope): Forbidden",
    ];
    output.expect(1, &words)?;
    of_a_manifest(server).await
}

/// A tenant needs rights on MooncakeClusters only, in the namespace of the context.
async fn of_a_manifest(server: &Server) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("kv.yaml");
    std::fs::write(
        &path,
        "{apiVersion: mooncake.io/v1alpha1, kind: MooncakeCluster, metadata: {name: kv}, spec: {}}",
    )?;
    let file = format!("--filename={}", path.display());
    let output = run(server, true, &["preflight", "--installed", &file]).await?;
    output.expect(
        1,
        &["may not create mooncakeclusters.mooncake.io in namespace team"],
    )?;
    ensure!(!output.text.contains("daemonsets"), "{}", output.text);
    make_namespace(&server.client, TEAM).await?;
    let role = json!({
        "metadata": {"name": "creator"},
        "rules": [{"apiGroups": ["mooncake.io"], "resources": ["mooncakeclusters"], "verbs": ["create"]}],
    });
    make(&Api::<Role>::namespaced(server.client.clone(), TEAM), role).await?;
    let binding = json!({
        "metadata": {"name": "creator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "creator"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
    });
    make(
        &Api::<RoleBinding>::namespaced(server.client.clone(), TEAM),
        binding,
    )
    .await?;
    eventually("the permission to take effect", || async {
        let output = run(server, true, &["preflight", "--installed", &file]).await?;
        // The tenant may not list nodes.
        output.expect(2, &["No obstacles found in what could be read."])?;
        Ok(true)
    })
    .await
}

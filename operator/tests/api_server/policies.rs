//! MooncakeNodePolicies on a real API server: validation, selection and conflicts, and access of tenants.

use anyhow::{Context, bail, ensure};
use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{Harness, TEAM, eventually, install_crds, make_namespace};
use crate::invalid_specs::InvalidSpec;
use crate::server::{Server, TENANT};

const WRONG: &[InvalidSpec] = &[
    ("{checkz: []}", ".spec.checkz: field not declared"),
    (
        "{checks: [{id: MapCount, action: Warn}, {id: MapCount, action: Ignore}]}",
        "duplicate entries",
    ),
    (
        "{checks: [{id: NoSuchCheck, action: Warn}]}",
        "Unsupported value",
    ),
    (
        "{checks: [{id: MapCount, action: Praise}]}",
        "Unsupported value",
    ),
    ("{checks: [{id: MapCount}]}", "action: Required value"),
    (
        "{fixes: [{id: RebootTheNode, mode: Apply}]}",
        "Unsupported value",
    ),
    ("{fixes: [{id: MaxMapCount}]}", "mode: Required value"),
    (
        "{fixes: [{id: MaxMapCount, mode: Apply, value: 7}]}",
        "value: field not declared",
    ),
    (
        "{fixes: [{id: Hugepages, mode: Apply}]}",
        "requires an amount",
    ),
    (
        "{fixes: [{id: Hugepages, mode: DryRun}], hugepages: []}",
        "requires an amount",
    ),
    (
        "{hugepages: [{pageSize: 4Ki, perNumaNode: 4Gi}]}",
        "pageSize must be 2Mi or 1Gi",
    ),
    (
        "{hugepages: [{pageSize: 1Gi, perNumaNode: 512Mi}]}",
        "must be a whole number of pages",
    ),
    (
        "{hugepages: [{pageSize: 2Mi, perNumaNode: 0}]}",
        "must be from one page to 16Ti",
    ),
    (
        "{hugepages: [{pageSize: 2Mi}]}",
        "perNumaNode: Required value",
    ),
    (
        "{hugepages: [{pageSize: 2Mi, perNumaNode: 2Mi}, {pageSize: 2Mi, perNumaNode: 4Mi}]}",
        "uplicate",
    ),
    ("{unhealthyDevices: {}}", "cordonWhen: Required value"),
    (
        "{unhealthyDevices: {cordonWhen: ItRains}}",
        "Unsupported value",
    ),
    (
        "{unhealthyDevices: {cordonWhen: AllUnhealthy, maxNodes: 0}}",
        "greater than or equal to 1",
    ),
    (
        "{unhealthyDevices: {cordonWhen: AllUnhealthy, repair: Burn}}",
        "Unsupported value",
    ),
    ("{priority: 1001}", "less than or equal to 1000"),
    ("{nodeSelector: {'': a}}", "as labels of nodes have"),
];

fn body(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": MooncakeNodePolicy::api_version(&()),
        "kind": MooncakeNodePolicy::kind(&()),
        "metadata": { "name": name },
        "spec": spec,
    })
}

pub(crate) async fn apply(client: Client, name: &str, spec: &str) -> anyhow::Result<()> {
    let kind = kube::api::ApiResource::erase::<MooncakeNodePolicy>(&());
    let api = Api::<DynamicObject>::all_with(client, &kind);
    let spec: Value = serde_yaml_ng::from_str(spec)?;
    let ours = PatchParams::apply("admin").validation_strict();
    api.patch(name, &ours, &Patch::Apply(body(name, &spec)))
        .await?;
    Ok(())
}

pub(crate) async fn invalid_specs_are_rejected(client: &Client) -> anyhow::Result<()> {
    install_crds(client).await?;
    for (spec, wanted) in WRONG {
        let refused = apply(client.clone(), "wrong", spec).await.err();
        let message = refused.map(|error| error.to_string()).unwrap_or_default();
        ensure!(
            message.contains(wanted),
            "{spec}: wanted `{wanted}`, got `{message}`"
        );
    }
    Ok(())
}

/// `Status Reason: message`, and the numbers of nodes to which the policy applies and that it selects.
async fn accepted(api: &Api<MooncakeNodePolicy>, name: &str) -> anyhow::Result<(String, u32, u32)> {
    let policy = api.get(name).await?;
    let status = policy.status.context("no status yet")?;
    ensure!(status.observed_generation == policy.metadata.generation);
    let [condition] = status.conditions.as_slice() else {
        bail!("{status:?}");
    };
    ensure!(condition.observed_generation == policy.metadata.generation);
    let text = format!(
        "{} {}: {}",
        condition.status, condition.reason, condition.message
    );
    Ok((text, status.holds, status.selected))
}

async fn applied_policy(harness: &Harness, node: &str) -> anyhow::Result<Option<String>> {
    let spec = harness.report(node).await?.spec;
    Ok(spec.policy.map(|policy| policy.name))
}

/// Waits until these policies apply to the nodes.
async fn apply_to(harness: &Harness, on: [(&str, Option<&str>); 2]) -> anyhow::Result<()> {
    eventually(&format!("policies {on:?}"), || async {
        for (node, name) in on {
            let found = applied_policy(harness, node).await?;
            ensure!(found.as_deref() == name, "{node}: {found:?}");
        }
        Ok(true)
    })
    .await
}

/// Policies are created, conflict, are ordered by priority, and are deleted.
pub(crate) async fn apply_and_conflict(harness: &Harness) -> anyhow::Result<()> {
    let client = harness.cluster_wide::<Node>().into_client();
    let api = harness.cluster_wide::<MooncakeNodePolicy>();
    let label = Patch::Merge(json!({"metadata": {"labels": {"gpu": "h100"}}}));
    let merge = PatchParams::default();
    let nodes = harness.cluster_wide::<Node>();
    nodes.patch("n1", &merge, &label).await?;

    let apply = async |name: &str, spec: &str| apply(client.clone(), name, spec).await;
    apply("everywhere", "{checks: [{id: TimeWait, action: Ignore}]}").await?;
    apply_to(
        harness,
        [("n1", Some("everywhere")), ("n2", Some("everywhere"))],
    )
    .await?;
    // Creation timestamps have a resolution of one second.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let gpu = |priority: u8| {
        format!(
            "{{nodeSelector: {{gpu: h100}}, priority: {priority}, \
             checks: [{{id: MapCount, action: Warn}}], fixes: [{{id: MaxMapCount, mode: DryRun}}]}}"
        )
    };
    apply("gpu", &gpu(0)).await?;
    eventually("both policies to report the conflict", || async {
        let (old, holds, selected) = accepted(&api, "everywhere").await?;
        ensure!((holds, selected) == (2, 2), "{old}");
        let (new, holds, selected) = accepted(&api, "gpu").await?;
        ensure!((holds, selected) == (0, 1), "{new}");
        ensure!(
            old.starts_with("False PolicyConflict: conflicts with gpu"),
            "{old}"
        );
        ensure!(
            new.starts_with("False PolicyConflict: conflicts with everywhere"),
            "{new}"
        );
        Ok(true)
    })
    .await?;
    apply_to(
        harness,
        [("n1", Some("everywhere")), ("n2", Some("everywhere"))],
    )
    .await?;

    apply("gpu", &gpu(5)).await?;
    apply_to(harness, [("n1", Some("gpu")), ("n2", Some("everywhere"))]).await?;
    eventually("both to be accepted", || async {
        let (old, holds, selected) = accepted(&api, "everywhere").await?;
        ensure!((holds, selected) == (1, 2), "{old}");
        let (new, holds, selected) = accepted(&api, "gpu").await?;
        ensure!((holds, selected) == (1, 1), "{new}");
        Ok([&old, &new]
            .iter()
            .all(|condition| condition.starts_with("True AsExpected")))
    })
    .await?;
    let report = harness.report("n1").await?;
    let found = serde_json::to_value(&report.spec.policy)?;
    let wanted = json!({
        "name": "gpu",
        "checks": [{"id": "MapCount", "action": "Warn"}],
        "fixes": [{"id": "MaxMapCount", "mode": "DryRun"}],
    });
    ensure!(found == wanted, "{found}");
    one_event_per_policy(harness).await?;

    // No more writes, also by a restarted operator.
    let before = harness.quiet().await?;
    for round in 0..2 {
        harness.touch_everything(round).await?;
        harness.reconciled_twice().await?;
    }
    harness.restart_operator().await?;
    let after = harness.quiet().await?;
    ensure!(
        after == before,
        "{} writes without a change",
        after - before
    );

    // A node no longer matches the selector, then both policies are deleted.
    let unlabel = Patch::Merge(json!({"metadata": {"labels": {"gpu": null}}}));
    nodes.patch("n1", &merge, &unlabel).await?;
    apply_to(
        harness,
        [("n1", Some("everywhere")), ("n2", Some("everywhere"))],
    )
    .await?;
    for policy in ["everywhere", "gpu"] {
        api.delete(policy, &DeleteParams::default()).await?;
    }
    apply_to(harness, [("n1", None), ("n2", None)]).await
}

/// Waits until the conflict is one Event on each of the two policies.
async fn one_event_per_policy(harness: &Harness) -> anyhow::Result<()> {
    eventually("the events", || async {
        for name in ["everywhere", "gpu"] {
            let conflicts = harness.events(name, Reason::PolicyConflict, "").await?;
            ensure!(conflicts.len() == 1, "{name}: {conflicts:?}");
        }
        Ok(true)
    })
    .await
}

/// Binds the chart's roles for tenants and the role `admin` in a namespace; none may access policies.
pub(crate) async fn are_forbidden_to_tenants(server: &Server) -> anyhow::Result<()> {
    let client = &server.client;
    make_namespace(client, TEAM).await?;
    let roles = Api::<ClusterRole>::all(client.clone());
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), TEAM);
    let mut bound = vec!["admin".to_owned()];
    let installed = include_str!("../../../charts/install.yaml");
    for document in serde_yaml_ng::Deserializer::from_str(installed) {
        let object: Value = serde::Deserialize::deserialize(document)?;
        let aggregated = "rbac.authorization.k8s.io/aggregate-to-admin";
        let labels = &object["metadata"]["labels"];
        if object["kind"] != "ClusterRole" || labels[aggregated] != "true" {
            continue;
        }
        let role: ClusterRole = serde_json::from_value(object)?;
        bound.push(role.name_any());
        roles.create(&PostParams::default(), &role).await?;
    }
    ensure!(bound.len() == 3, "{bound:?}");
    for role in bound {
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
        });
        let binding = serde_json::from_value(binding)?;
        bindings.create(&PostParams::default(), &binding).await?;
    }
    let tenant = server.tenant()?;
    let clusters = Api::<MooncakeCluster>::namespaced(tenant.clone(), TEAM);
    let cluster = json!({
        "apiVersion": MooncakeCluster::api_version(&()),
        "kind": MooncakeCluster::kind(&()),
        "metadata": { "name": "kv" },
        "spec": {},
    });
    eventually("the tenant's permissions to take effect", || async {
        let ours = PatchParams::apply("tenant");
        clusters.patch("kv", &ours, &Patch::Apply(&cluster)).await?;
        Ok(true)
    })
    .await?;
    apply(client.clone(), "ours", "{}").await?;
    let policies = Api::<MooncakeNodePolicy>::all(tenant.clone());
    let theirs = serde_json::from_value(body("theirs", &json!({})))?;
    let empty = Patch::Merge(json!({"spec": {"priority": 1}}));
    let merge = PatchParams::default();
    let tried = [
        policies.create(&PostParams::default(), &theirs).await.err(),
        policies.patch("ours", &merge, &empty).await.err(),
        policies.patch_status("ours", &merge, &empty).await.err(),
        policies
            .delete("ours", &DeleteParams::default())
            .await
            .err(),
        policies.get("ours").await.err(),
        policies.list(&ListParams::default()).await.err(),
        Api::<MooncakeNode>::all(tenant)
            .list(&ListParams::default())
            .await
            .err(),
    ];
    for (index, refused) in tried.iter().enumerate() {
        let forbidden = matches!(refused, Some(kube::Error::Api(status)) if status.code == 403);
        ensure!(forbidden, "attempt {index}: {refused:?}");
    }
    Ok(())
}

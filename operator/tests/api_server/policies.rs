//! MooncakeNodePolicies on a real API server: what that refuses, what becomes of them, and who may not
//! touch them.

use anyhow::{Context, bail, ensure};
use crds::{MooncakeCluster, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::server::{Server, TENANT};
use crate::world::{TEAM, World, eventually, install_crds, make_namespace};
use crate::wrong_specs::Wrong;

const WRONG: &[Wrong] = &[
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
    ("{fixes: [{id: Hugepages, mode: Apply}]}", "has no amount"),
    (
        "{fixes: [{id: Hugepages, mode: DryRun}], hugepages: []}",
        "has no amount",
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
    ("{sickDevices: {}}", "cordonWhen: Required value"),
    ("{sickDevices: {cordonWhen: ItRains}}", "Unsupported value"),
    (
        "{sickDevices: {cordonWhen: AllAreSick, maxNodes: 0}}",
        "greater than or equal to 1",
    ),
    (
        "{sickDevices: {cordonWhen: AllAreSick, repair: Burn}}",
        "Unsupported value",
    ),
    ("{priority: 1001}", "less than or equal to 1000"),
    ("{nodeSelector: {'': a}}", "no node can carry others"),
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

pub(crate) async fn wrong_ones_are_refused(client: &Client) -> anyhow::Result<()> {
    install_crds(client).await?;
    for (spec, words) in WRONG {
        let refused = apply(client.clone(), "wrong", spec).await.err();
        let said = refused.map(|error| error.to_string()).unwrap_or_default();
        ensure!(
            said.contains(words),
            "{spec}: wanted `{words}`, got `{said}`"
        );
    }
    Ok(())
}

/// `Status Reason: message`, and on how many of how many nodes it holds.
async fn accepted(api: &Api<MooncakeNodePolicy>, name: &str) -> anyhow::Result<(String, u32, u32)> {
    let policy = api.get(name).await?;
    let status = policy.status.context("no status yet")?;
    ensure!(status.observed_generation == policy.metadata.generation);
    let [said] = status.conditions.as_slice() else {
        bail!("{status:?}");
    };
    ensure!(said.observed_generation == policy.metadata.generation);
    let words = format!("{} {}: {}", said.status, said.reason, said.message);
    Ok((words, status.holds, status.selected))
}

async fn holding(world: &World, node: &str) -> anyhow::Result<Option<String>> {
    let spec = world.report(node).await?.spec;
    Ok(spec.policy.map(|policy| policy.name))
}

async fn holds(world: &World, on: [(&str, Option<&str>); 2]) -> anyhow::Result<()> {
    eventually(&format!("policies {on:?}"), || async {
        for (node, name) in on {
            let found = holding(world, node).await?;
            ensure!(found.as_deref() == name, "{node}: {found:?}");
        }
        Ok(true)
    })
    .await
}

/// Policies come, conflict, give way, and go.
pub(crate) async fn hold_and_conflict(world: &World) -> anyhow::Result<()> {
    let client = world.cluster_wide::<Node>().into_client();
    let api = world.cluster_wide::<MooncakeNodePolicy>();
    let label = Patch::Merge(json!({"metadata": {"labels": {"gpu": "h100"}}}));
    let merge = PatchParams::default();
    let nodes = world.cluster_wide::<Node>();
    nodes.patch("n1", &merge, &label).await?;

    let apply = async |name: &str, spec: &str| apply(client.clone(), name, spec).await;
    apply("everywhere", "{checks: [{id: TimeWait, action: Ignore}]}").await?;
    holds(
        world,
        [("n1", Some("everywhere")), ("n2", Some("everywhere"))],
    )
    .await?;
    // Times of creation are told to the second.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let gpu = |priority: u8| {
        format!(
            "{{nodeSelector: {{gpu: h100}}, priority: {priority}, \
             checks: [{{id: MapCount, action: Warn}}], fixes: [{{id: MaxMapCount, mode: DryRun}}]}}"
        )
    };
    apply("gpu", &gpu(0)).await?;
    eventually("the conflict to be told by both", || async {
        let (old, holds, selected) = accepted(&api, "everywhere").await?;
        ensure!((holds, selected) == (2, 2), "{old}");
        let (new, holds, selected) = accepted(&api, "gpu").await?;
        ensure!((holds, selected) == (0, 1), "{new}");
        ensure!(old.starts_with("False PolicyConflict: gpu asks"), "{old}");
        ensure!(
            new.starts_with("False PolicyConflict: everywhere asks"),
            "{new}"
        );
        Ok(true)
    })
    .await?;
    holds(
        world,
        [("n1", Some("everywhere")), ("n2", Some("everywhere"))],
    )
    .await?;

    apply("gpu", &gpu(5)).await?;
    holds(world, [("n1", Some("gpu")), ("n2", Some("everywhere"))]).await?;
    eventually("both to be accepted", || async {
        let (old, holds, selected) = accepted(&api, "everywhere").await?;
        ensure!((holds, selected) == (1, 2), "{old}");
        let (new, holds, selected) = accepted(&api, "gpu").await?;
        ensure!((holds, selected) == (1, 1), "{new}");
        Ok([&old, &new]
            .iter()
            .all(|said| said.starts_with("True AsExpected")))
    })
    .await?;
    let report = world.report("n1").await?;
    let told = serde_json::to_value(&report.spec.policy)?;
    let wanted = json!({
        "name": "gpu",
        "checks": [{"id": "MapCount", "action": "Warn"}],
        "fixes": [{"id": "MaxMapCount", "mode": "DryRun"}],
    });
    ensure!(told == wanted, "{told}");
    told_once(world).await?;

    // Nothing more is written, also by an operator that begins anew.
    let before = world.quiet().await?;
    for round in 0..2 {
        world.touch_everything(round).await?;
        world.looked_again().await?;
    }
    world.restart_operator().await?;
    let after = world.quiet().await?;
    ensure!(after == before, "{} writes at rest", after - before);

    // A node leaves its selector, then both policies go.
    let unlabel = Patch::Merge(json!({"metadata": {"labels": {"gpu": null}}}));
    nodes.patch("n1", &merge, &unlabel).await?;
    holds(
        world,
        [("n1", Some("everywhere")), ("n2", Some("everywhere"))],
    )
    .await?;
    for policy in ["everywhere", "gpu"] {
        api.delete(policy, &DeleteParams::default()).await?;
    }
    holds(world, [("n1", None), ("n2", None)]).await
}

/// A conflict is one Event for each of the two, and its end is one.
async fn told_once(world: &World) -> anyhow::Result<()> {
    eventually("the events", || async {
        for name in ["everywhere", "gpu"] {
            let conflicts = world.told(name, Reason::PolicyConflict, "").await?;
            ensure!(conflicts.len() == 1, "{name}: {conflicts:?}");
        }
        Ok(true)
    })
    .await
}

/// The chart's roles for tenants, and the administrator's of a namespace, both bound there.
pub(crate) async fn are_beyond_tenants(server: &Server) -> anyhow::Result<()> {
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
    eventually("the tenant's rights to count", || async {
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

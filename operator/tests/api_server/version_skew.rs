//! Objects of release 0.1.0 and of this release on a real API server, with the CRDs of either.

use anyhow::{Context, ensure};
use crds::node::MooncakeNodeStatus;
use crds::{CheckId, MooncakeCluster, MooncakeNode, Reason};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{eventually, install_crd, install_crds};
use crate::server::Server;

/// As in crds/tests/v0_1_0.rs: written by the code of release 0.1.0.
const NODE: &str = include_str!("../../../crds/tests/recordings/v0.1.0/mooncakenode.yaml");
const EVERY_REASON: &str =
    include_str!("../../../crds/tests/recordings/v0.1.0/mooncakenode-every-reason.yaml");
const CRDS: [&str; 3] = [
    include_str!("../../../crds/tests/recordings/v0.1.0/crds/mooncakeclusters.yaml"),
    include_str!("../../../crds/tests/recordings/v0.1.0/crds/mooncakenodes.yaml"),
    include_str!("../../../crds/tests/recordings/v0.1.0/crds/mooncakenodepolicies.yaml"),
];

async fn install_crds_of_0_1_0(client: &Client) -> anyhow::Result<()> {
    for crd in CRDS {
        let crd: CustomResourceDefinition = serde_yaml_ng::from_str(crd)?;
        install_crd(client, crd).await?;
    }
    Ok(())
}

fn recorded(text: &str) -> anyhow::Result<MooncakeNode> {
    let mut node: MooncakeNode = serde_yaml_ng::from_str(text)?;
    node.metadata.uid = None;
    // The CRDs bound the list; the recording has each check.
    let status = node.status.as_mut().context("the recording has a status")?;
    status.findings.truncate(crds::check::FINDINGS_LIMIT);
    Ok(node)
}

/// Writes the status as the agent does.
async fn apply(api: &Api<MooncakeNode>, status: Value) -> kube::Result<MooncakeNode> {
    let patch = json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeNode",
        "metadata": {"name": "node1"}, "status": status,
    });
    let ours = PatchParams::apply("mooncake-agent").force();
    api.patch_status("node1", &ours, &Patch::Apply(patch)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn crds_of_release_0_1_0_store_every_spec_and_status_of_this_release() -> anyhow::Result<()> {
    let server = Server::start().await?;
    install_crds_of_0_1_0(&server.client).await?;
    let api: Api<MooncakeNode> = Api::all(server.client.clone());
    let node = recorded(NODE)?;
    let spec = json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeNode",
        "metadata": {"name": "node1"}, "spec": node.spec,
    });
    let operator = PatchParams::apply("mooncake-operator").force();
    let applied = api.patch("node1", &operator, &Patch::Apply(spec)).await?;
    ensure!(applied.spec == node.spec, "{:?}", applied.spec);

    let status = node.status.context("the recording has a status")?;
    let first = apply(&api, serde_json::to_value(&status)?).await?;
    ensure!(first.status.as_ref() == Some(&status), "{:?}", first.status);
    let second = apply(&api, serde_json::to_value(&status)?).await?;
    ensure!(
        first.resource_version() == second.resource_version(),
        "the same status was written again"
    );
    // Every Reason and every check, a few at a time.
    let finding = status.findings.first().context("a finding")?;
    let names = Reason::ALL.iter().zip(CheckId::ALL.iter().cycle());
    let findings: Vec<_> = names
        .map(|(reason, check)| {
            let mut finding = finding.clone();
            (finding.reason, finding.check) = ((*reason).into(), (*check).into());
            finding
        })
        .collect();
    for some in findings.chunks(crds::check::FINDINGS_LIMIT) {
        let written = json!({"findings": some});
        let applied = apply(&api, written.clone()).await?;
        let stored = applied.status.unwrap_or_default();
        // A new word is written as the nearest one of release 0.1.0.
        let written: MooncakeNodeStatus = serde_json::from_value(written)?;
        ensure!(stored.findings == written.findings, "{stored:?}");
    }
    // What the agent relies on to write nothing twice (node-agent/src/publish/declared_fields.rs).
    let status = json!({"capacity": "1Gi", "ofTheNextRelease": 1});
    let error = apply(&api, status).await.err().context("is accepted")?;
    ensure!(
        error
            .to_string()
            .contains(".status.ofTheNextRelease: field not declared in schema"),
        "{error}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn objects_outlive_an_upgrade_and_a_rollback_of_the_crds() -> anyhow::Result<()> {
    let server = Server::start().await?;
    install_crds_of_0_1_0(&server.client).await?;
    let api: Api<MooncakeNode> = Api::all(server.client.clone());
    let old = recorded(EVERY_REASON)?;
    api.create(&PostParams::default(), &old).await?;
    let old = old.status.context("the recording has a status")?;
    apply(&api, serde_json::to_value(&old)?).await?;

    install_crds(&server.client).await?;
    ensure!(api.get("node1").await?.status.as_ref() == Some(&old));
    // The words of a later release are stored once the API server uses the new CRD.
    let later = json!({"findings": [{
        "check": "OfTheNextRelease", "verdict": "Worse", "reason": "OfTheNextRelease", "subject": "node",
        "message": "", "since": "2026-01-01T00:00:00Z",
    }]});
    eventually("the word of a later release to be stored", || async {
        Ok(apply(&api, later.clone()).await.is_ok())
    })
    .await?;
    let read = api.get("node1").await?.status.unwrap_or_default();
    ensure!(read.findings[0].reason.as_str() == "OfTheNextRelease");

    let clusters: Api<DynamicObject> = Api::namespaced_with(
        server.client.clone(),
        "default",
        &ApiResource::erase::<MooncakeCluster>(&()),
    );
    let placed = json!({"labels": {"team": "a"}});
    let cluster = json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster", "metadata": {"name": "kv"},
        "spec": {
            "paused": true, "imagePullSecrets": [{"name": "registry"}],
            "pools": [{"name": "default", "podTemplate": placed}], "master": {"podTemplate": placed},
        },
    });
    let cluster = serde_json::from_value(cluster)?;
    clusters.create(&PostParams::default(), &cluster).await?;

    // After a rollback the stored object is still read, and the next status of an agent replaces it.
    install_crds_of_0_1_0(&server.client).await?;
    let resource = ApiResource::erase::<MooncakeNode>(&());
    let untyped: Api<DynamicObject> = Api::all_with(server.client.clone(), &resource);
    ensure!(untyped.get("node1").await?.data["status"]["findings"].is_array());
    // Release 0.1.0 reads no object with a field that it does not know.
    eventually("the CRD of 0.1.0 to remove later fields", || async {
        let spec = &clusters.get("kv").await?.data["spec"];
        let later = [&spec["paused"], &spec["imagePullSecrets"]];
        let templates = [&spec["pools"][0], &spec["master"]].map(|of| &of["podTemplate"]);
        Ok(later.into_iter().chain(templates).all(Value::is_null))
    })
    .await?;
    eventually("a status to replace the unknown words", || async {
        Ok(apply(&api, serde_json::to_value(&old)?).await.is_ok())
    })
    .await?;
    ensure!(api.get("node1").await?.status.as_ref() == Some(&old));
    Ok(())
}

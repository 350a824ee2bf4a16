//! What no retry repairs: a spec that the operator cannot decode, objects that the API server refuses or forbids. Each becomes
//! a condition and an Event with the API server's words, and ends with the next change of the spec.

use anyhow::ensure;
use crds::{MooncakeCluster, Reason};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use crate::harness::{Harness, TEAM, eventually, install_crd, with_word};
use crate::server::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn a_cluster_that_cannot_be_decoded_says_so_once_and_recovers() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let later = with_word::<MooncakeCluster>(&["pools", "numaPolicy"], "Interleave")?;
    install_crd(&server.client, later).await?;
    let kind = ApiResource::erase::<MooncakeCluster>(&());
    let api = Api::<DynamicObject>::namespaced_with(server.client.clone(), TEAM, &kind);
    let numa_policy = async |policy: &str| {
        let spec = json!({"pools": [{"name": "default", "size": "64Mi", "numaPolicy": policy}]});
        let patch = Patch::Merge(json!({ "spec": spec }));
        let changed = api.patch("kv", &PatchParams::default(), &patch).await;
        anyhow::Ok(changed.is_ok())
    };
    eventually("the CRD of the next release", || numa_policy("Interleave")).await?;
    let status = async || anyhow::Ok(api.get("kv").await?.data["status"].clone());
    let condition = async |kind: &str| {
        let status = status().await?;
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|condition| condition["type"] == kind);
        anyhow::Ok(found.cloned().unwrap_or(Value::Null))
    };
    eventually("the condition Stalled", || async {
        Ok(condition("Stalled").await?["reason"] == "InvalidSpec")
    })
    .await?;
    let ready = condition("Ready").await?;
    ensure!(ready["status"] == "False", "{ready}");
    let message = ready["message"].as_str().unwrap_or_default();
    let wanted = "cannot read spec.pools[0].numaPolicy: unknown variant `Interleave`";
    ensure!(message.starts_with(wanted), "{message}");
    ensure!(status().await?["nodes"] == "2/2", "{}", status().await?);
    let serves = condition("PoolsReady").await?;
    ensure!(serves["status"] == "True", "{serves}");
    let events = harness.events("kv", Reason::InvalidSpec, "Ready:").await?;
    ensure!(events.len() == 1, "{events:?}");
    // Nothing more is written, also by a new operator.
    let before = harness.quiet().await?;
    harness.restart_operator().await?;
    ensure!(harness.quiet().await? == before);

    ensure!(numa_policy("Spread").await?);
    harness.ready().await?;
    ensure!(condition("Stalled").await?.is_null());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn what_the_api_server_rejects_is_a_condition_with_its_words() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let resources = |requests: &str, limits: &str| json!({"master": {"resources": {"requests": {"cpu": requests}, "limits": {"cpu": limits}}}});
    harness.change_spec(resources("2", "1")).await?;
    let wanted = "must be less than or equal to cpu limit";
    stalls(&harness, Reason::InvalidSpec, wanted).await?;
    // A change of the spec is tried at once, whatever the pause has grown to.
    harness.change_spec(resources("1", "2")).await?;
    harness.ready().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn what_the_api_server_forbids_is_a_condition_with_its_words() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let policy = json!({
        "metadata": {"name": "frozen"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
                "operations": ["CREATE", "UPDATE"],
            }]},
            "validations": [{
                "expression": "false", "reason": "Forbidden", "message": "no change before the launch",
            }],
        },
    });
    let binding = json!({
        "metadata": {"name": "frozen"},
        "spec": {"policyName": "frozen", "validationActions": ["Deny"]},
    });
    let policies = harness.cluster_wide::<ValidatingAdmissionPolicy>();
    let bindings = harness.cluster_wide::<ValidatingAdmissionPolicyBinding>();
    let first = PostParams::default();
    policies
        .create(&first, &serde_json::from_value(policy)?)
        .await?;
    bindings
        .create(&first, &serde_json::from_value(binding)?)
        .await?;
    let frozen = async || {
        let patch = Patch::Merge(json!({"spec": {"minReadySeconds": 1}}));
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let tried = harness.api::<Deployment>();
        anyhow::Ok(tried.patch("kv-master", &dry, &patch).await.is_err())
    };
    eventually("the policy", &frozen).await?;

    let memory = |amount: &str| json!({"master": {"resources": {"requests": {"memory": amount}}}});
    let sets = harness.api::<DaemonSet>();
    let generation = async || {
        let set = sets.get("kv-pool-default").await?;
        anyhow::Ok(set.metadata.generation)
    };
    let before = generation().await?;
    let mut spec = memory("300Mi");
    let affinity = json!({"nodeAffinity": {}, "podAffinity": {}});
    spec["pools"] =
        json!([{"name": "default", "size": "64Mi", "podTemplate": {"affinity": affinity}}]);
    harness.change_spec(spec).await?;
    let wanted = "no change before the launch";
    stalls(&harness, Reason::ApiForbidden, wanted).await?;
    // What does not depend on it is carried out, and the rest of the status stays current.
    ensure!(
        generation().await? > before,
        "the DaemonSet was not applied"
    );
    harness.play_daemon_sets().await?;
    eventually("PoolsReady", || async {
        Ok(harness.condition("PoolsReady").await?.starts_with("True "))
    })
    .await?;
    let ready = harness.condition("Ready").await?;
    ensure!(ready.starts_with("False ApiForbidden"), "{ready}");

    bindings.delete("frozen", &DeleteParams::default()).await?;
    eventually("the end of the policy", || async { Ok(!frozen().await?) }).await?;
    harness.change_spec(memory("301Mi")).await?;
    harness.ready().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds etcd and kube-apiserver where the cache lacks them"]
async fn an_object_of_another_owner_is_not_taken_over() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let harness = Harness::new(&server.client).await?;
    harness.ready().await?;
    let sets = harness.api::<DaemonSet>();
    let labels = json!({"app": "other"});
    let foreign = json!({
        "metadata": {"name": "kv-pool-second"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "other", "image": "other"}]},
            },
        },
    });
    let foreign = serde_json::from_value(foreign)?;
    let foreign = sets.create(&PostParams::default(), &foreign).await?;

    let pool = |name: &str| json!({"name": name, "size": "64Mi"});
    let pools = json!({"pools": [pool("default"), pool("second")]});
    harness.change_spec(pools).await?;
    let wanted = "DaemonSet team/kv-pool-second exists and belongs to no owner";
    stalls(&harness, Reason::InvalidSpec, wanted).await?;
    let version = |set: &DaemonSet| set.metadata.resource_version.clone();
    ensure!(version(&sets.get("kv-pool-second").await?) == version(&foreign));

    sets.delete("kv-pool-second", &DeleteParams::default())
        .await?;
    harness
        .change_spec(json!({"pools": [pool("default"), pool("third")]}))
        .await?;
    eventually("the DaemonSet of another name", || async {
        Ok(sets.get_opt("kv-pool-third").await?.is_some())
    })
    .await
}

/// Waits until the cluster is stalled for `reason`, and checks message and Event.
async fn stalls(harness: &Harness, reason: Reason, words: &str) -> anyhow::Result<()> {
    let wanted = format!("True {reason}: ");
    eventually("the condition Stalled", || async {
        Ok(harness.condition("Stalled").await?.starts_with(&wanted))
    })
    .await?;
    let ready = harness.condition("Ready").await?;
    ensure!(ready.starts_with(&format!("False {reason}: ")), "{ready}");
    ensure!(
        ready.contains(words) && !ready.contains("Status {"),
        "{ready}"
    );
    let events = harness.events("kv", reason, "Ready:").await?;
    ensure!(events.len() == 1, "{events:?}");
    Ok(())
}

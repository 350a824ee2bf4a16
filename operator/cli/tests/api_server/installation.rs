//! Output and exit status of the binary for each state of an installation, for an administrator and a tenant.

use std::io::Read;
use std::process::Command;

use anyhow::{Context, ensure};
use crds::{MooncakeInventory, MooncakeNodePolicy};
use flate2::read::GzDecoder;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use kube::{Api, Client, CustomResourceExt, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::{Harness, SYSTEM, TEAM, eventually, install_crd, with_word};
use crate::server::{Server, TENANT};

/// Exit status, and standard output with standard error.
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl Output {
    pub(crate) fn expect(&self, code: i32, words: &[&str]) -> anyhow::Result<()> {
        ensure!(
            self.code == code,
            "exit status {}: {}",
            self.code,
            self.text
        );
        for word in words {
            ensure!(self.text.contains(word), "no `{word}`: {}", self.text);
        }
        Ok(())
    }

    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.text).with_context(|| self.text.clone())
    }
}

pub(crate) async fn run(server: &Server, tenant: bool, words: &[&str]) -> anyhow::Result<Output> {
    let config = server.kubeconfig(tenant)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"));
    command.args(words).arg("--kubeconfig").arg(config);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = [output.stdout, output.stderr].concat();
    Ok(Output {
        code: output.status.code().context("ended by a signal")?,
        text: String::from_utf8(text)?,
    })
}

pub(crate) async fn make<K>(api: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// An API server without the CRDs.
pub(crate) async fn absent(server: &Server) -> anyhow::Result<()> {
    let output = run(server, false, &["doctor", "-A"]).await?;
    output.expect(
        2,
        &["NotInstalled", "Mooncake is not installed on this cluster."],
    )
}

/// Creates what the chart installs: the objects of operator, agents and webhook.
pub(crate) async fn complete(client: &Client) -> anyhow::Result<()> {
    install_crd(client, MooncakeInventory::crd()).await?;
    let template = |component: &str| {
        json!({
            "metadata": {"labels": {"mooncake.io/component": component}},
            "spec": {"containers": [{"name": component, "image": component}]},
        })
    };
    let selector = |component: &str| json!({"matchLabels": {"mooncake.io/component": component}});
    let labels = |component: &str| {
        json!({
            "mooncake.io/component": component,
            "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
        })
    };
    let deployments = Api::<Deployment>::namespaced(client.clone(), SYSTEM);
    let operator = json!({
        "metadata": {"name": "mooncake-operator", "labels": labels("operator")},
        "spec": {"replicas": 1, "selector": selector("operator"), "template": template("operator")},
    });
    make(&deployments, operator).await?;
    let ready = json!({"status": {"replicas": 1, "readyReplicas": 1}});
    let merge = PatchParams::default();
    deployments
        .patch_status("mooncake-operator", &merge, &Patch::Merge(ready))
        .await?;
    let sets = Api::<DaemonSet>::namespaced(client.clone(), SYSTEM);
    let agent = json!({
        "metadata": {"name": "mooncake-agent", "labels": labels("agent")},
        "spec": {"selector": selector("agent"), "template": template("agent")},
    });
    make(&sets, agent).await?;
    let ready = json!({"status": {
        "desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberReady": 2,
        "numberMisscheduled": 0,
    }});
    sets.patch_status("mooncake-agent", &merge, &Patch::Merge(ready))
        .await?;
    let webhooks = Api::<MutatingWebhookConfiguration>::all(client.clone());
    // Without rules the API server does not call it: no server listens there.
    let webhook = json!({
        "metadata": {"name": "mooncake-injection"},
        "webhooks": [{
            "name": "inject.mooncake.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://127.0.0.1:1/inject", "caBundle": "Q0E="},
        }],
    });
    make(&webhooks, webhook).await?;
    // A tenant, who cannot read nodes, depends on this condition.
    let pods = Api::<Pod>::namespaced(client.clone(), TEAM);
    for node in ["n1", "n2"] {
        let name = format!("kv-pool-default-{node}");
        let ready = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        }});
        pods.patch_status(&name, &merge, &Patch::Merge(ready))
            .await?;
    }
    Ok(())
}

/// No problems, and every other command succeeds.
pub(crate) async fn healthy(server: &Server) -> anyhow::Result<()> {
    let output = run(server, false, &["doctor", "-A"]).await?;
    output.expect(0, &["No problems found.", "1 MooncakeCluster,"])?;
    ensure!(output.text.lines().count() == 1, "{}", output.text);
    let found = run(server, false, &["doctor", "-o", "json"])
        .await?
        .json()?;
    ensure!(found["kind"] == "Doctor" && found["findings"] == json!([]));
    ensure!(found["apiVersion"] == "cli.mooncake.io/v2", "{found}");

    let output = run(server, false, &["status"]).await?;
    output.expect(
        0,
        &["kv", "True", "2/2", "128Mi", "kv-master.team.svc:50051"],
    )?;
    let output = run(server, false, &["status", "-n", SYSTEM]).await?;
    output.expect(0, &["Use -A for all namespaces"])?;

    // It has no MooncakeInventory.
    let output = run(server, false, &["node", "n1"]).await?;
    output.expect(2, &["kv-pool-default-n1", "Serving", "mooncakeinventories"])?;
    let output = run(server, false, &["node", "n9"]).await?;
    output.expect(2, &["n9", "not found", "127.0.0.1", "context admin"])?;

    // No kubelet runs that could forward the master's port.
    let output = run(server, false, &["keys", "kv"]).await?;
    let words = [
        "keys of MooncakeCluster team/kv",
        "master pod kv-master-1",
        "cannot forward its port 9003",
    ];
    output.expect(2, &words)?;
    let output = run(server, false, &["keys", "vk"]).await?;
    output.expect(2, &["mooncakeclusters", "vk", "not found"])?;

    let output = run(server, false, &["why", "kv-pool-default-n1"]).await?;
    output.expect(0, &["does not request injection"])?;
    let output = run(server, false, &["why", "pod/absent"]).await?;
    output.expect(2, &["absent", "not found", "-n"])
}

/// A user with the chart's permissions in one namespace and without permissions on nodes.
pub(crate) async fn tenant(server: &Server) -> anyhow::Result<()> {
    let output = run(server, true, &["doctor"]).await?;
    output.expect(
        2,
        &["mooncakeclusters.mooncake.io (namespace team): Forbidden"],
    )?;

    let client = &server.client;
    let roles = Api::<Role>::namespaced(client.clone(), TEAM);
    let verbs = ["get", "list", "watch"];
    let role = json!({
        "metadata": {"name": "tenant"},
        "rules": [
            {"apiGroups": ["mooncake.io"], "resources": ["mooncakeclusters"], "verbs": verbs},
            {"apiGroups": [""], "resources": ["pods", "events"], "verbs": verbs},
        ],
    });
    make(&roles, role).await?;
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), TEAM);
    let binding = json!({
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
    });
    make(&bindings, binding).await?;
    eventually("the tenant's permissions to take effect", || async {
        let output = run(server, true, &["status"]).await?;
        Ok(output.code == 0 && output.text.contains("2/2"))
    })
    .await?;
    let output = run(server, true, &["doctor"]).await?;
    let words = [
        "mooncakenodes.mooncake.io (cluster scope): Forbidden",
        "User \"tenant\" cannot list",
        "No problems found in the objects that could be read.",
        "1 MooncakeCluster,",
    ];
    output.expect(2, &words)?;
    ensure!(!output.text.contains("Error"), "{}", output.text);
    let output = run(server, true, &["keys", "kv"]).await?;
    let words = [
        "pods/portforward",
        "master pod kv-master-1",
        "Request the right",
    ];
    output.expect(2, &words)?;
    let output = run(server, true, &["node", "n1"]).await?;
    output.expect(2, &["forbidden", "context tenant"])
}

/// A policy of a later release: one error with the field, and no advice to use another kubectl-mooncake.
pub(crate) async fn undecodable_policy(server: &Server) -> anyhow::Result<()> {
    let later = with_word::<MooncakeNodePolicy>(&["fixes", "id"], "RebootTheNode")?;
    install_crd(&server.client, later).await?;
    let kind = ApiResource::erase::<MooncakeNodePolicy>(&());
    let policies = Api::<DynamicObject>::all_with(server.client.clone(), &kind);
    let policy: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeNodePolicy", "metadata": {"name": "later"},
        "spec": {"fixes": [{"id": "RebootTheNode", "mode": "Apply"}]},
    }))?;
    eventually("the CRD of the next release", || async {
        let created = policies.create(&PostParams::default(), &policy).await;
        Ok(created.is_ok())
    })
    .await?;
    let words = [
        "Error InvalidSpec MooncakeNodePolicy later",
        "cannot read spec.fixes[0].id: unknown variant `RebootTheNode`",
        "its nodes keep the last rules",
    ];
    eventually("the finding", || async {
        let output = run(server, false, &["doctor", "-A"]).await?;
        output.expect(1, &words)?;
        ensure!(!output.text.contains("DecodeFailed"), "{}", output.text);
        Ok(true)
    })
    .await
}

/// Value of an environment variable of a user's pod.
const PLANTED: &str = "hf-0123456789";

/// An archive of the degraded installation. No kubelet runs, so logs are left out.
pub(crate) async fn bundle(server: &Server) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bundle.tar.gz");
    let file = format!("--file={}", path.display());
    let output = run(server, false, &["bundle", "-A", &file]).await?;
    output.expect(2, &["Wrote ", "Left out: logs/agent-n1.log"])?;
    let mut text = Vec::new();
    GzDecoder::new(std::fs::File::open(&path)?).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let words = [
        "AgentNotReady Pod mooncake-system/agent-n2 on n2",
        "kv-pool-default-n1",
        "not-injected",
        "\"gitVersion\": \"v1.35.",
    ];
    for word in words {
        ensure!(text.contains(word), "no `{word}`: {text}");
    }
    ensure!(
        !text.contains(PLANTED) && !text.contains("HF_TOKEN"),
        "{text}"
    );
    Ok(())
}

/// An agent fails, a pod is not injected, another names a cluster that does not exist.
pub(crate) async fn degraded(server: &Server, harness: &Harness) -> anyhow::Result<()> {
    harness.agent_ready("n2", false).await?;
    let pods = harness.api::<Pod>();
    for (name, cluster) in [("not-injected", "kv"), ("misspelt", "vk")] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"mooncake.io/inject": cluster}},
            "spec": {"nodeName": "n1", "containers": [{
                "name": "c", "image": "i", "env": [{"name": "HF_TOKEN", "value": PLANTED}],
            }]},
        });
        make(&pods, pod).await?;
    }
    eventually("Ready to name n2", || async {
        let ready = harness.condition("Ready").await?;
        Ok(ready.starts_with("Unknown AgentNotReady"))
    })
    .await?;
    let output = run(server, false, &["doctor", "-A"]).await?;
    let words = [
        "AgentNotReady MooncakeCluster team/kv, Ready",
        "AgentNotReady Pod mooncake-system/agent-n2 on n2",
        "NotInjected Pod team/not-injected on n1",
        "ClusterMissing Pod team/misspelt on n1",
        "docs/reasons.md#agentnotready",
    ];
    output.expect(1, &words)?;
    let found = run(server, false, &["doctor", "-A", "-o", "json"]).await?;
    ensure!(found.code == 1);
    let found = found.json()?;
    let findings = found["findings"].as_array().context("no list")?;
    let of_n2 = findings.iter().filter(|finding| finding["node"] == "n2");
    ensure!(of_n2.count() == 1, "not one finding for one cause: {found}");

    // The tenant has the findings of the namespace.
    let output = run(server, true, &["doctor"]).await?;
    output.expect(
        1,
        &["MooncakeCluster team/kv", "team/not-injected", "Forbidden"],
    )?;

    let output = run(server, false, &["status"]).await?;
    output.expect(
        0,
        &["Unknown", "1/2", "PoolsReady", "AgentNotReady", "Remedy:"],
    )?;
    let output = run(server, false, &["why", "not-injected"]).await?;
    output.expect(0, &["was not injected", "Recreate the pod"])?;
    let output = run(server, false, &["why", "misspelt", "-o", "json"]).await?;
    let output = output.json()?;
    ensure!(
        output["state"] == "NotInjected" && output["cluster"] == "team/vk",
        "{output}"
    );
    Ok(())
}

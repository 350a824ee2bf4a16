//! The real `kubectl-mooncake` as a person runs it: its words and exit status on an empty, a healthy and
//! a broken installation, for an administrator and for a tenant.

use std::process::{Command, Output};

use anyhow::{Context, ensure};
use crds::MooncakeInventory;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::server::{Server, TENANT};
use crate::world::{SYSTEM, TEAM, World, eventually, install_crd};

/// Exit status and words.
struct Said {
    code: i32,
    text: String,
}

impl Said {
    fn expect(&self, code: i32, words: &[&str]) -> anyhow::Result<()> {
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

    fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.text).with_context(|| self.text.clone())
    }
}

async fn run(server: &Server, tenant: bool, words: &[&str]) -> anyhow::Result<Said> {
    let config = server.kubeconfig(tenant)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"));
    command.args(words).arg("--kubeconfig").arg(config);
    let output: Output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = [output.stdout, output.stderr].concat();
    Ok(Said {
        code: output.status.code().context("ended by a signal")?,
        text: String::from_utf8(text)?,
    })
}

async fn make<K>(api: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// An API server that knows none of our kinds.
pub(crate) async fn without_mooncake(server: &Server) -> anyhow::Result<()> {
    let said = run(server, false, &["doctor", "-A"]).await?;
    said.expect(2, &["NotInstalled", "Mooncake is not installed there."])
}

/// What the chart installs and the world does without: the objects of operator, agents and webhook.
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
    // It is called for nothing, as nobody answers: no rule names a kind.
    let webhook = json!({
        "metadata": {"name": "mooncake-injection"},
        "webhooks": [{
            "name": "inject.mooncake.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://127.0.0.1:1/inject", "caBundle": "Q0E="},
        }],
    });
    make(&webhooks, webhook).await?;
    // Who may not see nodes goes by this.
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

/// Nothing alarming, and every other command answers.
pub(crate) async fn healthy(server: &Server) -> anyhow::Result<()> {
    let said = run(server, false, &["doctor", "-A"]).await?;
    said.expect(0, &["Nothing alarming.", "1 MooncakeCluster,"])?;
    ensure!(said.text.lines().count() == 1, "{}", said.text);
    let found = run(server, false, &["doctor", "-o", "json"])
        .await?
        .json()?;
    ensure!(found["kind"] == "Doctor" && found["findings"] == json!([]));
    ensure!(found["apiVersion"] == "cli.mooncake.io/v1", "{found}");

    let said = run(server, false, &["status"]).await?;
    said.expect(
        0,
        &["kv", "True", "2/2", "128Mi", "kv-master.team.svc:50051"],
    )?;
    let said = run(server, false, &["status", "-n", SYSTEM]).await?;
    said.expect(0, &["-A looks everywhere"])?;

    // Its agent has not written an inventory.
    let said = run(server, false, &["node", "n1"]).await?;
    said.expect(2, &["kv-pool-default-n1", "Serving", "mooncakeinventories"])?;
    let said = run(server, false, &["node", "n9"]).await?;
    said.expect(2, &["n9", "not found", "127.0.0.1", "context admin"])?;

    let said = run(server, false, &["why", "kv-pool-default-n1"]).await?;
    said.expect(0, &["does not ask to be injected"])?;
    let said = run(server, false, &["why", "pod/nobody"]).await?;
    said.expect(2, &["nobody", "not found", "-n"])
}

/// A user with the chart's rights in one namespace and with none on nodes.
pub(crate) async fn tenant(server: &Server) -> anyhow::Result<()> {
    let said = run(server, true, &["doctor"]).await?;
    said.expect(
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
    eventually("the tenant's rights to count", || async {
        let said = run(server, true, &["status"]).await?;
        Ok(said.code == 0 && said.text.contains("2/2"))
    })
    .await?;
    let said = run(server, true, &["doctor"]).await?;
    let words = [
        "mooncakenodes.mooncake.io (the whole cluster): Forbidden",
        "User \"tenant\" cannot list",
        "Nothing alarming in what was seen.",
        "1 MooncakeCluster,",
    ];
    said.expect(2, &words)?;
    ensure!(!said.text.contains("Fails"), "{}", said.text);
    let said = run(server, true, &["node", "n1"]).await?;
    said.expect(2, &["forbidden", "context tenant"])
}

/// An agent dies, a pod was left out, another names a cluster that is not there.
pub(crate) async fn broken(server: &Server, world: &World) -> anyhow::Result<()> {
    world.agent_ready("n2", false).await?;
    let pods = world.api::<Pod>();
    for (name, cluster) in [("left-out", "kv"), ("misspelt", "vk")] {
        let pod = json!({
            "metadata": {"name": name, "labels": {"mooncake.io/inject": cluster}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
        });
        make(&pods, pod).await?;
    }
    eventually("Ready to name n2", || async {
        let ready = world.condition("Ready").await?;
        Ok(ready.starts_with("Unknown AgentNotReady"))
    })
    .await?;
    let said = run(server, false, &["doctor", "-A"]).await?;
    let words = [
        "AgentNotReady MooncakeCluster team/kv, Ready",
        "AgentNotReady Pod mooncake-system/agent-n2 on n2",
        "NotInjected Pod team/left-out on n1",
        "ClusterMissing Pod team/misspelt on n1",
        "docs/reasons.md#agentnotready",
    ];
    said.expect(1, &words)?;
    let found = run(server, false, &["doctor", "-A", "-o", "json"]).await?;
    ensure!(found.code == 1);
    let found = found.json()?;
    let findings = found["findings"].as_array().context("no list")?;
    let of_n2 = findings.iter().filter(|finding| finding["node"] == "n2");
    ensure!(of_n2.count() == 1, "one cause, one finding: {found}");

    // The tenant sees the same of what is theirs.
    let said = run(server, true, &["doctor"]).await?;
    said.expect(
        1,
        &["MooncakeCluster team/kv", "team/left-out", "Forbidden"],
    )?;

    let said = run(server, false, &["status"]).await?;
    said.expect(0, &["Unknown", "1/2", "PoolsReady", "AgentNotReady", "Do:"])?;
    let said = run(server, false, &["why", "left-out"]).await?;
    said.expect(0, &["was not injected", "Recreate the pod"])?;
    let said = run(server, false, &["why", "misspelt", "-o", "json"]).await?;
    let said = said.json()?;
    ensure!(
        said["fate"] == "NotInjected" && said["cluster"] == "team/vk",
        "{said}"
    );
    Ok(())
}

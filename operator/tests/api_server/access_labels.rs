//! The chart's ValidatingAdmissionPolicy against access labels that the webhook did not set: on each path by which labels of a
//! pod change.

use anyhow::{bail, ensure};
use k8s_openapi::api::core::v1::{Binding, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::chart::{DEFAULT, install_policies, refusal};
use super::harness::{TEAM, eventually, make_namespace};

pub(crate) async fn are_set_by_the_webhook_only(client: &Client) -> anyhow::Result<()> {
    make_namespace(client, TEAM).await?;
    install_policies(client, DEFAULT, "mooncake-access-only-by-injection", 2).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), TEAM);
    for name in ["user", "bound", "labelled"] {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
    }
    let merge = PatchParams::default();
    let labels = |labels: Value| Patch::Merge(json!({"metadata": {"labels": labels}}));
    let access = |value: &str| labels(json!({"mooncake.io/access": value}));
    // A policy takes effect some time after its creation.
    let mut attempt = 0;
    eventually("the label to be refused", || {
        attempt += 1;
        let patch = access(&attempt.to_string());
        let (pods, merge) = (&pods, &merge);
        async move {
            match refusal(pods.patch("user", merge, &patch).await)? {
                Some(message) if message.contains("only the webhook sets") => Ok(true),
                other => bail!("{other:?}"),
            }
        }
    })
    .await?;
    let removed = labels(json!({"mooncake.io/access": null}));
    pods.patch("user", &merge, &removed).await?;

    let by_status = pods.patch_status("user", &merge, &access("kv")).await;
    let found = refusal(by_status)?;
    ensure!(found.is_some(), "by the status");
    let status = Patch::Merge(json!({"status": {"message": "m"}}));
    pods.patch_status("user", &merge, &status).await?;

    let binding = |pod: &str, labels: Value| {
        json!({
            "metadata": {"name": pod, "labels": labels},
            "target": {"kind": "Node", "name": "n1"},
        })
    };
    let bind = async |pod: &str, labels: Value| {
        let body = binding(pod, labels);
        let new = PostParams::default();
        refusal(
            pods.create_subresource::<Value, Value>("binding", pod, &new, &body)
                .await,
        )
    };
    let host_access = json!({"mooncake.io/host-access": "kv"});
    let found = bind("labelled", host_access.clone()).await?;
    ensure!(found.is_some(), "by the binding of a pod");
    let bindings = Api::<Binding>::namespaced(client.clone(), TEAM);
    let by_name = serde_json::from_value(binding("labelled", host_access))?;
    let found = refusal(bindings.create(&PostParams::default(), &by_name).await)?;
    ensure!(found.is_some(), "by a binding");
    for (pod, labels) in [("bound", json!(null)), ("labelled", json!({"a": "b"}))] {
        let found = bind(pod, labels).await?;
        ensure!(found.is_none(), "{pod}: {found:?}");
    }
    Ok(())
}

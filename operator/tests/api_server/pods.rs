//! The chart's ValidatingAdmissionPolicies on new pods: access from the host network, and a start without injection.

use anyhow::{bail, ensure};
use crds::MooncakeCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

use super::chart::{DEFAULT, STRICT, install_policies, refusal};
use super::harness::{TEAM, eventually, install_crds, make_namespace};

fn pod(metadata: &Value, host_network: bool) -> anyhow::Result<Pod> {
    let mut pod = json!({
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "x"}], "hostNetwork": host_network},
    });
    pod["metadata"]["name"] = json!("pod");
    Ok(serde_json::from_value(pod)?)
}

/// The message with which the creation of a pod is refused; `None` if it would succeed. Nothing is created.
async fn refused(
    pods: &Api<Pod>,
    metadata: &Value,
    host_network: bool,
) -> anyhow::Result<Option<String>> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    refusal(pods.create(&dry_run, &pod(metadata, host_network)?).await)
}

/// Waits until a policy takes effect, which is some time after its creation.
async fn takes_effect(
    pods: &Api<Pod>,
    metadata: &Value,
    host_network: bool,
    words: &str,
) -> anyhow::Result<()> {
    eventually("the pod to be refused", || async {
        match refused(pods, metadata, host_network).await? {
            Some(message) if message.contains(words) => Ok(true),
            other => bail!("{other:?} does not contain {words:?}"),
        }
    })
    .await
}

/// A pod with the address of its node gets the label of access neither at its creation nor later.
pub(crate) async fn on_the_host_network_get_no_access(client: &Client) -> anyhow::Result<()> {
    make_namespace(client, TEAM).await?;
    install_policies(client, DEFAULT, "mooncake-no-access-from-host-network", 2).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), TEAM);
    let access = json!({"labels": {"mooncake.io/access": "kv"}});
    let words = "a pod with hostNetwork must not have the label mooncake.io/access";
    takes_effect(&pods, &access, true, words).await?;
    let none = json!({});
    for (metadata, host_network) in [(&none, true), (&access, false)] {
        let found = refused(&pods, metadata, host_network).await?;
        ensure!(found.is_none(), "{metadata}, {host_network}: {found:?}");
    }
    pods.create(&PostParams::default(), &pod(&none, true)?)
        .await?;
    let label = Patch::Merge(json!({"metadata": access}));
    let later = pods.patch("pod", &PatchParams::default(), &label).await;
    let found = refusal(later)?;
    ensure!(
        found.as_ref().is_some_and(|found| found.contains(words)),
        "by an update: {found:?}"
    );
    Ok(())
}

/// With `injection.denyUninjected` no pod of a cluster with `onDeadline: Fail` is created unchanged, and every other one is.
pub(crate) async fn start_only_injected_where_the_cluster_requires_it(
    client: &Client,
) -> anyhow::Result<()> {
    const ELSEWHERE: &str = "elsewhere";
    install_crds(client).await?;
    for namespace in [TEAM, ELSEWHERE] {
        make_namespace(client, namespace).await?;
    }
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    for (name, spec) in [
        ("strict", json!({"injection": {"onDeadline": "Fail"}})),
        ("lenient", json!({})),
    ] {
        let cluster = json!({
            "apiVersion": MooncakeCluster::api_version(&()),
            "kind": MooncakeCluster::kind(&()),
            "metadata": {"name": name},
            "spec": spec,
        });
        clusters
            .create(&PostParams::default(), &serde_json::from_value(cluster)?)
            .await?;
    }
    install_policies(client, STRICT, "mooncake-no-start-without-injection", 2).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), TEAM);
    let labelled = |cluster: &str, annotations: Value| json!({"labels": {"mooncake.io/inject": cluster}, "annotations": annotations});
    let unchanged = labelled("strict", json!({}));
    let words = "the pod was not injected, and MooncakeCluster strict has onDeadline: Fail: \
                 the webhook did not answer; check that the operator runs";
    takes_effect(&pods, &unchanged, false, words).await?;
    let skipped = json!({"mooncake.io/injection-skipped": "PodInvalid: two stores"});
    let found = refused(&pods, &labelled("strict", skipped), false).await?;
    ensure!(
        found
            .as_ref()
            .is_some_and(|found| found.contains("onDeadline: Fail: PodInvalid: two stores")),
        "{found:?}"
    );
    let injected = json!({"mooncake.io/injected": "strict"});
    let foreign = json!({"mooncake.io/cluster-namespace": ELSEWHERE});
    for metadata in [
        labelled("strict", injected),
        labelled("strict", foreign),
        labelled("lenient", json!({})),
        labelled("unknown", json!({})),
        json!({}),
    ] {
        let found = refused(&pods, &metadata, false).await?;
        ensure!(found.is_none(), "{metadata}: {found:?}");
    }
    let elsewhere = Api::<Pod>::namespaced(client.clone(), ELSEWHERE);
    let found = refused(&elsewhere, &unchanged, false).await?;
    ensure!(found.is_none(), "in another namespace: {found:?}");
    Ok(())
}

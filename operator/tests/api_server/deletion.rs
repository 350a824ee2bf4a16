//! The chart's ValidatingAdmissionPolicies against the loss of objects by a deletion or another type of master.

use anyhow::{Context, bail, ensure};
use crds::MooncakeCluster;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::chart::{DEFAULT, install_policies};
use super::harness::{TEAM, eventually, install_crds, make_namespace};

/// The message with which the deletion is refused; `None` if it would succeed. Nothing is deleted.
async fn refusal<K>(api: &Api<K>, name: &str) -> anyhow::Result<Option<String>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let parameters = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    match api.delete(name, &parameters).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

async fn refused<K>(api: &Api<K>, name: &str, words: &str) -> anyhow::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    // A policy takes effect some time after its creation.
    eventually("the deletion to be refused", || async {
        match refusal(api, name).await? {
            Some(message) if message.contains(words) => Ok(true),
            other => bail!("{other:?} does not contain {words:?}"),
        }
    })
    .await
}

async fn allowed<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    eventually("the deletion to be allowed", || async {
        match refusal(api, name).await? {
            None => Ok(true),
            Some(message) => bail!("{message}"),
        }
    })
    .await
}

/// Confirms the deletion.
async fn confirm<K>(api: &Api<K>, name: &str, word: Option<&str>) -> anyhow::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let body = json!({"metadata": {"annotations": {"mooncake.io/confirm-deletion": word}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(body))
        .await?;
    Ok(())
}

/// A cluster, its namespace and the CRD are deleted only after a confirmation while the pools hold objects.
pub(crate) async fn needs_a_confirmation(client: &Client) -> anyhow::Result<()> {
    install_crds(client).await?;
    make_namespace(client, TEAM).await?;
    install_policies(client, DEFAULT, "mooncake-confirm-", 8).await?;
    let clusters = Api::<MooncakeCluster>::namespaced(client.clone(), TEAM);
    let cluster = json!({
        "apiVersion": MooncakeCluster::api_version(&()),
        "kind": MooncakeCluster::kind(&()),
        "metadata": {"name": "kv"},
        "spec": {},
    });
    clusters
        .create(&PostParams::default(), &serde_json::from_value(cluster)?)
        .await?;
    let status = async |capacity: &str, used: Option<&str>| {
        let body = json!({"status": {"capacity": capacity, "used": used}});
        let (merge, body) = (PatchParams::default(), Patch::Merge(body));
        clusters.patch_status("kv", &merge, &body).await?;
        anyhow::Ok(())
    };
    another_master(&clusters).await?;
    status("64Mi", Some("35%")).await?;
    refused(&clusters, "kv", "35% of their memory").await?;
    for (capacity, used, free) in [
        ("64Mi", Some("0%"), true),
        ("64Mi", None, false),
        ("0", None, true),
        // No node is known to serve: the objects may still be there.
        ("0", Some("35%"), false),
        ("0", Some("0%"), true),
        ("64Mi", Some("5%"), false),
    ] {
        status(capacity, used).await?;
        let refusal = refusal(&clusters, "kv").await?;
        ensure!(
            refusal.is_none() == free,
            "{used:?} of {capacity}: {refusal:?}"
        );
    }
    confirm(&clusters, "kv", Some("yes")).await?;
    refused(&clusters, "kv", "confirm-deletion=true").await?;
    confirm(&clusters, "kv", Some("true")).await?;
    allowed(&clusters, "kv").await?;

    crd_and_namespace(client).await
}

/// The type of the master changes only after a confirmation that names the new one.
async fn another_master(clusters: &Api<MooncakeCluster>) -> anyhow::Result<()> {
    let change = async |kind: Option<&str>, confirmed: Option<&str>| {
        let body = json!({
            "metadata": {"annotations": {"mooncake.io/confirm-master": confirmed}},
            "spec": {"master": {"type": kind}},
        });
        let patch = PatchParams::default();
        match clusters.patch("kv", &patch, &Patch::Merge(body)).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status.message.clone())),
            Err(error) => Err(anyhow::Error::from(error)),
        }
    };
    // A policy takes effect some time after its creation. Until then the change and its reversal succeed.
    eventually("another type to be refused", || async {
        match change(Some("BuiltIn"), None).await? {
            Some(message) if message.contains("mooncake.io/confirm-master=BuiltIn") => Ok(true),
            other => {
                change(None, None).await?;
                bail!("{other:?}")
            }
        }
    })
    .await?;
    for (kind, confirmed, free) in [
        // The default by name.
        (Some("Stock"), None, true),
        (Some("BuiltIn"), Some("true"), false),
        (Some("BuiltIn"), Some("BuiltIn"), true),
        // An earlier confirmation does not confirm the change back.
        (Some("Stock"), Some("BuiltIn"), false),
        (None, Some("BuiltIn"), false),
        (None, Some("Stock"), true),
        (None, None, true),
    ] {
        let refusal = change(kind, confirmed).await?;
        ensure!(
            refusal.is_none() == free,
            "{kind:?} confirmed by {confirmed:?}: {refusal:?}"
        );
    }
    Ok(())
}

async fn crd_and_namespace(client: &Client) -> anyhow::Result<()> {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let crd = MooncakeCluster::crd().name_any();
    refused(&crds, &crd, "every pool of this Kubernetes cluster").await?;
    confirm(&crds, &crd, Some("true")).await?;
    allowed(&crds, &crd).await?;

    let pods = Api::<Pod>::namespaced(client.clone(), TEAM);
    let pod = |name: &str, labels: Value| {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [{"name": "pool", "image": "x"}]},
        }))
    };
    let pool = json!({"mooncake.io/cluster": "kv", "mooncake.io/component": "pool"});
    for (name, labels) in [
        ("pool", pool),
        ("user", json!({"mooncake.io/inject": "kv"})),
    ] {
        pods.create(&PostParams::default(), &pod(name, labels)?)
            .await?;
    }
    allowed(&pods, "pool")
        .await
        .context("a rollout deletes pods")?;
    let namespaces = Api::<Namespace>::all(client.clone());
    // No controller of namespaces runs here: it stays Terminating.
    namespaces.delete(TEAM, &DeleteParams::default()).await?;
    refused(&pods, "pool", "annotate namespace team").await?;
    allowed(&pods, "user").await?;
    confirm(&namespaces, TEAM, Some("true")).await?;
    allowed(&pods, "pool").await
}

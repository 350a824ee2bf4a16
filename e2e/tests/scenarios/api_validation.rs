//! Specs that the API server rejects or warns about, and the permissions of a namespace administrator.

use anyhow::{Context, bail, ensure};
use crds::{MooncakeCluster, MooncakeNode};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use mooncake_e2e::scenario::{Namespace, Pool, Product};
use serde::de::DeserializeOwned;
use serde_json::json;

/// An invalid spec, and a part of the message.
const WRONG: [(&str, &str); 12] = [
    (
        "{pools: [{name: a, sizes: 1Gi}]}",
        "field not declared in schema",
    ),
    ("{access: {addresses: [127.0.0.1]}}", "must not be loopback"),
    ("{access: {addresses: ['::1']}}", "must not be loopback"),
    (
        "{access: {addresses: [somewhere]}}",
        "must be IPv4 or IPv6 addresses",
    ),
    ("{pools: [{name: a, size: plenty}]}", "size"),
    (
        "{pools: [{name: a, size: 1Mi}]}",
        "size must be from 16Mi to 16Ti",
    ),
    (
        "{pools: [{name: a, size: 17Ti}]}",
        "size must be from 16Mi to 16Ti",
    ),
    (
        "{pools: [{name: a, size: 33Mi, pageSize: 2Mi}]}",
        "whole number of pages",
    ),
    (
        "{transports: {tcp: Forbid, rdma: Forbid}}",
        "tcp and rdma are both Forbid",
    ),
    (
        "{transports: {tcp: Require, rdma: Require}}",
        "exactly one transport",
    ),
    ("{transports: {tcp: Never}}", "Unsupported value"),
    ("{pools: [{name: a}, {name: a}]}", "duplicate"),
];

/// Changes that are rejected for a cluster whose pool has pages of 4Ki.
const IMMUTABLE: [(&str, &str); 2] = [
    (
        "{pools: [{name: default, pageSize: 2Mi}]}",
        "pageSize is immutable: add another pool",
    ),
    (
        "{pools: [{name: default, numaPolicy: Any}]}",
        "numaPolicy is immutable: add another pool",
    ),
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn kubectl_rejects_an_invalid_spec_with_a_remedy() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("refusals", async move |_, namespace| {
            for (spec, words) in WRONG {
                rejected(&namespace, spec, words).await?;
            }
            // No node matches, so that no pool pod starts.
            let nowhere = "nodeSelector: {kubernetes.io/hostname: nowhere}";
            Pool::apply(
                &namespace,
                "kv",
                &format!("{{pools: [{{name: default, {nowhere}}}]}}"),
            )
            .await?;
            for (spec, words) in IMMUTABLE {
                rejected(&namespace, spec, words).await?;
            }
            let costly = r#", "size": "20Gi"}"#;
            accepted_with_warning(&namespace, costly, "6 MiB per GiB more, for page tables")
                .await?;
            // More than the nodes have.
            let huge = r#"}, {"name": "huge", "size": "1Ti", "pageSize": "2Mi"}"#;
            let words = "pool huge: insufficient_for_baseline on 2 of 2 nodes, hugepages-2Mi: n1";
            accepted_with_warning(&namespace, huge, words).await
        })
        .await
}

async fn rejected(namespace: &Namespace, spec: &str, words: &str) -> anyhow::Result<()> {
    let answer = Pool::apply(namespace, "kv", spec)
        .await
        .err()
        .with_context(|| format!("{spec} was accepted"))?
        .to_string();
    ensure!(
        answer.contains(words),
        "{spec} was rejected with another message: {answer}"
    );
    Ok(())
}

/// Checks that a spec is accepted with a warning that contains `words`.
async fn accepted_with_warning(
    namespace: &Namespace,
    pools: &str,
    words: &str,
) -> anyhow::Result<()> {
    let spec = format!(r#"{{"spec": {{"pools": [{{"name": "default"{pools}]}}}}"#);
    let mut patch = vec![
        "patch",
        "mooncakecluster",
        "kv",
        "--type=merge",
        "--dry-run=server",
    ];
    patch.extend(["--patch", &spec]);
    namespace.kubectl(&patch).await?;
    patch.push("--warnings-as-errors");
    let warning = namespace.kubectl(&patch).await.err();
    let warning = warning
        .with_context(|| format!("no warning about {spec}"))?
        .to_string();
    ensure!(warning.contains(words), "{warning}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_namespace_admin_can_only_access_objects_of_the_namespace() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("tenant", async move |product, namespace| {
            namespace
                .kubectl(&[
                    "create",
                    "rolebinding",
                    "tenant-admin",
                    "--clusterrole=admin",
                    "--user=tenant",
                ])
                .await?;
            let tenant = product.cluster.client_as("tenant").await?;
            let own: Api<MooncakeCluster> = Api::namespaced(tenant.clone(), &namespace.name);
            let others: Api<MooncakeCluster> = Api::namespaced(tenant.clone(), "default");
            let nodes: Api<MooncakeNode> = Api::all(tenant);

            let cluster: MooncakeCluster = object("MooncakeCluster", "attempt")?;
            own.create(&created(), &cluster).await?;
            ensure!(own.get_opt("attempt").await?.is_none(), "not a dry run");
            own.delete_collection(&removed(), &ListParams::default())
                .await?;
            refused("create", others.create(&created(), &cluster).await)?;
            refused("list", others.list(&ListParams::default()).await)?;
            let all = ListParams::default();
            let deleted = others.delete_collection(&removed(), &all).await;
            refused("delete", deleted)?;

            let node: MooncakeNode = object("MooncakeNode", "n1")?;
            refused("create", nodes.create(&created(), &node).await)?;
            refused("replace", nodes.replace("n1", &created(), &node).await)?;
            refused("delete", nodes.delete("n1", &removed()).await)?;
            let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
            let patched = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            refused("patch", nodes.patch("n1", &patched, &label).await)?;
            let status = nodes.patch_status("n1", &patched, &label).await;
            refused("patch status", status)?;
            Ok(())
        })
        .await
}

/// An attempt that would succeed changes nothing.
fn created() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

fn removed() -> DeleteParams {
    DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    }
}

fn object<K: DeserializeOwned>(kind: &str, name: &str) -> anyhow::Result<K> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {},
    }))?)
}

/// Only the answer 403 of the API server is a refusal.
fn refused<T>(verb: &str, outcome: kube::Result<T>) -> anyhow::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("{verb}: not the refusal")),
        Ok(_) => bail!("a tenant may {verb}"),
    }
}

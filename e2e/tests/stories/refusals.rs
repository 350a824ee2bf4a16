//! What the API server must not take, and what it answers.

use anyhow::{Context, ensure};
use mooncake_e2e::story::{Namespace, Pool, Product};

/// A spec that is refused, and words of the refusal.
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
        "every transport is forbidden",
    ),
    (
        "{transports: {tcp: Require, rdma: Require}}",
        "exactly one transport",
    ),
    ("{transports: {tcp: Never}}", "Unsupported value"),
    ("{pools: [{name: a}, {name: a}]}", "duplicate"),
];

/// Changes of a cluster whose pool has pages of 4Ki.
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
async fn a_wrong_spec_is_refused_by_kubectl_with_what_to_do() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .tell("refusals", async |namespace| {
            for (spec, words) in WRONG {
                refused(&namespace, spec, words).await?;
            }
            // It stays as small and as short as it can: no node matches.
            let nowhere = "nodeSelector: {kubernetes.io/hostname: nowhere}";
            Pool::apply(
                &namespace,
                "kv",
                &format!("{{pools: [{{name: default, {nowhere}}}]}}"),
            )
            .await?;
            for (spec, words) in IMMUTABLE {
                refused(&namespace, spec, words).await?;
            }
            let costly = r#", "size": "20Gi"}"#;
            warned(&namespace, costly, "2 MiB of page tables per GiB").await?;
            // More than any node has.
            let huge = r#"}, {"name": "huge", "size": "1Ti", "pageSize": "2Mi"}"#;
            let words = "pool huge: insufficient_for_baseline on 2 of 2 nodes, hugepages-2Mi: n1";
            warned(&namespace, huge, words).await
        })
        .await
}

async fn refused(namespace: &Namespace, spec: &str, words: &str) -> anyhow::Result<()> {
    let answer = Pool::apply(namespace, "kv", spec)
        .await
        .err()
        .with_context(|| format!("{spec} was accepted"))?
        .to_string();
    ensure!(
        answer.contains(words),
        "{spec} was refused with other words: {answer}"
    );
    Ok(())
}

/// Not refused, but kubectl shows these words as a warning, which is made an error here.
async fn warned(namespace: &Namespace, pools: &str, words: &str) -> anyhow::Result<()> {
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
    let told = namespace.kubectl(&patch).await.err();
    let told = told
        .with_context(|| format!("no warning of {spec}"))?
        .to_string();
    ensure!(told.contains(words), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_namespace_admin_reaches_only_what_is_in_the_namespace() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .tell("tenant", async |namespace| {
            let name = namespace.name.clone();
            namespace
                .kubectl(&[
                    "create",
                    "rolebinding",
                    "boss",
                    "--clusterrole=admin",
                    "--user=tenant",
                ])
                .await?;
            let allowed = async |arguments: &[&str]| -> anyhow::Result<bool> {
                let mut words = vec!["auth", "can-i", "--as=tenant"];
                words.extend_from_slice(arguments);
                // "no" is an exit status of 1.
                Ok(namespace
                    .kubectl(&words)
                    .await
                    .is_ok_and(|answer| answer.trim() == "yes"))
            };
            for verb in ["create", "update", "delete", "get"] {
                ensure!(
                    allowed(&[verb, "mooncakeclusters.mooncake.io"]).await?,
                    "{verb} in {name}"
                );
                ensure!(
                    !allowed(&[verb, "mooncakeclusters.mooncake.io", "--namespace=default"])
                        .await?,
                    "{verb} in another namespace"
                );
            }
            for verb in ["create", "update", "patch", "delete"] {
                for resource in [
                    "mooncakenodes.mooncake.io",
                    "mooncakenodes.mooncake.io/status",
                ] {
                    ensure!(!allowed(&[verb, resource]).await?, "{verb} {resource}");
                }
            }
            Ok(())
        })
        .await
}

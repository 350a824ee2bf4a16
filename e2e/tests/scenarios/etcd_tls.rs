//! An etcd with TLS and client certificates: pools use it by a Secret, which comes late and is rotated, and stock pods are not
//! injected.

use anyhow::{Context as _, ensure};
use crds::ConditionType;
use crds::names::ANNOTATION_SKIPPED;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use local_cluster::binaries::Binaries;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Pool, Product, StockPod, StockWork, metadata};
use mooncake_stock::{Authority, Signed};
use serde_json::json;
use std::time::Duration;

const ETCD: &str = include_str!("../../manifests/etcd-tls.yaml");
const WAIT: Duration = Duration::from_secs(180);
/// The kubelet shows a changed Secret after up to two minutes.
const SHOWN: Duration = Duration::from_secs(300);

/// Creates or replaces a Secret with a certificate, its key, and an authority.
async fn write(
    namespace: &Namespace,
    name: &str,
    authority: &Authority,
    signed: &Signed,
) -> anyhow::Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "stringData": {
            "ca.crt": authority.certificate(), "tls.crt": signed.certificate, "tls.key": signed.key,
        },
    });
    let apply = PatchParams::apply("scenario").force();
    let secrets = namespace.api::<Secret>();
    secrets.patch(name, &apply, &Patch::Apply(secret)).await?;
    Ok(())
}

/// Writes the certificates of the server and of its clients, all of one authority.
async fn rotate(
    namespace: &Namespace,
    authority: &Authority,
    secrets: &[&str],
) -> anyhow::Result<()> {
    let host = format!("etcd.{}.svc", namespace.name);
    for secret in secrets {
        let signed = authority.sign(&[&host])?;
        write(namespace, secret, authority, &signed).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn an_etcd_with_tls_serves_pools_by_their_secret_and_stock_pods_are_not_injected()
-> anyhow::Result<()> {
    let product = Product::shared_by_waiting().await?;
    product
        .run("etcd-tls", async move |product, namespace| {
            let settings = product.settings.clone();
            let binaries = tokio::task::spawn_blocking(move || Binaries::get(&settings)).await??;
            let first = Authority::new("first")?;
            rotate(&namespace, &first, &["etcd-server"]).await?;
            let folder = binaries.kubernetes.display().to_string();
            namespace.apply(&ETCD.replace("FOLDER", &folder)).await?;
            let endpoint = format!("etcd.{}.svc:2379", namespace.name);
            let spec = format!(
                "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], metadata: {{type: Etcd, endpoints: ['{endpoint}'], secretName: etcd-client}}}}"
            );
            let pool = Pool::apply(&namespace, "kv", &spec).await?;
            let secret = format!("Secret {}/etcd-client cannot be used", namespace.name);
            println!("{}", metadata::fails(&pool, &[&secret, "has no ca.crt"], READY).await?);

            rotate(&namespace, &first, &["etcd-client"]).await?;
            metadata::works(&pool, SHOWN).await?;
            pool.ready(READY).await?;
            pool.mounted(2, WAIT).await?;

            let stock = StockPod::new("stock", StockWork::Idle).inject("kv");
            stock.start(&namespace).await?;
            let pod = namespace.api::<Pod>().get("stock").await?;
            let why = pod.annotations().get(ANNOTATION_SKIPPED);
            let why = why.context("the stock pod has no annotation about its injection")?;
            println!("{why}");
            ensure!(
                why.contains("uses an etcd with TLS") && why.contains("etcd-client"),
                "{why}"
            );
            let kind = ConditionType::PodsInjected;
            let skipped = pool.condition(kind, "the stock pod", READY, |condition| {
                condition.status == "False" && condition.message.contains("uses an etcd with TLS")
            });
            skipped.await?;
            let doctor = product.doctor().await;
            ensure!(doctor.contains("uses an etcd with TLS"), "{doctor}");

            // A rotation in the wrong sequence is named, and ends with the Secret of the clients.
            let second = Authority::new("second")?;
            rotate(&namespace, &second, &["etcd-server"]).await?;
            let restart = ["rollout", "restart", "deployment/etcd"];
            namespace.kubectl(&restart).await?;
            println!("{}", metadata::fails(&pool, &["is not trusted"], SHOWN).await?);
            pool.mounted(2, WAIT).await?;
            rotate(&namespace, &second, &["etcd-client"]).await?;
            metadata::works(&pool, SHOWN).await?;
            pool.mounted(2, WAIT).await?;
            Ok(())
        })
        .await
}

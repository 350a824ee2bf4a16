//! An etcd that has an IPv6 address only, in a dual-stack cluster: pools and stock pods find each other by it.

use anyhow::ensure;
use crds::ConditionType;
use local_cluster::Settings;
use local_cluster::binaries::Binaries;
use mooncake_e2e::scenario::pool::READY;
use mooncake_e2e::scenario::{Namespace, Pool, StockPod, StockWork};
use std::net::Ipv6Addr;
use std::time::Duration;

const ETCD: &str = include_str!("../../manifests/etcd.yaml");
const IMAGE: &str = "localhost/mooncake-stock:0.3.13";
const CLUSTER: &str = "six";
const COUNT: u32 = 16;
const SIZE: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(180);

/// Two MooncakeClusters use it one after the other: by its address and by its name.
pub(crate) async fn by_ipv6(namespace: &Namespace, image: &str) -> anyhow::Result<()> {
    let binaries = tokio::task::spawn_blocking(|| Binaries::get(&Settings::read())).await??;
    let manifest = ETCD
        .replace("FOLDER", &binaries.kubernetes.display().to_string())
        .replace(IMAGE, image)
        .replace("0.0.0.0", "[::]")
        .replacen(
            "spec: {selector",
            "spec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv6], selector",
            1,
        );
    ensure!(manifest.contains("SingleStack") && manifest.contains("[::]:2379"));
    namespace.apply(&manifest).await?;
    let address = [
        "get",
        "service",
        "etcd",
        "-o",
        "jsonpath={.spec.clusterIPs}",
    ];
    let addresses: Vec<Ipv6Addr> = serde_json::from_str(&namespace.kubectl(&address).await?)?;
    let [address] = addresses[..] else {
        anyhow::bail!("the Service has the addresses {addresses:?}");
    };
    for host in [
        format!("[{address}]"),
        format!("etcd.{}.svc", namespace.name),
    ] {
        exchange(namespace, image, &format!("{host}:2379")).await?;
    }
    let words = ["delete", "deployment/etcd", "service/etcd"];
    namespace.kubectl(&words).await?;
    Ok(())
}

/// A stock pod puts objects, and one on the other node gets them.
async fn exchange(namespace: &Namespace, image: &str, endpoint: &str) -> anyhow::Result<()> {
    let spec = format!(
        "{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], metadata: {{type: Etcd, endpoints: ['{endpoint}']}}}}"
    );
    let pool = Pool::apply(namespace, CLUSTER, &spec).await?;
    pool.ready(READY).await?;
    pool.mounted(2, WAIT).await?;
    let kind = ConditionType::MetadataReady;
    let works = pool.condition(kind, "True", READY, |condition| condition.status == "True");
    let works = works.await?;
    ensure!(works.message.contains(endpoint), "{}", works.message);
    for (name, node, work) in [
        ("writer-six", "n1", StockWork::put(COUNT, SIZE)),
        ("reader-six", "n2", StockWork::verify(COUNT, SIZE)),
    ] {
        let pod = StockPod::new(name, work).image(image).node(node);
        let report = pod.inject(CLUSTER).run(namespace, WAIT).await?;
        ensure!(
            report.done == u64::from(COUNT) && report.wrong == 0,
            "{endpoint}: {report:?}"
        );
        namespace.kubectl(&["delete", "pod", name]).await?;
    }
    let confirm = "mooncake.io/confirm-deletion=true";
    let words = ["annotate", "mooncakecluster", CLUSTER, confirm];
    namespace.kubectl(&words).await?;
    namespace
        .kubectl(&["delete", "mooncakecluster", CLUSTER])
        .await?;
    Ok(())
}

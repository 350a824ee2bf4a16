//! What `spec.access` grants to pods of other namespaces, until it is withdrawn.

use anyhow::{Context, ensure};
use crds::names::{ANNOTATION_SKIPPED, POOL_DATA_PORT, POOL_HANDSHAKE_PORT};
use crds::{ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_e2e::scenario::pool::ip;
use mooncake_e2e::scenario::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, with_namespace,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const WAIT: Duration = Duration::from_secs(120);
/// An agent learns of a withdrawn admission by its watch of EndpointSlices.
const WITHDRAWN: Duration = Duration::from_secs(30);
/// Seconds from the withdrawal to the end of an open connection.
const ENDED: f64 = 5.0;
const KEYS: u32 = 8;
const BYTES: u64 = 1 << 20;

/// Requests the descriptor of a pool pod; prints how many bytes arrive.
const HANDSHAKE: &str = r#"
import socket, struct, sys
body = b'\x01{"name":"client:1","protocol":"tcp","tcp_data_port":1}'
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as peer:
        peer.sendall(struct.pack("<Q", len(body)) + body)
        print(len(peer.recv(4096)))
except OSError:
    print(0)
"#;

/// Holds a connection to the data port of a pool pod until it ends; prints the time of its end in seconds since 1970.
const HOLD: &str = r#"
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as peer:
    peer.settimeout(60)
    try:
        peer.recv(1)
    except ConnectionError:
        pass
print(time.time())
"#;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn pods_of_an_allowed_namespace_use_a_pool_until_it_is_withdrawn() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("grants", async move |product, namespace| {
            with_namespace(&product.cluster, "guests", async move |guests| {
                let access = format!("{{allowedNamespaces: [{}]}}", guests.name);
                let pool = apply(&namespace, &access).await?;
                pool.ready(WAIT).await?;
                let guest = |name: &str, node: &str, work| {
                    StockPod::new(name, work)
                        .node(node)
                        .inject("kv")
                        .of_namespace(&namespace.name)
                };
                let writer = guest("writer", "n1", StockWork::put(KEYS, BYTES));
                let report = writer.run(&guests, WAIT).await?;
                ensure!(report.done == u64::from(KEYS), "{report:?}");
                let reader = guest("reader", "n2", StockWork::verify(KEYS, BYTES));
                let report = reader.run(&guests, WAIT).await?;
                ensure!(
                    report.done == u64::from(KEYS) && report.wrong == 0,
                    "{report:?}"
                );

                guest("guest", "n1", StockWork::Idle).start(&guests).await?;
                guests.pod_ready("guest", WAIT).await?;
                let pool_pod = ip(&pool.pod_on("n1").await?)?;
                ensure!(answered(&guests, &pool_pod).await?, "it has no access");
                let port = POOL_DATA_PORT.to_string();
                let hold = ["python3", "-c", HOLD, &pool_pod, &port];
                let held = guests.exec("guest", "main", &hold, WAIT);
                let withdraw = async {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                    apply(&namespace, "{}").await?;
                    anyhow::Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
                };
                let (held, withdrawn) = tokio::try_join!(held, withdraw)?;
                let after = held.trim().parse::<f64>()? - withdrawn.as_secs_f64();
                println!("an open connection ended {after:.1} s after the withdrawal");
                ensure!((-2.0..ENDED).contains(&after), "{after:.1} s");
                eventually("the guest to lose its access", WITHDRAWN, || async {
                    let answered = answered(&guests, &pool_pod).await?;
                    Ok(Seen::when((!answered).then_some(()), "an answer"))
                })
                .await?;
                pool.condition(ConditionType::PodsInjected, "False", WAIT, |condition| {
                    condition.status == "False"
                        && condition.reason == Reason::NamespaceNotAllowed.as_str()
                        && condition.message.contains("guest")
                })
                .await?;

                // Pods that are created now start unchanged, with the cause.
                let late = guest("late", "n1", StockWork::Idle);
                skipped(&guests, &late, Reason::NamespaceNotAllowed).await?;
                let host = StockPod::new("host", StockWork::Idle).inject("kv");
                let host = host.host_network();
                skipped(&namespace, &host, Reason::HostNetworkNotAllowed).await?;

                // On its own node it reaches pool pods from the address of the bridge, not of the Node.
                let (subnet, _) = pool_pod.rsplit_once('.').context("not an IPv4 address")?;
                let access = format!("{{allowHostNetwork: true, addresses: [{subnet}.1]}}");
                apply(&namespace, &access).await?;
                pool.ready(WAIT).await?;
                let host = StockPod::new("allowed", StockWork::verify(KEYS, BYTES));
                let host = host.node("n1").inject("kv").host_network();
                let report = host.run(&namespace, WAIT).await?;
                ensure!(
                    report.done == u64::from(KEYS) && report.wrong == 0,
                    "{report:?}"
                );
                Ok(())
            })
            .await
        })
        .await
}

async fn apply(namespace: &Namespace, access: &str) -> anyhow::Result<Pool> {
    let spec =
        format!("{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], access: {access}}}");
    Pool::apply(namespace, "kv", &spec).await
}

/// Whether a pool pod answers the pod `guest`.
async fn answered(guests: &Namespace, pool_pod: &str) -> anyhow::Result<bool> {
    let port = POOL_HANDSHAKE_PORT.to_string();
    let words = ["python3", "-c", HANDSHAKE, pool_pod, &port];
    let bytes = guests.exec("guest", "main", &words, WAIT).await?;
    Ok(bytes.trim() != "0")
}

async fn skipped(namespace: &Namespace, pod: &StockPod, reason: Reason) -> anyhow::Result<()> {
    pod.start(namespace).await?;
    let pod: Pod = namespace.pod_ready(&pod.name, WAIT).await?;
    let why = pod.annotations().get(ANNOTATION_SKIPPED);
    ensure!(
        why.is_some_and(|why| why.starts_with(reason.as_str())),
        "{}: {why:?}",
        pod.name_any()
    );
    Ok(())
}

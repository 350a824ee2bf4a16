//! What `spec.access` grants to pods of other namespaces, until it is withdrawn, and what ends with a pod.

use anyhow::{Context, ensure};
use crds::names::{ANNOTATION_SKIPPED, POOL_DATA_PORT, POOL_HANDSHAKE_PORT};
use crds::{ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use mooncake_e2e::scenario::pool::ip;
use mooncake_e2e::scenario::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, processes, with_namespace,
};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::process::{Child, Command};

const WAIT: Duration = Duration::from_secs(120);
/// An agent learns of a withdrawn admission by its watch of EndpointSlices.
const WITHDRAWN: Duration = Duration::from_secs(30);
/// Seconds from the withdrawal or the deletion of a pod to the end of an open connection.
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

/// Keeps a connection to the data port of a pool pod, from a port of its own.
const KEEP: &str = r#"
import socket, sys, time
host, port, own = sys.argv[1], *map(int, sys.argv[2:])
with socket.create_connection((host, port), timeout=5, source_address=("", own)):
    time.sleep(300)
"#;
const KEPT_PORT: u16 = 23456;

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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn connections_of_a_deleted_pod_end_although_its_process_goes_on() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("deleted", async move |_, namespace| {
            let pool = apply(&namespace, "{}").await?;
            pool.ready(WAIT).await?;
            let guest = StockPod::new("guest", StockWork::Idle).node("n1");
            guest.inject("kv").start(&namespace).await?;
            let guest = namespace.pod_ready("guest", WAIT).await?;
            let pool_pod = pool.pod_on("n2").await?;
            let mut held = keep(&guest, &ip(&pool_pod)?)?;
            let address = SocketAddr::new(ip(&guest)?.parse()?, KEPT_PORT);
            let pool_process = processes::of_pod(&pool_pod, "/pool serve")?;
            let pool_process = pool_process.first().context("just found")?;
            let open = || pool_process.connections_to(address);
            eventually("the connection", WAIT, || async {
                let count = open()?;
                Ok(Seen::when((count == 1).then_some(()), count))
            })
            .await?;
            let pods = namespace.api::<Pod>();
            let at_once = DeleteParams::default().grace_period(0);
            pods.delete("guest", &at_once).await?;
            eventually("the deletion of the guest", WAIT, || async {
                let found = pods.get_opt("guest").await?;
                Ok(Seen::when(found.is_none().then_some(()), "it is there"))
            })
            .await?;
            let deleted = Instant::now();
            eventually("the end of the connection", WAIT, || async {
                let count = open()?;
                Ok(Seen::when((count == 0).then_some(()), count))
            })
            .await?;
            let after = deleted.elapsed().as_secs_f64();
            println!("a connection of a deleted pod ended {after:.1} s after the deletion");
            ensure!(after < ENDED, "{after:.1} s");
            let ended = held.try_wait()?;
            ensure!(ended.is_none(), "the other end ended by itself: {ended:?}");
            Ok(())
        })
        .await
}

/// Keeps a connection from the network of a pod to the data port of a pool pod, by a process that does not end with the pod.
fn keep(guest: &Pod, pool_pod: &str) -> anyhow::Result<Child> {
    let container = processes::of_pod(guest, "sleep")?;
    let container = container.first().context("just found")?;
    let program = Command::new("nsenter")
        .arg(format!("--net=/proc/{}/ns/net", container.recorded.pid))
        .args(["python3", "-c", KEEP, pool_pod])
        .args([POOL_DATA_PORT, KEPT_PORT].map(|port| port.to_string()))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(program)
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

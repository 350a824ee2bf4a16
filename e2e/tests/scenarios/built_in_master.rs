//! A MooncakeCluster with the built-in master: stock pods get the results that they get from stock masters, and pods without
//! access read and remove nothing.

use super::master_restart::replace_pod;
use super::stock_operations::{OPERATIONS_LEAST, operations, same, stock_segments, work};
use anyhow::ensure;
use crds::cluster::MasterType;
use crds::names::{MASTER_ADMIN_PORT, MASTER_OPEN_PORT, master_endpoint};
use mooncake_e2e::scenario::pool::{READY, ip};
use mooncake_e2e::scenario::{
    Namespace, Pool, Product, Seen, StockPod, StockWork, eventually, master, with_namespace,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const REACH: &str = include_str!("../workload/reach.py");
/// Prints whether a GET is answered, or the connection ends without an answer.
const GET: &str = "import http.client, sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=10).read()
    print('served')
except (ConnectionError, http.client.RemoteDisconnected):
    print('closed')
except OSError as error:
    closed = isinstance(getattr(error, 'reason', None), ConnectionError)
    print('closed' if closed else f'unclear: {error}')";
const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(180);
/// For a change of the admitted addresses to arrive at the master.
const ADMISSION: Duration = Duration::from_secs(60);
const ATTEMPT: Duration = Duration::from_secs(30);

/// The built-in masters of a new cluster.
const MASTERS: &str = "{type: BuiltIn}";

/// Applies the cluster `kv` with these masters and waits until it is Ready.
async fn pool(namespace: &Namespace, masters: &str) -> anyhow::Result<Pool> {
    let spec =
        format!("{{pools: [{{name: default, size: 256Mi, drainSeconds: 2}}], master: {masters}}}");
    let pool = Pool::apply(namespace, "kv", &spec).await?;
    pool.ready(READY).await?;
    let status = pool.object().await?.status.unwrap_or_default();
    ensure!(
        status.master_type == Some(MasterType::BuiltIn.into()),
        "status.masterType: {:?}",
        status.master_type
    );
    Ok(pool)
}

/// Runs a stock pod that puts or verifies all `keys`.
async fn all_done(
    namespace: &Namespace,
    (name, node): (&str, &str),
    work: StockWork,
    keys: u32,
) -> anyhow::Result<()> {
    let report = StockPod::new(name, work)
        .node(node)
        .inject("kv")
        .run(namespace, WAIT)
        .await?;
    ensure!(
        report.done == u64::from(keys) && report.wrong == 0,
        "{name}: {report:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn stock_pods_put_get_and_remove_through_the_built_in_master() -> anyhow::Result<()> {
    let product = Product::shared().await?;
    product
        .run("builtin", async move |_, namespace| {
            let stock = operations(&namespace, stock_segments(&namespace).await?).await?;
            pool(&namespace, MASTERS).await?;
            // First: they count all keys.
            let ours = operations(&namespace, StockPod::new("ours", work()).inject("kv")).await?;
            same(&stock, &ours, OPERATIONS_LEAST)?;
            let keys = 128;
            let put = StockWork::put(keys, MIB);
            all_done(&namespace, ("writer", "n1"), put, keys).await?;
            let verify = StockWork::verify(keys, MIB);
            all_done(&namespace, ("reader", "n2"), verify, keys).await
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn every_key_is_read_again_after_the_only_built_in_master_was_replaced() -> anyhow::Result<()>
{
    let product = Product::shared().await?;
    product
        .run("ledger", async move |_, namespace| {
            let pool = pool(&namespace, "{type: BuiltIn, replicas: 1}").await?;
            ledgers(&pool, 2).await?;
            let keys = 128;
            let put = StockWork::put(keys, MIB);
            all_done(&namespace, ("writer", "n1"), put, keys).await?;
            replace_pod(&pool).await?;
            let ready = Instant::now();
            ledgers(&pool, 2).await?;
            println!(
                "mounted again {:.1} s after the new master was Ready",
                ready.elapsed().as_secs_f64()
            );
            let verify = StockWork::verify(keys, MIB);
            all_done(&namespace, ("reader", "n2"), verify, keys).await
        })
        .await
}

/// Waits until the master has the ledgers of this number of segments. This process may read metrics only.
pub(super) async fn ledgers(pool: &Pool, segments: usize) -> anyhow::Result<()> {
    let what = format!("{segments} loaded ledgers");
    eventually(what, WAIT, || async {
        let metrics = master::get(&pool.master_ip().await?, MASTER_OPEN_PORT, "/metrics").await?;
        let seen: Vec<_> = metrics
            .lines()
            .filter(|line| line.starts_with("mooncake_ledger_"))
            .collect();
        let loaded = [
            format!("mooncake_ledger_segments {segments}"),
            "mooncake_ledger_loading_segments 0".to_owned(),
        ];
        let done = loaded.iter().all(|line| seen.contains(&line.as_str()));
        Ok(Seen::when(done.then_some(()), seen.join("; ")))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn pods_without_access_read_and_remove_nothing_through_the_built_in_master()
-> anyhow::Result<()> {
    let product = Product::shared_by_waiting().await?;
    product
        .run("strangers", async move |product, namespace| {
            let pool = pool(&namespace, MASTERS).await?;
            let keys = 16;
            let put = StockWork::put(keys, MIB);
            all_done(&namespace, ("writer", "n1"), put, keys).await?;
            let ip = pool.master_ip().await?;
            let paths = ["get_all_keys", "get_segments_detail", "metrics"];
            let urls = paths.map(|path| format!("http://{ip}:{MASTER_ADMIN_PORT}/{path}"));
            // The key and the address are not reached.
            let arguments = ["k".to_owned(), "0".to_owned()];
            let work = StockWork::Program {
                text: REACH,
                arguments: arguments.into_iter().chain(urls).collect(),
            };
            let endpoint = master_endpoint("kv", &namespace.name);
            let stranger = |name: &str| StockPod::new(name, work.clone()).master(&endpoint);
            reads_nothing(&namespace, &stranger("unlabelled")).await?;
            // Only the webhook gives access, and the cluster is in another namespace.
            let foreign = stranger("foreign").inject("kv");
            with_namespace(&product.cluster, "stranger", async move |other| {
                reads_nothing(&other, &foreign).await
            })
            .await?;
            admitted_while_listed(&namespace, &ip).await?;
            let verify = StockWork::verify(keys, MIB);
            all_done(&namespace, ("reader", "n2"), verify, keys).await
        })
        .await
}

/// Runs a pod without access, which must not get a byte from the master.
async fn reads_nothing(namespace: &Namespace, stranger: &StockPod) -> anyhow::Result<()> {
    stranger.start(namespace).await?;
    namespace.pod_succeeded(&stranger.name, WAIT).await?;
    let log = namespace.logs(&stranger.name, "main").await?;
    let attempts: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &Value| line.get("attempt").is_some())
        .collect();
    // Two for each URL, and one by the stock client.
    ensure!(attempts.len() == 3 * 2 + 1, "attempts: {attempts:?}");
    for attempt in attempts {
        let refused = attempt["attempt"] != "stock"
            || attempt["master"]
                .as_str()
                .is_some_and(|master| master.starts_with("rejected"));
        ensure!(
            attempt["read"] == 0 && attempt["written"] != true && refused,
            "{} reached the master: {attempt}",
            stranger.name
        );
    }
    Ok(())
}

/// An address may read while it is in `spec.access.addresses`, and not before and after.
async fn admitted_while_listed(namespace: &Namespace, master: &str) -> anyhow::Result<()> {
    let guest = StockPod::new("guest", StockWork::Idle).node("n1");
    guest.start(namespace).await?;
    let address = ip(&namespace.pod_ready(&guest.name, WAIT).await?)?;
    reaches(namespace, master, false).await?;
    allow(namespace, &[&address]).await?;
    reaches(namespace, master, true).await?;
    allow(namespace, &[]).await?;
    reaches(namespace, master, false).await
}

/// Sets `spec.access.addresses`.
async fn allow(namespace: &Namespace, addresses: &[&str]) -> anyhow::Result<()> {
    let patch = json!({"spec": {"access": {"addresses": addresses}}}).to_string();
    let words = [
        "patch",
        "mooncakecluster",
        "kv",
        "--type=merge",
        "--patch",
        &patch,
    ];
    namespace.kubectl(&words).await.map(|_| ())
}

/// Waits until new connections of the pod `guest` are served, or no longer.
async fn reaches(namespace: &Namespace, master: &str, served: bool) -> anyhow::Result<()> {
    let url = format!("http://{master}:{MASTER_ADMIN_PORT}/get_all_keys");
    let words = ["python3", "-c", GET, &url];
    let what = format!("the guest's connections are served: {served}");
    eventually(what, ADMISSION, || async {
        let seen = namespace.exec("guest", "main", &words, ATTEMPT).await?;
        let now = match seen.trim() {
            "served" => Some(true),
            "closed" => Some(false),
            _ => None,
        };
        Ok(Seen::when((now == Some(served)).then_some(()), seen))
    })
    .await
}

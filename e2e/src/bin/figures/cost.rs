//! Measures memory with a used pool, and processor time and API writes of an idle cluster.

use crate::setup::{STORING, Setup};
use crate::table::{Table, mebibytes, number};
use crate::throughput;
use anyhow::Context;
use crds::names::COMPONENT_OPERATOR;
use k8s_openapi::api::core::v1::Pod;
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::scenario::audit::{Audit, Write};
use mooncake_e2e::scenario::{Charges, Pool, Seen, eventually};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The operator reads the master's usage once a minute.
const SETTLED: Duration = Duration::from_secs(150);
const SMALL: &str = "figures";
const HUGE: &str = "huge";
/// The smallest valid pool.
const LEAST: u64 = 16 << 20;

/// Measures a pool of 4 KiB pages: time to Ready, throughput, and memory after all of it was used.
pub(crate) async fn of_small_pages(setup: &Setup, table: &mut Table) -> anyhow::Result<Pool> {
    let bytes = setup.args.pool << 20;
    let before = setup.agent().await?;
    let applied = Instant::now();
    let pool = setup.pool(SMALL, bytes, "4Ki").await?;
    let ready = applied.elapsed().as_secs_f64();
    throughput::measure(setup, &pool, bytes, table).await?;
    table.title(
        "kubectl apply of a MooncakeCluster to Ready",
        &[&format!("{ready:.1} s")],
    );
    let after = setup.agent().await?;
    table.title(
        format!("memory, a pool of {} MiB on {STORING}", setup.args.pool),
        &[],
    );
    table.row(
        "  agent before the pool was created, RssAnon + RssFile",
        [mebibytes(number(before.private))],
    );
    table.row(
        "  agent, RssAnon + RssFile",
        [mebibytes(number(after.private))],
    );
    for pod in setup.product.pods(COMPONENT_OPERATOR).await? {
        let charges = setup.charges(&pod).await?;
        table.row("  operator, RSS", [mebibytes(number(charges.resident))]);
    }
    per_gibibyte(
        "4 KiB",
        bytes,
        (before, after),
        setup.charges(&pool.pod_on(STORING).await?).await?,
        table,
    );
    Ok(pool)
}

/// Measures the memory of a pool of 2 MiB hugepages, as large as the node allows.
pub(crate) async fn of_huge_pages(setup: &Setup, table: &mut Table) -> anyhow::Result<()> {
    let offered = setup.huge_pages().await?;
    if offered < LEAST {
        table.row(
            "  cgroup bytes per GiB of pool, 2 MiB pages",
            [format!(
                "not measured: {STORING} has {} MiB of them (vm.nr_hugepages)",
                offered >> 20
            )],
        );
        return Ok(());
    }
    let bytes = offered.min(setup.args.pool << 20);
    let before = setup.agent().await?;
    let pool = setup.pool(HUGE, bytes, "2Mi").await?;
    let own = crds::names::segment(HUGE, "default", STORING, 0);
    let plan = crate::setup::Plan {
        fill: bytes / 8 * 7,
        values: &[],
        segments: &[&own],
    };
    setup.client(STORING, HUGE, plan).await?;
    let after = setup.agent().await?;
    let charges = setup.charges(&pool.pod_on(STORING).await?).await?;
    per_gibibyte("2 MiB", bytes, (before, after), charges, table);
    Ok(())
}

fn per_gibibyte(
    pages: &str,
    pool: u64,
    (before, after): (Charges, Charges),
    pod: Charges,
    table: &mut Table,
) {
    let share = number(pool) / f64::from(1 << 30);
    let added = number(after.memory) - number(before.memory);
    table.row(
        format!("  agent's cgroup per GiB of pool, {pages} pages"),
        [mebibytes(added / share)],
    );
    table.row(
        format!("  pool pod's cgroup per GiB of pool, {pages} pages"),
        [mebibytes(number(pod.memory) / share)],
    );
    if pod.huge > 0 {
        table.row("    and of hugetlb", [mebibytes(number(pod.huge) / share)]);
    }
}

/// Measures with an idle pool.
pub(crate) async fn at_rest(setup: &Setup, pool: &Pool, table: &mut Table) -> anyhow::Result<()> {
    eventually("the status to report an empty pool", SETTLED, || async {
        let used = pool.object().await?.status.and_then(|status| status.used);
        let empty = used.as_deref() == Some("0%");
        Ok(Seen::when(empty.then_some(()), format!("{used:?} used")))
    })
    .await?;
    let watched = watched(setup, pool).await?;
    let seconds = setup.args.rest;
    tracing::info!(seconds, "measuring the idle cluster");
    let audit = Audit::from_now(&setup.product.cluster)?;
    let started = Instant::now();
    let before = charges(setup, &watched).await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = charges(setup, &watched).await?;
    let rested = started.elapsed().as_secs_f64();
    let written = audit.writes(NAMESPACE)?;
    table.title(format!("at rest, over {rested:.0} s"), &[]);
    for ((what, _), (before, after)) in watched.iter().zip(before.iter().zip(&after)) {
        let busy = after.processor.saturating_sub(before.processor);
        table.row(
            format!("  processor: {what}"),
            [format!("{:.2} %", 100.0 * busy.as_secs_f64() / rested)],
        );
    }
    let minutely = |count: usize| {
        let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        format!("{:.1}/min", count * 60.0 / rested)
    };
    table.row(
        "  writes to the API server beyond Leases",
        [minutely(written.len())],
    );
    for (write, count) in counted(&written) {
        table.row(format!("    {write}"), [minutely(count)]);
    }
    Ok(())
}

/// The measured pods, by their names in the table.
async fn watched(setup: &Setup, pool: &Pool) -> anyhow::Result<Vec<(String, Pod)>> {
    let mut watched = vec![
        (
            format!("agent of {STORING}"),
            setup.product.agent_on(STORING).await?,
        ),
        ("pool pod".to_owned(), pool.pod_on(STORING).await?),
    ];
    for pod in setup.product.pods(COMPONENT_OPERATOR).await? {
        watched.push(("operator".to_owned(), pod));
    }
    Ok(watched)
}

async fn charges(setup: &Setup, watched: &[(String, Pod)]) -> anyhow::Result<Vec<Charges>> {
    let mut charges = Vec::new();
    for (what, pod) in watched {
        charges.push(setup.charges(pod).await.with_context(|| what.clone())?);
    }
    Ok(charges)
}

/// The kinds of writes with their counts.
fn counted(writes: &[Write]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for write in writes {
        let kind = format!(
            "{}: {} {} {}",
            write.pod, write.verb, write.resource, write.name
        );
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

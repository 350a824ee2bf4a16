//! The subcommands of `agent`: `facts`, `containers`, `record`, `inventory` and `checks` describe a node, `fix`
//! changes it.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use crds::{MooncakeNodeSpec, Verdict};
use serde::Serialize;

use crate::facts::containers::POD_DEADLINE;
use crate::facts::hardware::{DEVICE_DEADLINE, Request};
use crate::facts::{gpu_probe, rdma_probe, runtime};
use checks::fixes::apply;
use checks::fixes::step::Change;
use checks::{CATALOG, CheckInput, CheckRun, run_checks, table};
use host::inventory::inventory as describe;
use host::live::{self, KernelLog, Node};
use host::recording::Entry;
use host::scrub::Scrub;
use host::snapshot::{gpu_report_file, hca_report_file};
use host::{Host, Snapshot};

/// Prints a snapshot of the node's hardware as one line of JSON for each request, until standard input ends. Does not
/// wait for devices that block a thread.
///
/// # Errors
/// The root cannot be opened, a request is not valid, or standard output is closed.
pub(crate) fn facts(node: &Node) -> anyhow::Result<()> {
    for line in std::io::stdin().lines() {
        let Request { silent, log } = serde_json::from_str(&line?).context("invalid request")?;
        let snapshot = live::read(node, &silent, log, DEVICE_DEADLINE)
            .with_context(|| format!("cannot read the node at {}", node.root.display()))?;
        write_line(&snapshot)?;
    }
    Ok(())
}

fn write_line(value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}

/// Prints the facts of the containers of pods as one line of JSON. Does not wait for files that block a thread.
///
/// # Errors
/// The root cannot be opened, or standard output is closed.
pub(crate) fn containers(root: &Path, pods: Vec<String>) -> anyhow::Result<()> {
    let containers =
        host::container::live::read(root, &pods.into_iter().collect(), POD_DEADLINE)
            .with_context(|| format!("cannot read the processes below {}", root.display()))?;
    write_line(&containers)
}

/// Applies the changes and prints their outcomes as one line of JSON.
///
/// # Errors
/// The changes are invalid, or standard output is closed.
pub(crate) fn fix(node: &Node, changes: &str) -> anyhow::Result<()> {
    let changes: Vec<Change> = serde_json::from_str(changes).context("invalid changes")?;
    let outcomes = apply::apply_changes(node, &changes);
    write_line(&outcomes)
}

/// Writes a recording of the node.
///
/// # Errors
/// The root cannot be read, or the file cannot be written.
pub(crate) fn record(node: &Node, file: &Path) -> anyhow::Result<()> {
    let (mut snapshot, mut recording) = live::record(node)
        .with_context(|| format!("cannot read the node at {}", node.root.display()))?;
    probe(node, &mut snapshot)?;
    let mut insert = |file: &str, report: serde_json::Result<String>| {
        recording.insert(file, Entry::Text(report?));
        anyhow::Ok(())
    };
    if let Some(runtime) = &snapshot.runtime {
        insert(host::runtime::FILE, serde_json::to_string(runtime))?;
    }
    for (name, report) in &snapshot.hca_reports {
        insert(&hca_report_file(name), serde_json::to_string(report))?;
    }
    // Without GPU-RDMA probes: only the worker knows which devices are in use.
    for (address, report) in &snapshot.gpu_reports {
        insert(&gpu_report_file(address), serde_json::to_string(report))?;
    }
    let facts = &snapshot.facts;
    let scrubbed = Scrub::default().recording(&recording);
    let by = concat!("# from `agent record`, version ", env!("CARGO_PKG_VERSION"));
    std::fs::write(file, scrubbed.render(by))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!(
        "{}: {} files, {} RDMA devices, {} GPUs, {} unreadable; GUIDs, addresses and UUIDs are \
         replaced; review the file before you share it",
        file.display(),
        scrubbed.entries().count(),
        facts.hcas.len(),
        facts.gpus.len(),
        facts.faults.len(),
    );
    Ok(())
}

/// Prints the inventory that the agent would write.
///
/// # Errors
/// The root or the recording cannot be read.
pub(crate) fn inventory(node: &Node, recording: Option<&Path>) -> anyhow::Result<()> {
    let snapshot = snapshot(node, recording)?;
    println!(
        "{}",
        serde_json::to_string_pretty(&describe(&snapshot, "", None))?
    );
    Ok(())
}

/// Prints the results of all checks. Returns false if a check fails.
///
/// # Errors
/// The root or the recording cannot be read.
pub(crate) fn checks(node: &Node, recording: Option<&Path>, json: bool) -> anyhow::Result<bool> {
    let snapshot = snapshot(node, recording)?;
    let spec = MooncakeNodeSpec::default();
    let round = run_checks(CATALOG, &CheckInput::of(&snapshot, &spec));
    if json {
        let lines = table::lines(&round);
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        print!("{}", table::text(&round));
    }
    let fails = |judged: &CheckRun| judged.worst() == Some(Verdict::Fail);
    Ok(!round.iter().any(fails))
}

/// Adds the reports of RDMA devices and GPUs of a live node, if the probe programs exist, and the configuration of the
/// container runtime.
fn probe(node: &Node, snapshot: &mut Snapshot) -> anyhow::Result<()> {
    if node.root.is_file() {
        return Ok(());
    }
    let tasks = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tasks.block_on(async {
        // The node may have no container runtime.
        snapshot.runtime = runtime::once(node).await.ok();
        rdma_probe::once(node, snapshot).await;
        gpu_probe::once(node, snapshot).await;
    });
    Ok(())
}

fn snapshot(node: &Node, recording: Option<&Path>) -> anyhow::Result<Snapshot> {
    let Some(file) = recording else {
        let mut snapshot = live::read(node, &<_>::default(), KernelLog::Read, DEVICE_DEADLINE)
            .with_context(|| format!("cannot read the node at {}", node.root.display()))?;
        probe(node, &mut snapshot)?;
        return Ok(snapshot);
    };
    let read = || anyhow::Ok(Host::parse(&std::fs::read_to_string(file)?)?);
    let host = read().with_context(|| format!("cannot read {}", file.display()))?;
    Ok(host.snapshot())
}

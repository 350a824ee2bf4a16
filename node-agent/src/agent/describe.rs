//! The commands that tell what a node is: `facts`, `containers`, `record`, `inventory` and `checks`; and
//! `fix`, which changes it.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use crds::Verdict;
use serde::Serialize;

use super::canary;
use super::containers;
use super::gpus;
use super::hardware::PATIENCE;
use super::inventory::inventory as of;
use crate::checks::{CATALOG, Judged, World, judge, table};
use crate::fixes::hand;
use crate::fixes::plan::Change;
use crate::host::container::look::look;
use crate::host::gpu::Gpu;
use crate::host::hca::Hca;
use crate::host::recording::{Entry, Recording};
use crate::host::round::{self, Node};
use crate::host::scrub::Scrub;
use crate::host::{Facts, Host, runtime};

/// Writes the facts of the node as one line, and ends without waiting for devices that
/// hold a thread.
///
/// # Errors
/// If the root cannot be opened, or nobody reads the line.
pub fn facts(node: &Node, silent: Vec<String>) -> anyhow::Result<()> {
    let facts = round::look(node, &silent.into_iter().collect(), PATIENCE)
        .with_context(|| format!("looking at {}", node.root.display()))?;
    write_line(&facts)
}

fn write_line(facts: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(facts)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}

/// Writes what is known of the containers of pods as one line, and ends without waiting for files that
/// hold a thread.
///
/// # Errors
/// If the root cannot be opened, or nobody reads the line.
pub fn containers(root: &Path, pods: Vec<String>) -> anyhow::Result<()> {
    let containers = look(root, &pods.into_iter().collect(), containers::PATIENCE)
        .with_context(|| format!("looking at the processes below {}", root.display()))?;
    write_line(&containers)
}

/// Carries out the changes, and writes what came of each as one line.
///
/// # Errors
/// If the changes are none, or nobody reads the line.
pub fn fix(node: &Node, changes: &str) -> anyhow::Result<()> {
    let changes: Vec<Change> = serde_json::from_str(changes).context("reading the changes")?;
    let outcomes = hand::carry_out(node, &changes);
    println!("{}", serde_json::to_string(&outcomes)?);
    Ok(())
}

/// Writes a recording of the node.
///
/// # Errors
/// If the root cannot be read or the file not be written.
pub fn record(node: &Node, file: &Path) -> anyhow::Result<()> {
    let (mut facts, mut recording) =
        round::record(node).with_context(|| format!("reading {}", node.root.display()))?;
    tried(node, &mut facts)?;
    if let Some(runtime) = &facts.runtime {
        let answer = serde_json::to_string(runtime)?;
        recording.insert(runtime::FILE, Entry::Text(answer));
    }
    for hca in &facts.hcas {
        if let Some(answer) = &hca.verbs {
            let answer = serde_json::to_string(answer)?;
            recording.insert(&Hca::answer_file(&hca.name), Entry::Text(answer));
        }
    }
    // Which RDMA devices reach their memory is proved by the agent alone, which knows who uses them.
    for gpu in &facts.gpus {
        if let Some(answer) = &gpu.answer {
            let answer = serde_json::to_string(answer)?;
            recording.insert(&Gpu::answer_file(&gpu.pci.address), Entry::Text(answer));
        }
    }
    let scrubbed = Scrub::default().recording(&recording);
    let by = concat!("# from `agent record`, version ", env!("CARGO_PKG_VERSION"));
    std::fs::write(file, scrubbed.render(by))
        .with_context(|| format!("writing {}", file.display()))?;
    println!(
        "{}: {} files, {} RDMA devices, {} GPUs, {} unreadable; GUIDs, addresses and UUIDs are \
         replaced, read it before you pass it on",
        file.display(),
        scrubbed.entries().count(),
        facts.hcas.len(),
        facts.gpus.len(),
        facts.faults.len(),
    );
    Ok(())
}

/// Shows the inventory as the agent would write it.
///
/// # Errors
/// If root or recording cannot be read.
pub fn inventory(node: &Node, recording: Option<&Path>) -> anyhow::Result<()> {
    let facts = facts_of(node, recording)?;
    println!("{}", serde_json::to_string_pretty(&of(&facts, ""))?);
    Ok(())
}

/// Shows what the checks say of one look. False where one fails.
///
/// # Errors
/// If root or recording cannot be read.
pub fn checks(node: &Node, recording: Option<&Path>, json: bool) -> anyhow::Result<bool> {
    let facts = facts_of(node, recording)?;
    let round = judge(CATALOG, &World::idle(&facts));
    if json {
        let lines = table::lines(&round);
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        print!("{}", table::text(&round));
    }
    let fails = |judged: &Judged| judged.worst() == Some(Verdict::Fail);
    Ok(!round.iter().any(fails))
}

/// Has each RDMA device and each GPU of a live node do something, where the programs for that are there, and
/// asks the container runtime.
fn tried(node: &Node, facts: &mut Facts) -> anyhow::Result<()> {
    if node.root.is_file() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // One that is not there is not asked.
        facts.runtime = super::runtime::once(node).await.ok();
        if let Some(program) = canary::program() {
            canary::once(&program, node, facts).await;
        }
        if let Some(program) = gpus::program() {
            gpus::once(&program, node, facts).await;
        }
    });
    Ok(())
}

fn facts_of(node: &Node, recording: Option<&Path>) -> anyhow::Result<Facts> {
    let Some(file) = recording else {
        let mut facts = round::look(node, &<_>::default(), PATIENCE)
            .with_context(|| format!("looking at {}", node.root.display()))?;
        tried(node, &mut facts)?;
        return Ok(facts);
    };
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let recording =
        Recording::parse(&text).with_context(|| format!("reading {}", file.display()))?;
    Ok(Host::recorded(recording).facts())
}

//! NUMA nodes, their memory and their hugepages.

use serde::{Deserialize, Serialize};

use super::tree::Tree;

/// One NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    pub id: u32,
    /// In bytes.
    pub memory: Option<u64>,
    /// In bytes.
    pub free: Option<u64>,
    /// What could be had without harm to others, in bytes: what is free, and half of what file pages and
    /// slabs hold that can be dropped.
    pub available: Option<u64>,
    /// False for memory beside which there are no processors, such as a GPU's.
    pub processors: bool,
    pub distances: Vec<u32>,
    pub hugepages: Vec<Hugepages>,
}

/// Hugepages of one size, in pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// In bytes.
    pub page_size: u64,
    pub total: Option<u64>,
    pub free: Option<u64>,
    /// Promised but not taken yet; the kernel counts these for all NUMA nodes together.
    pub reserved: Option<u64>,
}

/// NUMA nodes that have memory.
pub(super) fn numa_nodes(tree: &Tree) -> Vec<NumaNode> {
    let at = "sys/devices/system/node";
    let path = format!("{at}/has_memory");
    let ids = tree
        .text(&path)
        .map(|text| engine::parse_list(&text))
        .unwrap_or_default();
    let path = format!("{at}/has_cpu");
    let near = tree.text(&path).map(|text| engine::parse_list(&text));
    ids.iter()
        .map(|id| {
            let processors = near.as_ref().is_none_or(|near| near.contains(id));
            numa_node(tree, &format!("{at}/node{id}"), *id, processors)
        })
        .collect()
}

fn numa_node(tree: &Tree, at: &str, id: u32, processors: bool) -> NumaNode {
    let path = format!("{at}/meminfo");
    let meminfo = tree.need(&path);
    let of = |name: &str| tree.parsed(&path, meminfo.as_ref()?, |text| amount(text, name));
    let free = of("MemFree");
    let dropped = ["Active(file)", "Inactive(file)", "SReclaimable"]
        .iter()
        .filter_map(|name| amount(meminfo.as_ref()?, name))
        .fold(0, u64::saturating_add);
    let path = format!("{at}/distance");
    let distances = tree.text(&path).and_then(|text| {
        tree.parsed(&path, text, |text| {
            let words = text.split_ascii_whitespace();
            words
                .map(|word| word.parse().ok())
                .collect::<Option<Vec<u32>>>()
        })
    });
    NumaNode {
        id,
        memory: of("MemTotal"),
        free,
        available: free.map(|free| free.saturating_add(dropped / 2)),
        processors,
        distances: distances.unwrap_or_default(),
        hugepages: hugepages(tree, &format!("{at}/hugepages")),
    }
}

/// In bytes. Each line begins with the number of the node.
fn amount(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| {
        let (node, rest) = line.split_once(name)?;
        let whole = node.is_empty() || node.ends_with(' ');
        rest.strip_prefix(':').filter(|_| whole)
    })?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// Those of the whole machine, which alone knows what is reserved.
pub(super) fn all_hugepages(tree: &Tree) -> Vec<Hugepages> {
    hugepages(tree, "sys/kernel/mm/hugepages")
}

fn hugepages(tree: &Tree, at: &str) -> Vec<Hugepages> {
    let mut found: Vec<Hugepages> = tree
        .list(at)
        .iter()
        .filter_map(|name| {
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            let page_size = size.parse::<u64>().ok()?.checked_mul(1 << 10)?;
            let number = |file: &str| tree.value(&format!("{at}/{name}/{file}"));
            Some(Hugepages {
                page_size,
                total: number("nr_hugepages"),
                free: number("free_hugepages"),
                reserved: number("resv_hugepages"),
            })
        })
        .collect();
    found.sort_unstable_by_key(|pages| pages.page_size);
    found
}

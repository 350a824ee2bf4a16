//! Memory and hugepages of the machine and of its NUMA nodes.

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
    /// In bytes: free memory, and half of the reclaimable file pages and slabs.
    pub available: Option<u64>,
    /// False for memory without CPUs, such as a GPU's.
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
    /// Reserved for mappings but not yet faulted in. The kernel counts these for the whole machine only.
    pub reserved: Option<u64>,
}

impl Hugepages {
    /// The pages of a size, in bytes; none where the kernel does not support it.
    pub fn of_size(all: &[Self], page_size: u64) -> Option<&Self> {
        all.iter().find(|pages| pages.page_size == page_size)
    }
}

/// Memory of the machine, in bytes.
pub(super) fn total(tree: &Tree) -> Option<u64> {
    let path = "proc/meminfo";
    tree.parsed(path, tree.text(path)?, |text| amount(text, "MemTotal"))
}

/// NUMA nodes that have memory.
pub(super) fn numa_nodes(tree: &Tree) -> Vec<NumaNode> {
    let at = "sys/devices/system/node";
    let path = format!("{at}/has_memory");
    let ids = tree
        .text(&path)
        .map(|text| sys::numa::parse_id_list(&text))
        .unwrap_or_default();
    let path = format!("{at}/has_cpu");
    let with_cpus = tree.text(&path).map(|text| sys::numa::parse_id_list(&text));
    ids.iter()
        .map(|id| {
            let processors = with_cpus.as_ref().is_none_or(|ids| ids.contains(id));
            numa_node(tree, &format!("{at}/node{id}"), *id, processors)
        })
        .collect()
}

fn numa_node(tree: &Tree, at: &str, id: u32, processors: bool) -> NumaNode {
    let path = format!("{at}/meminfo");
    let meminfo = tree.need(&path);
    let of = |name: &str| tree.parsed(&path, meminfo.as_ref()?, |text| amount(text, name));
    let free = of("MemFree");
    let reclaimable = ["Active(file)", "Inactive(file)", "SReclaimable"]
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
        available: free.map(|free| free.saturating_add(reclaimable / 2)),
        processors,
        distances: distances.unwrap_or_default(),
        hugepages: hugepages(tree, &format!("{at}/hugepages")),
    }
}

/// One line of a meminfo file, in bytes. In the file of a NUMA node each line begins with `Node` and its number.
fn amount(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| {
        let (node, rest) = line.split_once(name)?;
        let whole = node.is_empty() || node.ends_with(' ');
        rest.strip_prefix(':').filter(|_| whole)
    })?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

/// Hugepages of the whole machine, with the reserved ones.
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

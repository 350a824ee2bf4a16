//! On which processors each data thread runs: those of one NUMA node, where a machine has several.

use std::io;
use std::path::Path;

use rustix::thread::CpuSet;

/// A NUMA node, with those of its processors that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) id: u32,
    pub(crate) processors: Vec<u32>,
}

/// The node for each of `threads` data threads, so that each node gets them in proportion to its
/// processors. None of them where there is nothing to choose between.
pub(crate) fn plan(nodes: &[Node], threads: usize) -> Vec<Option<&Node>> {
    let nodes: Vec<&Node> = nodes
        .iter()
        .filter(|node| !node.processors.is_empty())
        .collect();
    if nodes.len() < 2 {
        return vec![None; threads];
    }
    let mut taken = vec![0_usize; nodes.len()];
    let next = |_| {
        // The node on which this thread would have the most processors to itself.
        let (index, node) = nodes.iter().enumerate().max_by(|(a, one), (b, other)| {
            let left = one.processors.len() * (taken[*b] + 1);
            let right = other.processors.len() * (taken[*a] + 1);
            // Equals are taken in their order.
            left.cmp(&right).then(b.cmp(a))
        })?;
        taken[index] += 1;
        Some(*node)
    };
    (0..threads).map(next).collect()
}

/// The machine's NUMA nodes; none where the kernel has no NUMA.
pub(crate) fn nodes(sysfs: &Path) -> Vec<Node> {
    // What cannot be asked forbids nothing.
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let may_use = |processor: &u32| {
        let index = *processor as usize;
        index < CpuSet::MAX_CPU && allowed.is_none_or(|allowed| allowed.is_set(index))
    };
    let folder = sysfs.join("devices/system/node");
    let online = std::fs::read_to_string(folder.join("online")).unwrap_or_default();
    let node = |id| {
        let list = folder.join(format!("node{id}/cpulist"));
        let processors = parse_list(&std::fs::read_to_string(list).ok()?);
        let processors = processors.into_iter().filter(may_use).collect();
        Some(Node { id, processors })
    };
    parse_list(&online).into_iter().filter_map(node).collect()
}

/// Keeps the calling thread on a node's processors.
pub(crate) fn stay_on(node: &Node) -> io::Result<()> {
    let mut set = CpuSet::new();
    for processor in &node.processors {
        set.set(*processor as usize);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The kernel's list format: `0-1,4`.
#[must_use]
pub fn parse_list(text: &str) -> Vec<u32> {
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `online` and each node's `cpulist`, as machines show them in sysfs.
    fn machine(online: &str, lists: &[(u32, &str)]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let folder = sysfs.path().join("devices/system/node");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("online"), online).unwrap();
        for (id, list) in lists {
            let node = folder.join(format!("node{id}"));
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), list).unwrap();
        }
        sysfs
    }

    fn recorded(lists: &[(u32, &str)]) -> Vec<Node> {
        let node = |(id, list): &(u32, &str)| Node {
            id: *id,
            processors: parse_list(list),
        };
        lists.iter().map(node).collect()
    }

    fn ids(nodes: &[Node], threads: usize) -> Vec<Option<u32>> {
        let planned = plan(nodes, threads).into_iter();
        planned.map(|node| node.map(|node| node.id)).collect()
    }

    #[test]
    fn two_sockets_share_the_threads() {
        let nodes = recorded(&[(0, "0-55,112-167\n"), (1, "56-111,168-223\n")]);
        assert_eq!(ids(&nodes, 3), [Some(0), Some(1), Some(0)]);
        let count = |id| {
            ids(&nodes, 28)
                .iter()
                .filter(|one| **one == Some(id))
                .count()
        };
        assert_eq!((count(0), count(1)), (14, 14));
        assert!(plan(&nodes, 1)[0].unwrap().processors.contains(&112));
    }

    #[test]
    fn eight_small_nodes_get_one_thread_each() {
        let lists = [
            (0, "0-7"),
            (1, "8-15"),
            (2, "16-23"),
            (3, "24-31"),
            (4, "32-39"),
            (5, "40-47"),
            (6, "48-55"),
            (7, "56-63"),
        ];
        let all: Vec<_> = (0..8).map(Some).collect();
        assert_eq!(ids(&recorded(&lists), 8), all);
    }

    #[test]
    fn nodes_that_are_memory_alone_get_none() {
        // A processor with the memory of its GPU as further nodes.
        let one = recorded(&[(0, "0-71"), (1, ""), (2, ""), (8, "")]);
        assert_eq!(ids(&one, 9), [None; 9]);
        let two = recorded(&[(0, "0-71"), (1, "72-143"), (2, ""), (10, "")]);
        assert_eq!(ids(&two, 2), [Some(0), Some(1)]);
    }

    #[test]
    fn a_node_with_few_allowed_processors_gets_few_threads() {
        let nodes = recorded(&[(0, "0-5"), (1, "48-95")]);
        let planned = ids(&nodes, 9);
        assert_eq!(planned.iter().filter(|id| **id == Some(0)).count(), 1);
    }

    #[test]
    fn one_node_or_none_binds_nothing() {
        assert_eq!(ids(&recorded(&[(0, "0-1")]), 2), [None, None]);
        assert_eq!(ids(&[], 1), [None]);
        assert_eq!(nodes(Path::new("/nonexistent")), []);
    }

    #[test]
    fn only_processors_that_this_process_may_use_count() {
        let sysfs = machine("0-1\n", &[(0, "0-1023\n"), (1, "1024-1100\n")]);
        let found = nodes(sysfs.path());
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(found[0].processors.len(), allowed.count() as usize);
        assert!(found[1].processors.is_empty());
    }

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_list("\n").is_empty());
    }
}

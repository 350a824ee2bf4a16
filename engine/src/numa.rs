//! Distributes data threads over the NUMA nodes of a machine.

use std::io;
use std::path::Path;

use rustix::thread::CpuSet;
use sys::numa::parse_id_list;

/// A NUMA node with the processors that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Processors that this process may use.
    pub processors: Vec<u32>,
}

/// Returns a node for each of `threads` data threads, in proportion to the nodes' processors. All are
/// `None` on a machine with fewer than two nodes that have processors.
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
        // The node that would have the most processors per thread.
        let (index, node) = nodes.iter().enumerate().max_by(|(a, one), (b, other)| {
            let left = one.processors.len() * (taken[*b] + 1);
            let right = other.processors.len() * (taken[*a] + 1);
            // Of equal nodes the first is chosen.
            left.cmp(&right).then(b.cmp(a))
        })?;
        taken[index] += 1;
        Some(*node)
    };
    (0..threads).map(next).collect()
}

/// Reads the machine's NUMA nodes from sysfs; empty if the kernel has no NUMA.
#[must_use]
pub fn nodes(sysfs: &Path) -> Vec<Node> {
    // Without an answer every processor counts as allowed.
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let may_use = |processor: &u32| {
        let index = *processor as usize;
        index < CpuSet::MAX_CPU && allowed.is_none_or(|allowed| allowed.is_set(index))
    };
    let folder = sysfs.join("devices/system/node");
    let online = std::fs::read_to_string(folder.join("online")).unwrap_or_default();
    let node = |id| {
        let list = folder.join(format!("node{id}/cpulist"));
        let processors = parse_id_list(&std::fs::read_to_string(list).ok()?);
        let processors = processors.into_iter().filter(may_use).collect();
        Some(Node { id, processors })
    };
    parse_id_list(&online)
        .into_iter()
        .filter_map(node)
        .collect()
}

/// Binds the calling thread to a node's processors.
pub(crate) fn bind(node: &Node) -> io::Result<()> {
    let mut set = CpuSet::new();
    for processor in &node.processors {
        set.set(*processor as usize);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a sysfs with `online` and each node's `cpulist`.
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
            processors: parse_id_list(list),
        };
        lists.iter().map(node).collect()
    }

    fn ids(nodes: &[Node], threads: usize) -> Vec<Option<u32>> {
        let planned = plan(nodes, threads).into_iter();
        planned.map(|node| node.map(|node| node.id)).collect()
    }

    #[test]
    fn threads_are_split_over_two_sockets() {
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
    fn nodes_without_processors_get_no_threads() {
        // The memory of a GPU appears as further nodes.
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
    fn threads_are_not_bound_on_a_machine_with_one_node() {
        assert_eq!(ids(&recorded(&[(0, "0-1")]), 2), [None, None]);
        assert_eq!(ids(&[], 1), [None]);
        assert_eq!(nodes(Path::new("/nonexistent")), []);
    }

    #[test]
    fn only_allowed_processors_count() {
        let sysfs = machine("0-1\n", &[(0, "0-1023\n"), (1, "1024-1100\n")]);
        let found = nodes(sysfs.path());
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(found[0].processors.len(), allowed.count() as usize);
        assert!(found[1].processors.is_empty());
    }
}

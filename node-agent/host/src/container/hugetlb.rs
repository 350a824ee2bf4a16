//! Hugepages that the processes of a container hold, and the limit of its cgroup.

use crds::cluster::PageSize;
use serde::{Deserialize, Serialize};

use super::super::folder::{CGROUP, CGROUP_2};
use super::super::tree::Tree;

/// Hugepages of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugetlb {
    /// Its processes hold some, of any size.
    pub holds: bool,
    /// Limit of its cgroup in bytes; absent where the runtime does not show it.
    pub limit: Option<u64>,
    /// A process has loaded the store, which then requests its memory.
    pub loaded: bool,
}

/// Reads the hugepages of a container with this root and these processes.
pub(super) fn read(tree: &Tree, root: &Tree, pids: &[u32], page: PageSize) -> Hugetlb {
    let holds = pids.iter().any(|pid| holds(tree, *pid));
    Hugetlb {
        holds,
        limit: limit(root, page),
        // A process that holds pages has requested them. The list of mappings may be long.
        loaded: holds || pids.iter().any(|pid| has_loaded(tree, *pid)),
    }
}

fn holds(tree: &Tree, pid: u32) -> bool {
    let status = tree.try_text(&format!("proc/{pid}/status"));
    let status = status.unwrap_or_default();
    let mut lines = status.lines();
    let held = lines.find_map(|line| line.strip_prefix("HugetlbPages:"));
    held.is_some_and(|held| held.trim() != "0 kB")
}

fn has_loaded(tree: &Tree, pid: u32) -> bool {
    let store = |line: &str| line.ends_with(".so") && line.contains("/mooncake/store.");
    tree.has_line(&format!("proc/{pid}/maps"), store)
}

/// The limit that the runtime shows to the container, if it does.
fn limit(root: &Tree, page: PageSize) -> Option<u64> {
    let size = match page {
        PageSize::Base => return None,
        PageSize::Huge2Mi => "2MB",
        PageSize::Huge1Gi => "1GB",
    };
    let own = format!("sys/fs/cgroup/hugetlb.{size}.max");
    let old = format!("sys/fs/cgroup/hugetlb/hugetlb.{size}.limit_in_bytes");
    let text = root.of_kind(&own, CGROUP_2);
    let text = text.or_else(|_| root.of_kind(&old, CGROUP));
    text.ok()?.trim().parse().ok()
}

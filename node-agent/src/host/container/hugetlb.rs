//! What the processes of a container hold of hugepages, and what the kernel lets them take.

use crds::cluster::PageSize;
use serde::{Deserialize, Serialize};

use super::super::folder::{CGROUP, CGROUP_2};
use super::super::tree::Tree;

/// Of hugepages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugetlb {
    /// They hold some, of any size.
    pub holds: bool,
    /// Bytes that its cgroup may hold; absent where that is not told.
    pub limit: Option<u64>,
    /// One of them has loaded the store, which asks for its memory then.
    pub loaded: bool,
}

/// `root` is the container's own.
pub(super) fn read(tree: &Tree, root: &Tree, pids: &[u32], page: PageSize) -> Hugetlb {
    let holds = pids.iter().any(|pid| holds(tree, *pid));
    Hugetlb {
        holds,
        limit: limit(root, page),
        // Who holds some has asked. The list of what a process has mapped may be long.
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

/// As the runtime shows it to the container, which may be told nothing of it.
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

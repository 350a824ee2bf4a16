//! Whether the kernel killed an engine process because memory was short, from the counter of its cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup;

/// The message of an engine process that the kernel killed.
pub(crate) const KILLED: &str = "The kernel killed it because memory was short. The kernel log of the node names the \
    cgroup whose limit was reached: that of the engine process, of the pool pod, or none if the node has too little memory. \
    For the pool pod, or if it happens again, report it with that part of the log; for the node, move other pods off it";

/// The count when an engine process began to be served. Its cgroup outlives it, and counts for its successors too.
#[derive(Debug)]
pub(crate) struct OomKills {
    /// Absent where the process has no cgroup of its own.
    file: Option<PathBuf>,
    before: Option<u64>,
}

impl OomKills {
    /// Begins to count. `node` is the root folder of the node.
    pub(super) fn begin(pid: u32, node: &Path) -> Self {
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        let file = cgroup
            .ok()
            .and_then(|cgroup| cgroup::oom_kills(node, &cgroup));
        let before = file.as_deref().and_then(read);
        Self { file, before }
    }

    /// Whether there was one since then.
    pub(crate) fn rose(&self) -> bool {
        let now = self.file.as_deref().and_then(read);
        self.before
            .zip(now)
            .is_some_and(|(before, now)| now > before)
    }
}

fn read(file: &Path) -> Option<u64> {
    parse(&fs::read_to_string(file).ok()?)
}

/// Parses the text of `memory.events` or of `memory.oom_control`.
fn parse(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_seen_in_the_counter_of_either_version() {
        for text in [
            "low 0\nhigh 0\nmax 41\noom 9\noom_kill 2\noom_group_kill 7\n",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("counter");
            fs::write(&file, text).unwrap();
            let kills = OomKills {
                before: read(&file),
                file: Some(file.clone()),
            };
            assert_eq!(kills.before, Some(2));
            assert!(!kills.rose());
            fs::write(&file, text.replace("oom_kill 2", "oom_kill 3")).unwrap();
            assert!(kills.rose());
            // The kubelet has removed the cgroup.
            fs::remove_file(&file).unwrap();
            assert!(!kills.rose());
        }
        // Before Linux 4.13.
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\n"), None);
        let none = OomKills::begin(u32::MAX, Path::new("/"));
        assert!(!none.rose());
    }
}

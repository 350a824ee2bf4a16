//! The pool processes of this node. The pod of a process is read from its cgroup, never from what the
//! process reports.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine_process::pidfd::Pidfd;
use sys::net::Namespace;

use host::cgroup;

use super::process_stat::Stat;

/// Process name (comm) of the pool binary.
const COMM: &str = "pool";

/// A pool process found in procfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolProcess {
    pub(crate) pid: u32,
    pub(crate) pod_uid: String,
}

/// Lists the processes with the pool's name in the cgroup of a pod, the one that was started first before the others: a probe
/// of the pool process has the same name and the same cgroup. Skips processes that end meanwhile.
///
/// # Errors
/// procfs cannot be listed.
pub(crate) fn scan(proc: &Path) -> io::Result<Vec<PoolProcess>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(proc)? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(comm) = std::fs::read_to_string(entry.path().join("comm")) else {
            continue;
        };
        if comm.trim_end() != COMM {
            continue;
        }
        // A zombie is still in procfs.
        if let Ok(process) = Process::open(proc, pid)
            && process.runs()
            && let Ok(Some(pod_uid)) = process.pod_uid()
            && let Some(stat) = Stat::read(&entry.path())
        {
            found.push((stat.started, PoolProcess { pid, pod_uid }));
        }
    }
    found.sort_by_key(|(started, _)| *started);
    Ok(found.into_iter().map(|(_, process)| process).collect())
}

/// A process held by its pidfd, so that a reused PID is detected.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    handle: Pidfd,
    proc: PathBuf,
}

impl Process {
    /// Opens the process.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn open(proc: &Path, pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            handle: Pidfd::open(pid)?,
            proc: proc.to_owned(),
        })
    }

    /// Checks whether the process still runs.
    pub(crate) fn runs(&self) -> bool {
        self.handle.runs()
    }

    /// Reads the text of its cgroup file.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn cgroup(&self) -> io::Result<String> {
        std::fs::read_to_string(self.folder().join("cgroup"))
    }

    /// Reads its `oom_score_adj`.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn oom_score_adj(&self) -> io::Result<i32> {
        let text = std::fs::read_to_string(self.folder().join("oom_score_adj"))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// Reads the UID of its pod.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn pod_uid(&self) -> io::Result<Option<String>> {
        let place = cgroup::place(&self.cgroup()?);
        Ok(place.map(|place| place.pod_uid))
    }

    /// Opens its network namespace.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn network(&self) -> io::Result<Namespace> {
        Namespace::open(&self.network_path())
    }

    /// Returns device and inode of its network namespace, for comparison.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn network_identity(&self) -> io::Result<(u64, u64)> {
        let metadata = std::fs::metadata(self.network_path())?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Path of its network namespace.
    pub(crate) fn network_path(&self) -> PathBuf {
        self.folder().join("ns/net")
    }

    fn folder(&self) -> PathBuf {
        self.proc.join(self.pid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_pool_process_is_listed_before_a_probe_with_a_lower_pid() {
        let proc = tempfile::tempdir().unwrap();
        let mut children = [0; 2].map(|_| Command::new("sleep").arg("60").spawn().unwrap());
        let mut pids = children.each_ref().map(std::process::Child::id);
        pids.sort_unstable();
        let [probe, pool] = pids;
        for (pid, started) in [(probe, 900), (pool, 700)] {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir(&folder).unwrap();
            let fields = "0 ".repeat(18);
            let stat = format!("{pid} (a) b) S {fields}{started} 0 0\n");
            for (name, text) in [
                ("comm", "pool\n"),
                (
                    "cgroup",
                    "0::/kubepods/pod0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b/ab\n",
                ),
                ("stat", &stat),
            ] {
                std::fs::write(folder.join(name), text).unwrap();
            }
        }
        let found = scan(proc.path());
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let found: Vec<u32> = found.unwrap().iter().map(|process| process.pid).collect();
        assert_eq!(found, [pool, probe]);
    }
}

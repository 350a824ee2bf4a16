//! The pool processes of this node. The pod of a process is read from its cgroup, never from what the
//! process reports.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use engine_process::pidfd::Pidfd;
use sys::net::Namespace;

use host::cgroup;

/// Process name (comm) of the pool binary.
const COMM: &str = "pool";

/// The command with which it holds a pool. Its probes have the same name and the same cgroup.
const COMMAND: &[u8] = b"serve";

/// A pool process found in procfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolProcess {
    pub(crate) pid: u32,
    pub(crate) pod_uid: String,
}

/// Lists the processes that hold a pool in the cgroup of a pod. Skips processes that end meanwhile.
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
        match std::fs::read(entry.path().join("cmdline")) {
            Ok(line) if holds_pool(&line) => {}
            _ => continue,
        }
        // A zombie is still in procfs.
        if let Ok(process) = Process::open(proc, pid)
            && process.runs()
            && let Ok(Some(pod_uid)) = process.pod_uid()
        {
            found.push(PoolProcess { pid, pod_uid });
        }
    }
    Ok(found)
}

/// Whether a process with these arguments, each ended by a zero byte, holds a pool.
fn holds_pool(arguments: &[u8]) -> bool {
    arguments.split(|byte| *byte == 0).nth(1) == Some(COMMAND)
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
    use super::*;

    #[test]
    fn a_probe_of_a_pool_process_holds_no_pool() {
        assert!(holds_pool(b"/pool\0serve\0--cluster\0c\0"));
        assert!(!holds_pool(b"/pool\0probe\0live\0"));
        // Of one that has ended.
        assert!(!holds_pool(b""));
    }
}

//! The pool processes of this node, as the kernel tells them: which pod a process belongs to is
//! read from its cgroup, never from what it says.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use sys::net::Namespace;

use crate::host::cgroup;

/// Name of the process, as the pool's binary is called.
const COMM: &str = "pool";

/// A process found by looking through procfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) pid: u32,
    pub(crate) pod_uid: String,
}

/// Every process with the pool's name that is in a pod's cgroup. Processes that end while we look
/// are left out.
///
/// # Errors
/// If procfs cannot be listed at all.
pub(crate) fn scan(proc: &Path) -> io::Result<Vec<Found>> {
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
        // One that has ended but was not waited for yet still stands in procfs.
        let runs = Process::open(proc, pid).is_ok_and(|process| process.runs());
        if let (true, Ok(Some(pod_uid))) = (runs, pod_of(proc, pid)) {
            found.push(Found { pid, pod_uid });
        }
    }
    Ok(found)
}

/// UID of the pod whose cgroup a process is in.
///
/// # Errors
/// `NotFound` if the process is gone.
pub(crate) fn pod_of(proc: &Path, pid: u32) -> io::Result<Option<String>> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup"))?;
    Ok(cgroup::place(&text).map(|place| place.pod_uid))
}

/// A process held by descriptor, so that its number cannot come to mean another one unnoticed.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    handle: OwnedFd,
    proc: PathBuf,
}

impl Process {
    /// Takes hold of a process.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn open(proc: &Path, pid: u32) -> io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            pid,
            handle: rustix::process::pidfd_open(raw, PidfdFlags::empty())?,
            proc: proc.to_owned(),
        })
    }

    /// Whether it still runs.
    pub(crate) fn runs(&self) -> bool {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(1))
    }

    /// UID of its pod.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn pod_uid(&self) -> io::Result<Option<String>> {
        pod_of(&self.proc, self.pid)
    }

    /// Its network namespace.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn network(&self) -> io::Result<Namespace> {
        Namespace::open(&self.network_path())
    }

    /// What names its network namespace for comparison.
    ///
    /// # Errors
    /// If it is gone.
    pub(crate) fn network_identity(&self) -> io::Result<(u64, u64)> {
        let metadata = std::fs::metadata(self.network_path())?;
        Ok((metadata.dev(), metadata.ino()))
    }

    fn network_path(&self) -> PathBuf {
        self.proc.join(self.pid.to_string()).join("ns/net")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_process_is_seen_to_end() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Process::open(Path::new("/proc"), child.id()).unwrap();
        assert!(process.runs());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.runs());
    }
}

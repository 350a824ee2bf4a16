//! The pool processes of this node, as the kernel tells them: which pod a process belongs to is
//! read from its cgroup, never from what it says.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use sys::net::Namespace;

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
    Ok(pod_uid(&text))
}

/// The pod UID in the text of `/proc/<pid>/cgroup`. Both of the kubelet's cgroup drivers are
/// understood: `.../pod<uid>/...` and `...-pod<uid with _ for ->.slice/...`.
fn pod_uid(cgroup: &str) -> Option<String> {
    let uids = cgroup.lines().flat_map(|line| {
        line.split('/').filter_map(|part| {
            let part = part.strip_suffix(".slice").unwrap_or(part);
            let (before, uid) = part.rsplit_once("pod")?;
            let starts_a_word = before.is_empty() || before.ends_with('-');
            let uid = uid.replace('_', "-");
            (starts_a_word && is_uid(&uid)).then_some(uid)
        })
    });
    let mut uids: Vec<String> = uids.collect();
    uids.sort();
    uids.dedup();
    // A process in the cgroups of two pods belongs to neither as far as we can tell.
    match uids.as_slice() {
        [one] => Some(one.clone()),
        _ => None,
    }
}

/// A UUID, or the 32 hexadecimal digits of a static pod.
fn is_uid(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-');
    digits.clone().count() == 32 && digits.clone().all(|byte| byte.is_ascii_hexdigit())
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

    const UID: &str = "0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b";

    #[test]
    fn the_pod_is_found_under_both_cgroup_drivers_and_both_cgroup_versions() {
        let slice = UID.replace('-', "_");
        for text in [
            format!(
                "12:memory:/kubepods/burstable/pod{UID}/abcdef\n11:cpu:/kubepods/burstable/pod{UID}/abcdef\n"
            ),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-ab.scope\n"
            ),
            format!("0::/../../pod{UID}/abcdef\n"),
            format!("0::/kubepods-pod{slice}.slice/x"),
        ] {
            assert_eq!(pod_uid(&text).as_deref(), Some(UID), "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_a_pod_is_none() {
        let other = UID.replace('0', "1");
        for text in [
            String::new(),
            "0::/user.slice/session-1.scope".to_owned(),
            "0::/kubepods/burstable/podium".to_owned(),
            format!("0::/kubepods/tripod{UID}/x"),
            format!("1:a:/kubepods/pod{UID}/x\n2:b:/kubepods/pod{other}/x"),
        ] {
            assert_eq!(pod_uid(&text), None, "{text}");
        }
    }

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

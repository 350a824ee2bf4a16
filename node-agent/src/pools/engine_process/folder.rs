//! The folders of engine processes in the agent's state folder, one for each pool pod: control socket, message of a
//! panic, and the pod's last assignment. Only root can enter them.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crds::node::PoolAssignment;
use host::atomic_file;
use sys::net::seqpacket;

use super::program;
use crate::pools::disk::Disk;

/// Name of the file with the assignment.
const ASSIGNMENT: &str = "assignment";

/// The folder of all.
#[derive(Debug)]
pub(crate) struct Folders {
    path: PathBuf,
    disk: Disk,
}

/// The folder of one pod.
#[derive(Debug, Clone)]
pub(super) struct Folder(PathBuf);

impl Folders {
    pub(super) fn open(state: &Path) -> io::Result<Self> {
        let path = state.join("engines");
        make(&path)?;
        let disk = Disk::default();
        Ok(Self { path, disk })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn of(&self, pod_uid: &str) -> Folder {
        Folder(self.path.join(pod_uid))
    }

    /// Returns the last assignment of a pod that an agent of this node has served; `None` for another pod.
    pub(crate) fn assignment(&self, pod_uid: &str) -> Option<PoolAssignment> {
        let text = fs::read(self.of(pod_uid).0.join(ASSIGNMENT)).ok()?;
        let assignment: PoolAssignment = serde_json::from_slice(&text)
            .inspect_err(|error| tracing::warn!(pod_uid, %error, "the last assignment of a pool pod cannot be read"))
            .ok()?;
        (assignment.pod_uid == pod_uid).then_some(assignment)
    }

    /// Stores the assignment of a pod, unless it is stored already. A failure is logged: a successor then needs the API
    /// server to serve the pod.
    pub(crate) async fn save(&self, assignment: &PoolAssignment) {
        let folder = self.of(&assignment.pod_uid).0;
        let path = folder.join(ASSIGNMENT);
        let bytes = serde_json::to_vec(assignment);
        let written = self.disk.run(&assignment.pod_uid, move || {
            let bytes = bytes?;
            if fs::read(&path).is_ok_and(|stored| stored == bytes) {
                return Ok(());
            }
            make(&folder)?;
            atomic_file::replace(&path, &bytes, 0o600)
        });
        if let Err(error) = written.await {
            tracing::warn!(pod_uid = assignment.pod_uid, %error, "cannot store the assignment of a pool pod");
        }
    }

    /// Removes the folder of a pod that has ended.
    pub(crate) fn remove(&self, pod_uid: &str) {
        // Absent where the pod was never served.
        let _ = fs::remove_dir_all(self.of(pod_uid).0);
    }

    /// Removes the folders of pods that ended while no agent ran, and whose engine processes have ended too.
    pub(crate) fn remove_ended(&self, runs: impl Fn(&str) -> bool) {
        let Ok(entries) = fs::read_dir(&self.path) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(pod_uid) = name.to_str() else {
                continue;
            };
            let is_folder = entry.file_type().is_ok_and(|of| of.is_dir());
            if is_folder
                && !pod_uid.starts_with(program::PREFIX)
                && !runs(pod_uid)
                && matches!(self.of(pod_uid).connect(), Ok(None))
            {
                self.remove(pod_uid);
            }
        }
    }
}

impl Folder {
    /// The control socket.
    pub(super) fn control(&self) -> PathBuf {
        self.0.join("control")
    }

    /// Connects to the control socket; `None` if no process listens there.
    ///
    /// # Errors
    /// `WouldBlock`: a process listens that accepts no connection. After any other error, one may run too.
    pub(super) fn connect(&self) -> io::Result<Option<OwnedFd>> {
        match seqpacket::connect_path(&self.control()) {
            Ok(socket) => Ok(Some(socket)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The message of a panic.
    pub(super) fn panic(&self) -> PathBuf {
        self.0.join("panic")
    }

    /// Creates the folder and removes the socket of an ended process.
    pub(super) fn clear(&self) -> io::Result<()> {
        make(&self.0)?;
        match fs::remove_file(self.control()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

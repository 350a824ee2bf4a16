//! Records on the node's disk which segments each pool process has mounted. An agent unmounts those whose
//! process ended while no agent ran, long before the master would drop them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crds::node::MasterInstance;
use engine_process::control::message;
use futures::stream::{self, StreamExt as _};
use host::atomic_file;
use parking_lot::Mutex;
use pool::handover::PACKET_LIMIT;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use store::Uuid;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::Instrument;

use crate::pools::disk::Disk;
use crate::pools::engine_process::EngineProcesses;
use crate::pools::processes::Process;

/// Period of the unmount retries and of the checks of processes that no task serves.
const PERIOD: Duration = Duration::from_secs(2);

/// After this time an unreachable master has dropped the segments by itself.
const CLIENT_TTL: Duration = Duration::from_secs(180);

/// Longest file in bytes. What an engine process sends fits a packet; the agent adds its names to it.
const FILE_LIMIT: usize = 2 * PACKET_LIMIT;

/// Most mounts of earlier agents that are read: more than a node has pods.
const EARLIER_LIMIT: usize = 1_024;

/// Masters that are connected to at the same time. Those of one tenant may be unreachable.
const CONCURRENT: usize = 16;

/// Segments that one pool process has in a master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Mount {
    pub(crate) pod_uid: String,
    pub(crate) pod_name: String,
    pub(crate) pid: u32,
    pub(crate) client: Uuid,
    pub(crate) segments: Vec<Uuid>,
    pub(crate) master: MasterInstance,
}

impl Mount {
    /// Returns what the engine process of the pod wrote of it.
    fn segments(&self) -> message::Mount {
        message::Mount {
            client: self.client,
            segments: self.segments.clone(),
            master: self.master.clone(),
        }
    }

    /// Checks whether its process has ended; false if unknown.
    fn is_orphaned(&self, proc: &Path) -> bool {
        let process = match Process::open(proc, self.pid) {
            Ok(process) => process,
            Err(error) => return has_ended(&error),
        };
        match process.pod_uid() {
            // The PID belongs to another process.
            Ok(of) => of.as_ref() != Some(&self.pod_uid) || !process.runs(),
            Err(error) => has_ended(&error),
        }
    }
}

/// Whether the error means that the process has ended.
fn has_ended(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::SRCH | Errno::NOENT))
}

#[derive(Debug)]
struct Entry {
    mount: Mount,
    /// A task of this agent serves the pod.
    served: bool,
    /// When its process was first seen to have ended.
    since: Option<Instant>,
}

impl Entry {
    fn new(mount: Mount, served: bool) -> Self {
        Self {
            mount,
            served,
            since: None,
        }
    }
}

/// All mounts of the pool processes of this node, by client ID. A pool process has one client while it runs: an engine process
/// that is under the control of an intruder fills neither the agent's memory nor the disk.
#[derive(Debug)]
pub(crate) struct Mounts {
    folder: PathBuf,
    entries: Mutex<BTreeMap<Uuid, Entry>>,
    disk: Disk,
    changed: Notify,
}

impl Mounts {
    /// Reads the mounts that earlier agents recorded. Removes what is too long, or more than pool processes can have; the
    /// segments then stay until the master's client TTL ends.
    ///
    /// # Errors
    /// The folder cannot be created or read.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join("mounted");
        std::fs::create_dir_all(&folder)?;
        let mut entries = BTreeMap::new();
        let mut processes = BTreeSet::new();
        let mut surplus = 0_u64;
        for file in std::fs::read_dir(&folder)? {
            let path = file?.path();
            if path.extension().is_some() {
                // An agent was killed while it wrote the file.
                let _ignored = std::fs::remove_file(&path);
                continue;
            }
            if entries.len() >= EARLIER_LIMIT {
                let _ignored = std::fs::remove_file(&path);
                surplus += 1;
                continue;
            }
            match read(&path) {
                Ok(mount) if processes.insert((mount.pod_uid.clone(), mount.pid)) => {
                    entries.insert(mount.client, Entry::new(mount, false));
                }
                Ok(_) => {
                    let _ignored = std::fs::remove_file(&path);
                    surplus += 1;
                }
                // For example of another release.
                unreadable => {
                    let removed = std::fs::remove_file(&path);
                    tracing::warn!(path = %path.display(), ?unreadable, ?removed, "removed an unreadable record of a mount");
                }
            }
        }
        if surplus > 0 {
            tracing::warn!(
                surplus,
                "removed records of mounts: there are more than the pool processes of a node can have"
            );
        }
        Ok(Self {
            folder,
            entries: Mutex::new(entries),
            disk: Disk::default(),
            changed: Notify::new(),
        })
    }

    /// Returns whether a pool process has mounted segments.
    pub(crate) fn has(&self, pod_uid: &str, pid: u32) -> bool {
        let entries = self.entries.lock();
        let mut mounts = entries.values().map(|entry| &entry.mount);
        mounts.any(|mount| mount.pod_uid == pod_uid && mount.pid == pid)
    }

    /// Records what a pool is about to mount, in place of another client of its process. If the write fails, segments left
    /// behind stay until the master's client TTL ends.
    pub(crate) async fn save(&self, mount: Mount) {
        let (client, pod_uid) = (mount.client, mount.pod_uid.clone());
        let text = serde_json::to_vec(&mount);
        if text.as_ref().is_ok_and(|text| text.len() > FILE_LIMIT) {
            tracing::warn!(%client, "the mount is too long: not recorded");
            return;
        }
        let replaced = {
            let mut entries = self.entries.lock();
            match entries.get(&client) {
                Some(known) if known.mount == mount => return,
                Some(known) if known.mount.pod_uid != mount.pod_uid => {
                    tracing::warn!(%client, "another pool pod has this client ID: not recorded");
                    return;
                }
                _ => {}
            }
            let others = entries.values().map(|entry| &entry.mount);
            let others = others.filter(|other| {
                let of_process = other.pod_uid == mount.pod_uid && other.pid == mount.pid;
                of_process && other.client != client
            });
            let others: Vec<Uuid> = others.map(|other| other.client).collect();
            for other in &others {
                entries.remove(other);
            }
            entries.insert(client, Entry::new(mount, true));
            others
        };
        let replaced: Vec<PathBuf> = replaced.into_iter().map(|other| self.path(other)).collect();
        let path = self.path(client);
        self.on_disk(&pod_uid, move || {
            for other in replaced {
                match std::fs::remove_file(other) {
                    // It could not be written.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
            atomic_file::replace(&path, &text?, 0o644)
        })
        .await;
    }

    /// Sets whether a task of this agent serves the pool process. One that the pod had before is not served any more.
    pub(crate) fn set_served(&self, pod_uid: &str, pid: u32, served: bool) {
        let mut entries = self.entries.lock();
        let of_process =
            |entry: &&mut Entry| entry.mount.pod_uid == pod_uid && entry.mount.pid == pid;
        entries
            .values_mut()
            .filter(of_process)
            .for_each(|entry| entry.served = served);
        drop(entries);
        self.changed.notify_one();
    }

    /// Removes the mount: the master has none of its segments.
    pub(crate) async fn remove(&self, pod_uid: &str, client: Uuid) {
        let removed = {
            let mut entries = self.entries.lock();
            let is_of_pod = entries
                .get(&client)
                .is_some_and(|entry| entry.mount.pod_uid == pod_uid);
            is_of_pod && entries.remove(&client).is_some()
        };
        if removed {
            let path = self.path(client);
            self.on_disk(pod_uid, move || std::fs::remove_file(path))
                .await;
        }
    }

    /// Unmounts the segments of ended processes, forever.
    pub(crate) async fn watch(&self, proc: &Path, engines: &EngineProcesses) {
        loop {
            self.unmount_orphans(proc, &async |mount| engines.unmount(&mount).await)
                .await;
            let changed = self.changed.notified();
            if self.entries.lock().values().all(|entry| entry.served) {
                changed.await;
            } else {
                // A change or the period.
                let _elapsed = timeout(PERIOD, changed).await;
            }
        }
    }

    /// Lists the mounts that no task serves and whose process has ended, with the time since when.
    fn orphans(&self, proc: &Path) -> Vec<(Mount, Instant)> {
        let mut entries = self.entries.lock();
        let free = entries.values_mut().filter(|entry| !entry.served);
        let orphans = free.filter(|entry| entry.mount.is_orphaned(proc));
        let found = orphans.map(|entry| {
            let since = *entry.since.get_or_insert_with(Instant::now);
            (entry.mount.clone(), since)
        });
        found.collect()
    }

    /// Unmounts the segments of ended processes, [`CONCURRENT`] at a time.
    async fn unmount_orphans<F>(&self, proc: &Path, unmount: &impl Fn(message::Mount) -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        let orphans = stream::iter(self.orphans(proc));
        let unmounted = orphans.for_each_concurrent(CONCURRENT, |(mount, since)| {
            let span = tracing::error_span!(
                "orphan",
                pod = mount.pod_name,
                uid = mount.pod_uid,
                master = mount.master.address
            );
            let unmounted = unmount(mount.segments());
            async move { self.settle(&mount, since, unmounted.await).await }.instrument(span)
        });
        unmounted.await;
    }

    /// Removes the mount of an ended process once the master has none of its segments.
    async fn settle(&self, mount: &Mount, since: Instant, unmounted: Result<(), String>) {
        match unmounted {
            Ok(()) => tracing::info!("unmounted the segments of an ended pool process"),
            Err(error) if since.elapsed() < CLIENT_TTL => {
                return tracing::debug!(error, "cannot unmount the segments: retrying");
            }
            Err(error) => tracing::warn!(
                error,
                "cannot unmount the segments: they stay until the master's client TTL ends"
            ),
        }
        self.remove(&mount.pod_uid, mount.client).await;
    }

    fn path(&self, client: Uuid) -> PathBuf {
        self.folder.join(client.to_string())
    }

    async fn on_disk(&self, pod_uid: &str, work: impl FnOnce() -> io::Result<()> + Send + 'static) {
        if let Err(error) = self.disk.run(pod_uid, work).await {
            tracing::warn!(folder = %self.folder.display(), %error, "cannot write the record of a mount");
        }
    }
}

fn read(path: &Path) -> io::Result<Mount> {
    let mut text = Vec::new();
    // One byte more than fits, which shows that there is more.
    let limit = u64::try_from(FILE_LIMIT + 1).unwrap_or(u64::MAX);
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    if text.len() > FILE_LIMIT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(pid: u32) -> Mount {
        Mount {
            pod_uid: "0b7c1a52-3d4e-4f60-8a9b-0c1d2e3f4a5b".to_owned(),
            pod_name: "p".to_owned(),
            pid,
            client: store::random_id().unwrap(),
            segments: vec![store::random_id().unwrap()],
            master: MasterInstance {
                address: "127.0.0.1:1".to_owned(),
                pod_uid: "m".to_owned(),
                version: "0.3.13".to_owned(),
            },
        }
    }

    /// A procfs in which a process is in the cgroup of the test's pod.
    fn proc_of(pid: u32) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let entry = proc.path().join(pid.to_string());
        std::fs::create_dir(&entry).unwrap();
        let cgroup = format!("0::/kubepods/pod{}/x\n", mount(pid).pod_uid);
        std::fs::write(entry.join("cgroup"), cgroup).unwrap();
        proc
    }

    #[tokio::test]
    async fn a_mount_outlives_its_agent_and_is_orphaned_when_its_process_has_ended() {
        let state = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let proc = proc_of(child.id());
        let saved = mount(child.id());
        let first = Mounts::open(state.path()).unwrap();
        first.save(saved.clone()).await;
        drop(first);

        let second = Mounts::open(state.path()).unwrap();
        assert_eq!(second.orphans(proc.path()), [], "its process runs");
        child.kill().unwrap();
        child.wait().unwrap();
        let found = second.orphans(proc.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, saved);
        second.set_served(&saved.pod_uid, saved.pid, true);
        assert_eq!(second.orphans(proc.path()), [], "a task serves it");
        second.set_served(&saved.pod_uid, saved.pid, false);
        second.remove(&saved.pod_uid, saved.client).await;
        assert_eq!(second.orphans(proc.path()), []);
        let third = Mounts::open(state.path()).unwrap();
        assert!(third.entries.lock().is_empty());
    }

    #[tokio::test]
    async fn a_reused_pid_of_another_pod_does_not_count_as_the_pool_process() {
        let state = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let orphans = Mounts::open(state.path()).unwrap();
        let saved = mount(own);
        orphans.save(saved.clone()).await;
        orphans.set_served(&saved.pod_uid, saved.pid, false);
        let found = orphans.orphans(Path::new("/proc"));
        assert_eq!(found.len(), 1);
        assert_eq!(orphans.orphans(proc_of(own).path()), []);
    }

    fn files(state: &Path) -> usize {
        std::fs::read_dir(state.join("mounted")).unwrap().count()
    }

    #[tokio::test]
    async fn a_pool_process_has_one_mount_whatever_its_engine_process_sends() {
        let state = tempfile::tempdir().unwrap();
        let mounts = Mounts::open(state.path()).unwrap();
        let former = mount(7);
        mounts.save(former.clone()).await;
        for _ in 0..20 {
            mounts.save(mount(8)).await;
        }
        let last = mount(8);
        mounts.save(last.clone()).await;
        let known = || -> BTreeSet<Uuid> { mounts.entries.lock().keys().copied().collect() };
        assert_eq!(known(), BTreeSet::from([former.client, last.client]));
        assert_eq!(files(state.path()), 2);

        // The client of another pod is not overwritten.
        let stolen = Mount {
            pod_uid: "other".to_owned(),
            ..last.clone()
        };
        mounts.save(stolen).await;
        assert_eq!(mounts.entries.lock()[&last.client].mount, last);
        let long = Mount {
            segments: vec![last.client; FILE_LIMIT],
            ..last
        };
        mounts.save(long).await;
        assert_eq!(mounts.entries.lock()[&former.client].mount, former);
        assert_eq!(mounts.entries.lock()[&last.client].mount.segments.len(), 1);

        // The pod has a new pool process: the former one is not served.
        let own = std::process::id();
        mounts.set_served(&former.pod_uid, former.pid, false);
        mounts.set_served(&former.pod_uid, own, true);
        let orphans = mounts.orphans(Path::new("/nonexistent"));
        assert_eq!(orphans.len(), 1);
        assert_eq!(orphans[0].0, former);
    }

    #[tokio::test]
    async fn a_master_that_does_not_answer_delays_no_other() {
        let state = tempfile::tempdir().unwrap();
        let mounts = Mounts::open(state.path()).unwrap();
        let saved: Vec<Mount> = (1..=4).map(mount).collect();
        for mount in &saved {
            mounts.save(mount.clone()).await;
            mounts.set_served(&mount.pod_uid, mount.pid, false);
        }
        let silent = saved[0].client;
        let unmount = async |mount: message::Mount| {
            if mount.client == silent {
                std::future::pending::<()>().await;
            }
            Ok(())
        };
        let proc = tempfile::tempdir().unwrap();
        let unmounted = mounts.unmount_orphans(proc.path(), &unmount);
        assert!(timeout(PERIOD, unmounted).await.is_err());
        let left: Vec<Uuid> = mounts.entries.lock().keys().copied().collect();
        assert_eq!(left, [silent]);
    }

    #[test]
    fn an_agent_starts_with_any_number_of_records_of_any_length() {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().join("mounted");
        std::fs::create_dir(&folder).unwrap();
        let write = |mount: &Mount| {
            let text = serde_json::to_string(mount).unwrap();
            std::fs::write(folder.join(mount.client.to_string()), text).unwrap();
        };
        let long = Mount {
            segments: vec![store::random_id().unwrap(); FILE_LIMIT],
            ..mount(1)
        };
        write(&long);
        write(&mount(2));
        write(&mount(2));
        let one = Mounts::open(state.path()).unwrap();
        assert_eq!(one.entries.lock().len(), 1);
        assert_eq!(files(state.path()), 1);
        for pid in 3..=1_100 {
            write(&mount(pid));
        }
        let many = Mounts::open(state.path()).unwrap();
        assert_eq!(many.entries.lock().len(), EARLIER_LIMIT);
        assert_eq!(files(state.path()), EARLIER_LIMIT);
    }

    #[test]
    fn unreadable_files_are_removed() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("mounted")).unwrap();
        let paths = ["1-2", "3-4.new"].map(|name| state.path().join("mounted").join(name));
        for path in &paths {
            std::fs::write(path, "{\"podUid\":").unwrap();
        }
        assert!(
            Mounts::open(state.path())
                .unwrap()
                .entries
                .lock()
                .is_empty()
        );
        assert!(!paths.iter().any(|path| path.exists()));
    }
}

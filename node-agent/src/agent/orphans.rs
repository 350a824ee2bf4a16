//! Segments whose pool process ended while no agent was there to see it. For each mounted pool a note
//! lies in the node's folder; where its process is gone, the agent that comes next takes the
//! segments out of their master at once, long before the master would give them up by itself.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crds::node::MasterInstance;
use serde::{Deserialize, Serialize};
use store::Uuid;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::census::Process;

/// How often segments that are due are tried, and processes that nobody serves yet looked at.
const PERIOD: Duration = Duration::from_secs(2);

/// By then a master that could not be reached has given the segments up.
const PATIENCE: Duration = Duration::from_secs(180);

/// Longest time for a connection to a master.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// Longest time for a file.
const FILE_DEADLINE: Duration = Duration::from_secs(2);

/// What one pool process has in a master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Note {
    pub(crate) pod_uid: String,
    pub(crate) pod_name: String,
    pub(crate) pid: u32,
    pub(crate) client: Uuid,
    pub(crate) segments: Vec<Uuid>,
    pub(crate) master: MasterInstance,
}

impl Note {
    /// Whether its process has ended. Not known is no.
    fn is_orphaned(&self, proc: &Path) -> bool {
        let process = match Process::open(proc, self.pid) {
            Ok(process) => process,
            Err(error) => return is_gone(&error),
        };
        match process.pod_uid() {
            // Another process has its number by now.
            Ok(of) => of.as_ref() != Some(&self.pod_uid) || !process.runs(),
            Err(error) => is_gone(&error),
        }
    }

    async fn unmount(&self) -> Result<(), String> {
        let address = &self.master.address;
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await;
        let stream = stream
            .map_err(|_| format!("no connection in {CONNECT_DEADLINE:?}"))?
            .map_err(|error| error.to_string())?;
        let unmounted = unmount(stream, address, self.client, &self.segments).await;
        unmounted.map_err(|error| error.to_string())
    }
}

/// The kernel's two ways to say that there is no such process.
fn is_gone(error: &io::Error) -> bool {
    let said = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        said,
        Some(rustix::io::Errno::SRCH | rustix::io::Errno::NOENT)
    )
}

/// Takes segments out of a master at once.
///
/// # Errors
/// At the first that may still be mounted.
pub(crate) async fn unmount(
    stream: TcpStream,
    address: &str,
    client: Uuid,
    segments: &[Uuid],
) -> Result<(), store::Error> {
    let master = store::Master::connect(stream, address.to_owned());
    for segment in segments {
        master.unmount(client, *segment).await?;
    }
    Ok(())
}

#[derive(Debug)]
struct Entry {
    note: Note,
    /// A task of this agent looks after its pod.
    held: bool,
    /// When it was first found to be an orphan.
    since: Option<Instant>,
}

/// The notes of this node.
#[derive(Debug)]
pub(crate) struct Orphans {
    folder: PathBuf,
    entries: Mutex<BTreeMap<Uuid, Entry>>,
    news: Notify,
}

impl Orphans {
    /// Reads what earlier agents noted.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let folder = state.join("mounted");
        std::fs::create_dir_all(&folder)?;
        let mut entries = BTreeMap::new();
        for file in std::fs::read_dir(&folder)? {
            let path = file?.path();
            if path.extension().is_some() {
                // Half written by an agent that was killed.
                let _not_a_note_either = std::fs::remove_file(&path);
                continue;
            }
            match std::fs::read(&path).map(|bytes| serde_json::from_slice::<Note>(&bytes)) {
                Ok(Ok(note)) => {
                    let entry = Entry {
                        note,
                        held: false,
                        since: None,
                    };
                    entries.insert(entry.note.client, entry);
                }
                // Of another release, say.
                unreadable => {
                    let removed = std::fs::remove_file(&path);
                    tracing::warn!(path = %path.display(), ?unreadable, ?removed, "no note");
                }
            }
        }
        Ok(Self {
            folder,
            entries: Mutex::new(entries),
            news: Notify::new(),
        })
    }

    /// Notes what a pool is about to mount. A note that cannot be written costs no more than the
    /// master's patience.
    pub(crate) async fn keep(&self, note: Note) {
        let client = note.client;
        let known = self.lock().get(&client).map(|entry| entry.note.clone());
        if known.as_ref() == Some(&note) {
            return;
        }
        let text = serde_json::to_string(&note);
        let entry = Entry {
            note,
            held: true,
            since: None,
        };
        self.lock().insert(client, entry);
        let path = self.path(client);
        let fresh = path.with_extension("new");
        self.on_disk(move || {
            std::fs::write(&fresh, text?)?;
            std::fs::rename(&fresh, &path)
        })
        .await;
    }

    /// A task of this agent looks after the pod of this client.
    pub(crate) fn hold(&self, client: Uuid) {
        if let Some(entry) = self.lock().get_mut(&client) {
            entry.held = true;
        }
    }

    /// It does so no more; what it could not unmount is an orphan.
    pub(crate) fn let_go(&self, client: Uuid) {
        if let Some(entry) = self.lock().get_mut(&client) {
            entry.held = false;
        }
        self.news.notify_one();
    }

    /// Nothing of this client is in a master any more.
    pub(crate) async fn forget(&self, client: Uuid) {
        if self.lock().remove(&client).is_some() {
            let path = self.path(client);
            self.on_disk(move || std::fs::remove_file(path)).await;
        }
    }

    /// Unmounts what the dead have left, for ever.
    pub(crate) async fn watch(&self, proc: &Path) {
        loop {
            for (note, since) in self.orphans(proc) {
                self.settle(&note, since).await;
            }
            let news = self.news.notified();
            if self.lock().values().all(|entry| entry.held) {
                news.await;
            } else {
                // Either will do.
                let _elapsed = timeout(PERIOD, news).await;
            }
        }
    }

    /// Notes that nobody looks after and whose process is gone, each with the time since when.
    fn orphans(&self, proc: &Path) -> Vec<(Note, Instant)> {
        let mut entries = self.lock();
        let free = entries.values_mut().filter(|entry| !entry.held);
        let orphans = free.filter(|entry| entry.note.is_orphaned(proc));
        let found = orphans.map(|entry| {
            let since = *entry.since.get_or_insert_with(Instant::now);
            (entry.note.clone(), since)
        });
        found.collect()
    }

    async fn settle(&self, note: &Note, since: Instant) {
        let Note {
            pod_uid,
            pod_name,
            client,
            master,
            ..
        } = note;
        match note.unmount().await {
            Ok(()) => tracing::info!(
                pod = pod_name,
                uid = pod_uid,
                master = master.address,
                segments = note.segments.len(),
                "unmounted what a dead pool process had left"
            ),
            Err(error) if since.elapsed() < PATIENCE => {
                return tracing::debug!(
                    pod = pod_name,
                    master = master.address,
                    error,
                    "not unmounted"
                );
            }
            Err(error) => tracing::warn!(
                pod = pod_name,
                uid = pod_uid,
                master = master.address,
                error,
                "left to the master's client TTL"
            ),
        }
        self.forget(*client).await;
    }

    fn path(&self, client: Uuid) -> PathBuf {
        self.folder.join(client.to_string())
    }

    /// On a thread of its own: a disk that hangs holds up nobody.
    async fn on_disk(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) {
        let done = timeout(FILE_DEADLINE, tokio::task::spawn_blocking(work)).await;
        if !matches!(done, Ok(Ok(Ok(())))) {
            tracing::warn!(folder = %self.folder.display(), ?done, "a note was not written");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(pid: u32) -> Note {
        Note {
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

    /// A procfs in which a process is in the cgroup of the notes' pod.
    fn proc_of(pid: u32) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let entry = proc.path().join(pid.to_string());
        std::fs::create_dir(&entry).unwrap();
        let cgroup = format!("0::/kubepods/pod{}/x\n", note(pid).pod_uid);
        std::fs::write(entry.join("cgroup"), cgroup).unwrap();
        proc
    }

    #[tokio::test]
    async fn a_note_outlives_its_agent_and_is_an_orphan_once_its_process_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let proc = proc_of(child.id());
        let noted = note(child.id());
        let first = Orphans::open(state.path()).unwrap();
        first.keep(noted.clone()).await;
        drop(first);

        let second = Orphans::open(state.path()).unwrap();
        assert_eq!(second.orphans(proc.path()), [], "its process runs");
        child.kill().unwrap();
        child.wait().unwrap();
        let found = second.orphans(proc.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, noted);
        second.hold(noted.client);
        assert_eq!(second.orphans(proc.path()), [], "somebody looks after it");
        second.let_go(noted.client);
        second.forget(noted.client).await;
        assert_eq!(second.orphans(proc.path()), []);
        let third = Orphans::open(state.path()).unwrap();
        assert!(third.lock().is_empty());
    }

    #[tokio::test]
    async fn the_number_of_another_pods_process_is_no_sign_of_life() {
        let state = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let orphans = Orphans::open(state.path()).unwrap();
        let noted = note(own);
        orphans.keep(noted.clone()).await;
        orphans.let_go(noted.client);
        let found = orphans.orphans(Path::new("/proc"));
        assert_eq!(found.len(), 1);
        assert_eq!(orphans.orphans(proc_of(own).path()), []);
    }

    #[test]
    fn what_is_no_note_is_thrown_away() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("mounted")).unwrap();
        let paths = ["1-2", "3-4.new"].map(|name| state.path().join("mounted").join(name));
        for path in &paths {
            std::fs::write(path, "{\"podUid\":").unwrap();
        }
        assert!(Orphans::open(state.path()).unwrap().lock().is_empty());
        assert!(!paths.iter().any(|path| path.exists()));
    }
}

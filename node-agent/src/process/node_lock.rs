//! The agent's folder on the node: the lock that admits one agent at a time, and the key that seals the
//! records in pool pods.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crds::reason::Reason;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use host::atomic_file;
use pool::handover::record::Key;

/// Period of the attempts to acquire the node lock.
const RETRY_PERIOD: Duration = Duration::from_millis(100);

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}. The agent requires a writable folder on the node", path.display())]
pub(crate) struct Error {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Exclusive lock of the node; released by the kernel when the process ends.
#[derive(Debug)]
pub(crate) struct NodeLock {
    _lock: File,
}

impl NodeLock {
    /// Acquires the lock once no other agent holds it.
    ///
    /// # Errors
    /// As [`NodeLock::try_acquire`].
    pub(crate) async fn acquire(folder: &Path, node: &str) -> Result<Self, Error> {
        let mut logged = false;
        loop {
            if let Some(lock) = Self::try_acquire(folder)? {
                return Ok(lock);
            }
            if !logged {
                tracing::warn!(
                    node, reason = %Reason::AnotherAgentActive,
                    "another agent runs on this node: waiting for its end"
                );
                logged = true;
            }
            tokio::time::sleep(RETRY_PERIOD).await;
        }
    }

    /// Acquires the lock; `None` while another process holds it.
    ///
    /// # Errors
    /// The folder or the lock file cannot be created, or flock(2) fails.
    fn try_acquire(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join("lock");
        let lock = std::fs::create_dir_all(folder)
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.create(true).truncate(false).write(true).mode(0o600);
                options.open(&path)
            })
            .map_err(at("open", &path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _lock: lock })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(at("lock", &path)(errno.into())),
        }
    }
}

/// Reads the node's key, or creates it on first use. Requires the lock.
///
/// # Errors
/// The key cannot be read or created, or is too short.
pub(crate) fn key(folder: &Path, _: &NodeLock) -> Result<Key, Error> {
    let path = folder.join("record.key");
    match File::open(&path) {
        Ok(mut file) => {
            let mut bytes = [0; 32];
            file.read_exact(&mut bytes).map_err(at("read", &path))?;
            Ok(Key::new(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut bytes = [0; 32];
            getrandom::fill(&mut bytes)
                .map_err(|error| at("create", &path)(io::Error::other(error)))?;
            // With another key, all records of the node are invalid.
            atomic_file::replace(&path, &bytes, 0o600).map_err(at("write", &path))?;
            Ok(Key::new(bytes))
        }
        Err(error) => Err(at("open", &path)(error)),
    }
}

fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_agent_at_a_time_holds_the_lock_and_all_agents_use_one_key() {
        let folder = tempfile::tempdir().unwrap();
        let first = NodeLock::try_acquire(folder.path()).unwrap().unwrap();
        assert!(NodeLock::try_acquire(folder.path()).unwrap().is_none());
        let key_then = key(folder.path(), &first).unwrap();
        drop(first);
        let second = NodeLock::try_acquire(folder.path()).unwrap().unwrap();
        let key_now = key(folder.path(), &second).unwrap();
        assert_eq!(key_now.open("u", &key_then.seal("u", "x")), Some("x"));
        let mode = std::fs::metadata(folder.path().join("record.key")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    }
}

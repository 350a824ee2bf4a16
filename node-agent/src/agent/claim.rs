//! The node's folder: the lock that lets one agent at a time work here, and the key that seals the
//! records which pool pods keep.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::handover::record::Key;

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}; the agent needs a folder of the node that it can write", path.display())]
pub(crate) struct Error {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The right to work on this node; given back by the kernel when the process ends.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
}

impl Claim {
    /// Takes the lock, or says that another process has it.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn take(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join("lock");
        let lock = std::fs::create_dir_all(folder)
            .and_then(|()| {
                let mut options = OpenOptions::new();
                options.create(true).truncate(false).write(true).mode(0o600);
                options.open(&path)
            })
            .map_err(at("opening", &path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _lock: lock })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(at("locking", &path)(errno.into())),
        }
    }
}

/// The node's key; made on first use. Only the holder of the claim calls this.
///
/// # Errors
/// If it can neither be read nor made, or is no key.
pub(crate) fn key(folder: &Path, _: &Claim) -> Result<Key, Error> {
    let path = folder.join("record.key");
    match File::open(&path) {
        Ok(mut file) => {
            let mut bytes = [0; 32];
            file.read_exact(&mut bytes)
                .map_err(at("reading the key", &path))?;
            Ok(Key::new(bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut bytes = [0; 32];
            getrandom::fill(&mut bytes)
                .map_err(|error| at("drawing the key", &path)(io::Error::other(error)))?;
            write_key(folder, &path, &bytes).map_err(at("writing the key", &path))?;
            Ok(Key::new(bytes))
        }
        Err(error) => Err(at("opening the key", &path)(error)),
    }
}

/// Whole or not at all: a key that changes would orphan every record of the node.
fn write_key(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = folder.join("record.key.new");
    let mut file = File::create(&fresh)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)
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
    use super::*;

    #[test]
    fn one_agent_at_a_time_and_one_key_for_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let first = Claim::take(folder.path()).unwrap().unwrap();
        assert!(Claim::take(folder.path()).unwrap().is_none());
        let key_then = key(folder.path(), &first).unwrap();
        drop(first);
        let second = Claim::take(folder.path()).unwrap().unwrap();
        let key_now = key(folder.path(), &second).unwrap();
        assert_eq!(key_now.open("u", &key_then.seal("u", "x")), Some("x"));
        let mode = std::fs::metadata(folder.path().join("record.key")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    }
}

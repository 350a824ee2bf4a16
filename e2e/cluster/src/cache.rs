//! Cache entries named by a hash of their inputs. One process creates an entry, completely or not at all.

use crate::Error;
use crate::wait::wait_until;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest work under a lock: two cold builds on a busy machine.
const LOCK: Duration = Duration::from_secs(2 * 60 * 60);

/// The folder that holds the entries.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// The inputs of an entry.
#[derive(Debug, Default)]
pub struct Inputs(Sha256);

impl Inputs {
    /// Adds one input. Its length is hashed too, so that `ab`+`c` and `a`+`bc` differ.
    #[must_use]
    pub fn and(mut self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.0.update(bytes.len().to_le_bytes());
        self.0.update(bytes);
        self
    }

    fn name(self) -> String {
        self.0.finalize()[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

impl Cache {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of an entry, whether it exists or not.
    pub fn path(&self, kind: &str, inputs: Inputs) -> PathBuf {
        self.root.join(format!("{kind}-{}", inputs.name()))
    }

    /// The folder of an entry. If it does not exist, `make` fills it, while other processes that need an entry of this
    /// kind wait.
    ///
    /// # Errors
    /// Those of `make`, and [`Error::File`] for the cache itself.
    pub fn entry(
        &self,
        kind: &str,
        inputs: Inputs,
        make: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let entry = self.path(kind, inputs);
        if entry.is_dir() {
            return Ok(entry);
        }
        let _lock = lock(&self.root.join(format!("{kind}.lock")))?;
        if entry.is_dir() {
            return Ok(entry);
        }
        let fresh = self.root.join(format!("{kind}.making"));
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(Error::file("removing", &fresh))?;
        }
        fs::create_dir_all(&fresh).map_err(Error::file("making", &fresh))?;
        make(&fresh)?;
        fs::rename(&fresh, &entry).map_err(Error::file("placing", &entry))?;
        Ok(entry)
    }
}

/// Takes an exclusive lock until the file is dropped or the process ends.
///
/// # Errors
/// [`Error::File`]; [`Error::Deadline`] with the process that holds it.
pub fn lock(path: &Path) -> Result<File, Error> {
    lock_within(path, LOCK)
}

/// As [`lock`], with another deadline.
///
/// # Errors
/// As [`lock`].
pub fn lock_within(path: &Path, deadline: Duration) -> Result<File, Error> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::file("making", folder))?;
    }
    // Not truncated: it names its holder.
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(Error::file("opening", path))?;
    let mut waits = false;
    wait_until(
        &format!("the lock {}", path.display()),
        deadline,
        || match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Ok(())),
            Err(Errno::WOULDBLOCK) => {
                let holder = fs::read_to_string(path).unwrap_or_default();
                let seen = format!("process {} holds it", holder.trim());
                if !std::mem::replace(&mut waits, true) {
                    tracing::info!(lock = %path.display(), "waiting: {seen}");
                }
                Ok(Err(seen))
            }
            Err(errno) => Err(Error::file("locking", path)(errno.into())),
        },
    )?;
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(Error::file("writing", path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_created_once_per_input() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let mut made = 0;
        for input in ["a", "a", "b"] {
            cache
                .entry("thing", Inputs::default().and(input), |_| {
                    made += 1;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(made, 2);
    }

    #[test]
    fn a_failed_entry_does_not_exist() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let failed = cache.entry("thing", Inputs::default(), |_| {
            Err(Error::Name {
                name: "x".to_owned(),
                problem: "no",
            })
        });
        assert!(failed.is_err());
        assert!(!cache.path("thing", Inputs::default()).exists());
    }

    #[test]
    fn a_lock_that_is_not_released_ends_the_wait_with_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thing.lock");
        let held = lock(&path).unwrap();
        let error = lock_within(&path, Duration::ZERO).unwrap_err().to_string();
        let holder = format!("process {} holds it", std::process::id());
        assert!(
            error.contains("thing.lock") && error.contains(&holder),
            "{error}"
        );
        drop(held);
        lock_within(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn inputs_are_hashed_with_their_lengths() {
        let cache = Cache::new(Path::new("/"));
        let path = |inputs| cache.path("thing", inputs);
        assert_ne!(
            path(Inputs::default().and("ab").and("c")),
            path(Inputs::default().and("a").and("bc"))
        );
    }
}

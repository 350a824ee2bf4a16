//! A small local file that another program replaces when its content changes, also by a change of a link to it, as in a volume
//! of a ConfigMap.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Time between two looks at a file.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// Identity of one version of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

/// The file and what was seen of it.
#[derive(Debug)]
pub(crate) struct Watched {
    path: PathBuf,
    /// The version that was read last.
    seen: Option<Version>,
    /// The failure of the last call.
    failure: Option<String>,
}

impl Watched {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            seen: None,
            failure: None,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content if the file has changed since the last call. The file is small and local, so the call does not
    /// block for long.
    ///
    /// # Errors
    /// A failure to read or parse the file, once.
    pub(crate) fn read<T>(&mut self) -> Result<Option<T>, String>
    where
        T: FromStr<Err: ToString>,
    {
        match self.read_changed() {
            Ok(None) => Ok(None),
            Ok(Some(content)) => {
                self.failure = None;
                Ok(Some(content))
            }
            Err(failure) if self.failure.as_ref() == Some(&failure) => Ok(None),
            Err(failure) => {
                self.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    fn read_changed<T>(&mut self) -> Result<Option<T>, String>
    where
        T: FromStr<Err: ToString>,
    {
        let words = |error: io::Error| error.to_string();
        let metadata = fs::metadata(&self.path).map_err(|error| {
            self.seen = None;
            words(error)
        })?;
        let version = Version {
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: metadata.len(),
        };
        if self.seen == Some(version) {
            return Ok(None);
        }
        let text = fs::read_to_string(&self.path).map_err(words)?;
        self.seen = Some(version);
        text.parse()
            .map(Some)
            .map_err(|error: T::Err| error.to_string())
    }
}

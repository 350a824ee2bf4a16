//! The program of engine processes: a copy in the agent's state folder, because a process outlives the container from
//! whose file system it was started.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::beside_agent;
use super::folder::Folders;

/// Name of the copies, followed by their hash.
const PREFIX: &str = "program-";

/// A copy of the program.
#[derive(Debug)]
pub(super) struct Program(PathBuf);

impl Program {
    /// Copies the program that lies beside the agent's, unless its copy exists, and removes copies of other releases.
    /// Processes that run from those go on.
    ///
    /// # Errors
    /// The program is missing, or cannot be copied.
    pub(super) fn install(folders: &Folders) -> io::Result<Self> {
        let source = beside_agent()?;
        let bytes = fs::read(&source).map_err(|error| {
            let cause = format!("the engine program {}: {error}", source.display());
            io::Error::new(error.kind(), cause)
        })?;
        let hash = Sha256::digest(&bytes);
        let hash: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = folders.path().join(format!("{PREFIX}{hash}"));
        if !path.exists() {
            for entry in fs::read_dir(folders.path())? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                    fs::remove_file(entry.path())?;
                }
            }
            // Renamed when it is complete.
            let fresh = folders.path().join(format!("{PREFIX}new"));
            fs::write(&fresh, &bytes)?;
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o500))?;
            fs::rename(&fresh, &path)?;
        }
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether a process runs from this copy.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        let identity = |path: &Path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino()))
        };
        let own = identity(&self.0);
        own.is_some() && own == identity(Path::new(&format!("/proc/{pid}/exe")))
    }
}

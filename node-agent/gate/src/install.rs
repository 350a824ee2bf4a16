//! Copies the gate into a volume for a container of another image.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::atomic_file;

/// The copy failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot copy the gate to {to}: {cause}")]
pub(crate) struct InstallError {
    to: PathBuf,
    cause: io::Error,
}

/// Copies this program to `directory/gate`, executable by all. Replaces an earlier copy, also a running one.
///
/// # Errors
/// The directory does not exist or is not writable.
pub(crate) fn install(directory: &Path) -> Result<PathBuf, InstallError> {
    let to = directory.join("gate");
    copy(&to).map_err(|cause| InstallError {
        to: to.clone(),
        cause,
    })?;
    Ok(to)
}

fn copy(to: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    atomic_file::replace(to, |draft| {
        fs::copy(program, draft)?;
        fs::set_permissions(draft, Permissions::from_mode(0o755))
    })
}

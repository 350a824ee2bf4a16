//! Replaces files in the volume of the gate, which ends with its pod: nothing is synced to the disk.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

/// Lets `write` create a draft beside the file, and renames it: a reader sees the old or the new content.
///
/// # Errors
/// The errors of `write`, and of renaming a file in the folder of `path`.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut draft = OsString::from(path);
    draft.push(".new");
    write(draft.as_ref())?;
    fs::rename(&draft, path)
}

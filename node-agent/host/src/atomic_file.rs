//! Replaces a file of the node atomically and durably: after a crash or a power loss it has its old or its new content.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Replaces the file, or creates it. It has these permissions from the beginning, whatever the umask is.
///
/// The draft is `.NAME.new` in the same folder: container runtimes ignore names with a leading dot.
///
/// # Errors
/// The errors of creating, writing, syncing and renaming a file in the folder of `path`.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.join(format!(".{name}.new"));
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(mode);
    let mut file = options.open(&draft)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    // A file that is open for writing cannot be executed.
    drop(file);
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_permissions_and_no_draft_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(folder.path().join(".program.new"), "a longer draft").unwrap();
        for (text, mode) in [("first", 0o600), ("2nd", 0o755)] {
            replace(&path, text.as_bytes(), mode).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            let found = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_absent_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = replace(&folder.path().join("absent/file"), b"x", 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

//! Opens paths below a root folder as after chroot: absolute links and `..` stay inside.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Attempts. openat2(2) returns EAGAIN where anything is renamed or mounted while the kernel follows a `..`, which is
/// frequent on a node that starts containers.
const TRIES: usize = 256;

/// Opens a path; magic links are not followed.
///
/// # Errors
/// ENOENT, ELOOP, EACCES and others of openat2(2); EAGAIN after [`TRIES`] attempts.
pub fn open(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let path = if path.is_empty() { "." } else { path };
    for _ in 1..TRIES {
        match rustix::fs::openat2(&root, path, flags, Mode::empty(), inside) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            opened => return opened,
        }
    }
    rustix::fs::openat2(&root, path, flags, Mode::empty(), inside)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_path_is_opened_while_other_files_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("devices/pci/one")).unwrap();
        fs::create_dir_all(at("bus/pci")).unwrap();
        fs::write(at("devices/pci/one/class"), "0x020700").unwrap();
        symlink("../../devices/pci/one", at("bus/pci/one")).unwrap();
        fs::write(at("a"), "").unwrap();
        let root = fs::File::open(folder.path()).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let names = [at("a"), at("b")];
                for round in 0.. {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    fs::rename(&names[round % 2], &names[(round + 1) % 2]).unwrap();
                }
            });
            let mut refused = Vec::new();
            for _ in 0..20_000 {
                let opened = open(&root, "bus/pci/one/class", OFlags::RDONLY);
                refused.extend(opened.err());
            }
            ended.store(true, Ordering::Relaxed);
            assert_eq!(refused, [], "of 20000");
        });
    }

    #[test]
    fn nothing_outside_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("root");
        fs::create_dir(&own).unwrap();
        fs::write(folder.path().join("secret"), "").unwrap();
        symlink("../secret", own.join("link")).unwrap();
        symlink(folder.path().join("secret"), own.join("absolute")).unwrap();
        let root = fs::File::open(&own).unwrap();
        for path in ["../secret", "link", "absolute"] {
            let opened = open(&root, path, OFlags::RDONLY);
            assert_eq!(opened.err(), Some(Errno::NOENT), "{path}");
        }
        assert!(open(&root, "", OFlags::PATH).is_ok());
    }
}

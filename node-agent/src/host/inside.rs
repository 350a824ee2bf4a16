//! Opening a path as below a changed root: absolute links and `..` stay inside.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The kernel gives up with EAGAIN where anything anywhere is renamed or mounted while it follows a `..`, as most
/// links in sysfs have, and leaves it to the caller to try again (openat2(2)). On a node that starts
/// containers that is often.
const TRIES: usize = 256;

/// Opens it, following no magic links.
pub(crate) fn open(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
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
    fn what_others_rename_meanwhile_keeps_nothing_from_being_opened() {
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

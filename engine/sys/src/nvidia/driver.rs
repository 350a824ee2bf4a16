//! Where a node's GPU driver has its libraries, and loading one from there.

use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::Error;
use crate::loader;

/// The root folder of a driver that a container brought; or it is the node's own.
const ROOTS: [&str; 2] = ["run/nvidia/driver", "."];

/// Where libraries lie below it, by distribution; the last is that of Google's nodes.
const FOLDERS: [&str; 4] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib/aarch64-linux-gnu",
    "home/kubernetes/bin/nvidia/lib64",
];

/// Loads a library of the driver of the node with this root folder. By its own path: the folder is on no
/// search path, as it holds the node's libc too. Links lead where they would on the node.
pub(super) fn load(root: &Path, name: &'static str) -> Result<*mut c_void, Error> {
    let word = |errno: Errno| Error::Library(format!("{name}: {errno}"));
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, folder, Mode::empty()).map_err(word)?;
    for driver in ROOTS {
        let below = openat2(&root, driver, folder, Mode::empty(), ResolveFlags::IN_ROOT);
        let below = match below {
            Ok(below) => below,
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(errno) => return Err(word(errno)),
        };
        for folder in FOLDERS {
            let path = format!("{folder}/{name}");
            let file = openat2(
                below.as_fd(),
                path,
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::IN_ROOT,
            );
            match file {
                Ok(file) => return load_file(file),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(word(errno)),
            }
        }
    }
    Err(Error::Absent(name))
}

fn load_file(file: OwnedFd) -> Result<*mut c_void, Error> {
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let path = path.map_err(|error| Error::Library(error.to_string()))?;
    let handle = loader::load(&path).map_err(Error::Library)?;
    // The loader knows a library by the path that it was loaded by: the number must not become another's.
    std::mem::forget(file);
    Ok(handle)
}

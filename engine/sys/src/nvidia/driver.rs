//! Finds and loads the libraries of a node's GPU driver.

use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::Error;
use crate::loader;

/// Root folders of drivers: of a containerised driver, and of the node.
const ROOTS: [&str; 2] = ["run/nvidia/driver", "."];

/// Library folders below a root, by distribution; the last two are those of a driver in a folder of its own, and of GKE nodes.
const FOLDERS: [&str; 5] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib/aarch64-linux-gnu",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
];

/// Loads a library of the node's driver once per process.
pub(super) fn load_once<L>(
    loaded: &'static OnceLock<L>,
    root: &Path,
    name: &'static str,
    table: impl FnOnce(*mut c_void) -> Result<L, String>,
) -> Result<&'static L, Error> {
    if let Some(library) = loaded.get() {
        return Ok(library);
    }
    let library = table(load(root, name)?).map_err(Error::Library)?;
    Ok(loaded.get_or_init(|| library))
}

/// Loads a library of the node's driver by its path: its folder holds the node's libc too, so it is on no
/// search path. Symbolic links are resolved below the root folder.
fn load(root: &Path, name: &'static str) -> Result<*mut c_void, Error> {
    let failed = |errno: Errno| Error::Library(format!("{name}: {errno}"));
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, folder, Mode::empty()).map_err(failed)?;
    for driver in ROOTS {
        let below = openat2(&root, driver, folder, Mode::empty(), ResolveFlags::IN_ROOT);
        let below = match below {
            Ok(below) => below,
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(errno) => return Err(failed(errno)),
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
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
    Err(Error::Absent(name))
}

fn load_file(file: OwnedFd) -> Result<*mut c_void, Error> {
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let path = path.map_err(|error| Error::Library(error.to_string()))?;
    let handle = loader::load(&path).map_err(Error::Library)?;
    // The loader identifies a library by its path, so the descriptor number must not be reused.
    std::mem::forget(file);
    Ok(handle)
}

//! Mounts the node's /sys and /dev over those of a container or into a folder with libraries, so that libraries find the
//! node's devices.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use rustix::fs::{Mode, OFlags};

/// Mounts the node's /sys and /dev, found below the node's root folder, over this thread's own, in a new
/// mount namespace that threads started later share. libibverbs uses these paths only.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN`; others of `unshare(2)` and `mount(2)`.
pub fn mount_host_devices(root: &Path) -> io::Result<()> {
    // SAFETY: affects only the mount namespace of this thread, and no memory.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    check(unshared)?;
    // Later mounts stay in this namespace.
    mount(
        Path::new("none"),
        Path::new("/"),
        libc::MS_REC | libc::MS_SLAVE,
    )?;
    for folder in ["sys", "dev"] {
        let flags = libc::MS_BIND | libc::MS_REC;
        mount(&root.join(folder), &Path::new("/").join(folder), flags)?;
    }
    Ok(())
}

/// Calls `work` with a folder as root: one that has libibverbs, its drivers and their list at the paths of their
/// packages, and the empty folders `sys` and `dev`, over which the node's are mounted, found below the node's root folder.
/// The root is that of the whole process, so call this while it has one thread. The mounts stay: the caller is in a
/// mount namespace of its own whose mounts are private.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN` and `CAP_SYS_CHROOT`; others of `mount(2)` and `chroot(2)`.
pub fn in_root<T>(folder: &Path, node: &Path, work: impl FnOnce() -> T) -> io::Result<T> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let before = rustix::fs::open("/", flags, Mode::empty())?;
    for name in ["sys", "dev"] {
        let flags = libc::MS_BIND | libc::MS_REC;
        mount(&node.join(name), &folder.join(name), flags)?;
    }
    rustix::process::chroot(folder)?;
    rustix::process::chdir("/")?;
    let done = work();
    rustix::process::fchdir(&before)?;
    rustix::process::chroot(".")?;
    Ok(done)
}

/// Adds the GPU device files of a containerised driver to /dev, after [`mount_host_devices`]: such a driver
/// creates them in its own /dev. Does nothing if the node has them, or if there is no such driver.
///
/// # Errors
/// From `mount(2)` and from reading or creating files.
pub fn mount_driver_gpus(root: &Path) -> io::Result<()> {
    let (own, brought) = (root.join("dev"), root.join("run/nvidia/driver/dev"));
    if own.join("nvidiactl").exists() || !brought.join("nvidiactl").exists() {
        return Ok(());
    }
    let dev = Path::new("/dev");
    mount_tmpfs(dev)?;
    for entry in fs::read_dir(&own)? {
        let entry = entry?;
        symlink(entry.path(), dev.join(entry.file_name()))?;
    }
    for entry in fs::read_dir(&brought)? {
        let entry = entry?;
        let to = dev.join(entry.file_name());
        let is_file = !entry.file_type()?.is_dir();
        if is_file && entry.file_name().as_bytes().starts_with(b"nvidia") && !to.exists() {
            fs::write(&to, "")?;
            mount(&entry.path(), &to, libc::MS_BIND)?;
        }
    }
    Ok(())
}

/// Mounts an empty tmpfs.
fn mount_tmpfs(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: all are C strings that are valid during the call; there is no data.
    let mounted = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            at.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    check(mounted)
}

fn mount(from: &Path, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    // SAFETY: both are C strings that are valid during the call; type and data are ignored.
    let mounted = unsafe {
        libc::mount(
            from.as_ptr(),
            to.as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    };
    check(mounted)
}

fn check(answer: i32) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

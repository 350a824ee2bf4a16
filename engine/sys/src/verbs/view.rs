//! A node's devices as the node itself sees them, for a program in a container: its own /sys and /dev are
//! those of the container.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

/// Puts /sys and /dev of the node whose root folder this is in the place of this thread's own, and of
/// those of the threads that it starts from now on. libibverbs looks nowhere else.
///
/// # Errors
/// What the kernel says; `CAP_SYS_ADMIN` is needed.
pub fn take_view(root: &Path) -> io::Result<()> {
    // SAFETY: only this thread's view of the file system becomes its own; no memory is concerned.
    let parted = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    told(parted)?;
    // What is mounted from now on is nobody else's business.
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

/// Puts the files of GPUs of a driver that a container brought into this thread's view, which was taken before:
/// such a driver makes them in its own /dev, not in the node's. Where the node has them, or nobody, nothing is
/// done.
///
/// # Errors
/// What the kernel says.
pub fn add_gpus(root: &Path) -> io::Result<()> {
    let (own, brought) = (root.join("dev"), root.join("run/nvidia/driver/dev"));
    if own.join("nvidiactl").exists() || !brought.join("nvidiactl").exists() {
        return Ok(());
    }
    let dev = Path::new("/dev");
    fill(dev)?;
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

/// An empty folder in memory, in the place of this one.
fn fill(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes())?;
    // SAFETY: all are C strings that live across the call; there is no data to be looked at.
    let mounted = unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            at.as_ptr(),
            c"tmpfs".as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    told(mounted)
}

fn mount(from: &Path, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (from, to) = (from?, to?);
    // SAFETY: both are C strings that live across the call; type and data are not looked at.
    let mounted = unsafe {
        libc::mount(
            from.as_ptr(),
            to.as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    };
    told(mounted)
}

fn told(answer: i32) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

//! A node's devices as the node itself sees them, for a program in a container: its own /sys and /dev are
//! those of the container.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

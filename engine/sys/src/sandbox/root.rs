//! Replaces the root of the calling process's mount namespace by an empty, read-only one.

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};

use super::Error;

/// Makes the mounts of this namespace private. Otherwise changes would reach the namespace that it was copied from.
///
/// # Errors
/// [`Error::Call`] without `CAP_SYS_ADMIN` over the mount namespace.
pub(super) fn detach_from_outside() -> Result<(), Error> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)
        .map_err(Error::call("make the mounts of the process private"))
}

/// Makes an empty tmpfs the root and the working folder, and detaches the earlier root with all that is mounted
/// below it, after [`detach_from_outside`].
///
/// # Errors
/// [`Error::Call`] without `CAP_SYS_ADMIN` over the mount namespace, or before Linux 5.2.
pub(super) fn empty() -> Result<(), Error> {
    let tmpfs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(Error::call("open a tmpfs"))?;
    rustix::mount::fsconfig_set_string(&tmpfs, "mode", "0555")
        .and_then(|()| rustix::mount::fsconfig_set_flag(&tmpfs, "ro"))
        .and_then(|()| rustix::mount::fsconfig_create(&tmpfs))
        .map_err(Error::call("create a read-only tmpfs"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = rustix::mount::fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(Error::call("mount the empty root"))?;
    // Over the root itself: a container without a shell need not have any other folder.
    let from_descriptor = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&mount, "", CWD, "/", from_descriptor)
        .map_err(Error::call("attach the empty root"))?;
    rustix::process::fchdir(&mount).map_err(Error::call("enter the empty root"))?;
    // With the same folder twice, the earlier root is mounted over the new one (pivot_root(2)).
    rustix::process::pivot_root(".", ".").map_err(Error::call("change the root"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)
        .map_err(Error::call("detach the earlier root"))?;
    rustix::process::chdir("/").map_err(Error::call("enter the new root"))
}

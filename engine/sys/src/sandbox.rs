//! The sandbox of a process that reads bytes of tenants: own namespaces with an empty root, no privileges, and a
//! seccomp filter. Order: open what the process needs, [`isolate`], [`confine`], then start threads.

mod filter;
mod privileges;
mod root;

use std::io;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// The user and group that a confined process runs as. Neither may be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// User ID in the process's user namespace.
    pub uid: u32,
    /// Group ID in the process's user namespace.
    pub gid: u32,
}

/// The devices whose system calls a confined process may make. Their files are opened before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// None.
    None,
    /// RDMA devices by libibverbs.
    Verbs,
}

/// Why a process is not in the sandbox. It must not read a byte of a tenant and should exit: some of the steps
/// may have been carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {step}: {source}")]
    Call {
        /// What was attempted, as an infinitive.
        step: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The calling process has more than one thread. Only the calling thread would be confined.
    #[error(
        "cannot {step}: the process has several threads; call this before any thread is started"
    )]
    Threads {
        /// What was attempted, as an infinitive.
        step: &'static str,
    },
    /// The identity is that of root, or the kernel takes it for "no change".
    #[error("cannot change to user {uid} and group {gid}: neither may be 0 or 4294967295")]
    Identity {
        /// The requested user ID.
        uid: u32,
        /// The requested group ID.
        gid: u32,
    },
    /// The seccomp filter cannot be compiled or installed.
    #[error("cannot install the seccomp filter: {0}")]
    Filter(#[from] seccompiler::Error),
}

impl Error {
    /// Wraps the system's error of a step.
    fn call(step: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Call {
            step,
            source: errno.into(),
        }
    }
}

/// Moves the process into mount, PID, IPC and UTS namespaces of its own, with an empty, read-only root: nothing of
/// the earlier file system remains, also not /proc and /sys. Open descriptors stay open; one of a folder would
/// still lead to its files, until [`confine`] refuses every call that opens one. The network and user namespaces
/// and the cgroup do not change.
///
/// A PID namespace only holds children. So this forks and returns in the child, which is process 1 of the new
/// namespace; the parent exits at once with status 0, without running destructors or exit handlers. Process 1
/// ends with its last thread, and the kernel kills it for SIGKILL and for its own faults only: any other signal
/// needs a handler. So `abort` ends it by the fault that glibc makes when SIGABRT has no effect: on x86-64, the status
/// is that of SIGSEGV.
///
/// # Errors
/// [`Error::Threads`]; [`Error::Call`] with `EPERM` without `CAP_SYS_ADMIN`, others of `unshare(2)`, `fork(2)`,
/// `fsopen(2)` (Linux 5.2), `move_mount(2)` and `pivot_root(2)`. Before the fork the process is the caller's;
/// after it, the child reports the error.
pub fn isolate() -> Result<(), Error> {
    isolate_after(|| ())
}

/// Like [`isolate`], and calls `open` in process 1 while it still has the earlier root, in a mount namespace of its own:
/// a device that is opened there is not shared with the parent. `open` must not leave a thread behind.
///
/// # Errors
/// As [`isolate`].
pub fn isolate_after<T>(open: impl FnOnce() -> T) -> Result<T, Error> {
    require_one_thread("isolate the process")?;
    // Before Linux 6.4 rustix reads the page size from /proc/self/auxv, which an empty root does not have. It keeps it.
    rustix::param::page_size();
    let own = |flags, step| {
        // SAFETY: the process has one thread, and its descriptor table is not among the flags.
        unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Error::call(step))
    };
    own(UnshareFlags::NEWNS, "enter an own mount namespace")?;
    own(UnshareFlags::NEWIPC, "enter an own IPC namespace")?;
    own(UnshareFlags::NEWUTS, "enter an own UTS namespace")?;
    own(UnshareFlags::NEWPID, "create an own PID namespace")?;
    become_child()?;
    root::detach_from_outside()?;
    let opened = open();
    root::empty()?;
    Ok(opened)
}

/// Takes every privilege from the process and installs the seccomp filter, which threads inherit: no core dumps,
/// no supplementary groups, user and group `identity`, no capability in any set, `no_new_privs`, not dumpable, and
/// only the system calls of `filter.rs`, with those of `devices`. Other calls fail with `ENOSYS`; calls that only an
/// intruder makes kill the process with `SIGSYS`. None of this can be undone. No file can be opened any more, so the
/// process must read what it needs from /sys and /etc before, and cannot look up host names.
///
/// # Errors
/// [`Error::Threads`]; [`Error::Identity`]; [`Error::Call`] with `EPERM` without `CAP_SETUID`, `CAP_SETGID` and
/// `CAP_SETPCAP`; [`Error::Filter`] without kernel support for seccomp.
pub fn confine(identity: Identity, devices: Devices) -> Result<(), Error> {
    require_one_thread("confine the process")?;
    // rustix reads the parameters of the process once, with a call that the filter refuses.
    rustix::param::page_size();
    privileges::drop_all(identity)?;
    filter::install(devices)
}

/// Checks that the calling thread is the only one: identity and filter belong to a thread, and `fork` copies only
/// the caller.
fn require_one_thread(step: &'static str) -> Result<(), Error> {
    let thread = UnshareFlags::from_bits_retain(libc::CLONE_THREAD.cast_unsigned());
    // SAFETY: with this flag alone the call changes nothing; it fails if there is another thread (unshare(2)).
    match unsafe { rustix::thread::unshare_unsafe(thread) } {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) => Err(Error::Threads { step }),
        Err(errno) => Err(Error::call(step)(errno)),
    }
}

/// Forks and exits in the parent.
fn become_child() -> Result<(), Error> {
    // SAFETY: the process has one thread, so the child's copy of memory has no lock that another thread holds.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(Error::Call {
            step: "fork into the PID namespace",
            source: io::Error::last_os_error(),
        }),
        0 => Ok(()),
        // SAFETY: ends the process without running anything of it; what it has open belongs to the child.
        _ => unsafe { libc::_exit(0) },
    }
}

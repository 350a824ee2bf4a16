//! Network namespaces, and threads that work inside them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

/// A network namespace. Sockets created inside [`Namespace::run`] stay in it, whichever thread uses them
/// later.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    /// Opens the namespace of a process. Requires `PTRACE_MODE_READ` access to it.
    ///
    /// # Errors
    /// `NotFound` if there is no such process; `PermissionDenied` without access.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::open(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// Opens the namespace at a path such as `/run/netns/name`.
    ///
    /// # Errors
    /// From `open(2)`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// From `open(2)`.
    pub fn current() -> io::Result<Self> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?.into()))
    }

    /// Moves the calling thread into the namespace. Threads that it starts later are in it too.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(rustix::thread::move_into_link_name_space(
            self.0.as_fd(),
            kind,
        )?)
    }

    /// Runs `work` inside the namespace, on a new thread, so that no other thread of this process changes
    /// its namespace. Blocks the caller until `work` returns.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`; errors of `setns(2)`, of starting the thread, and of
    /// `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new()
                .name("netns".to_owned())
                .stack_size(256 << 10)
                .spawn_scoped(scope, || {
                    self.enter()?;
                    work()
                })?;
            match inside.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Namespace {
    /// Wraps a descriptor. If it is not a network namespace, [`Namespace::run`] fails.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

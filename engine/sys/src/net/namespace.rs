//! A network namespace by descriptor, and work done inside it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

/// A network namespace. Sockets made inside [`Namespace::run`] belong to it for their whole life,
/// whoever uses them afterwards.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

impl Namespace {
    /// The namespace of a process, e.g. of a pod's. Needs the right to look at that process.
    ///
    /// # Errors
    /// What the kernel says, `NotFound` if there is no such process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::open(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// The namespace behind a path such as `/run/netns/name`.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn current() -> io::Result<Self> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?.into()))
    }

    /// Runs `work` inside the namespace, on a thread of its own that ends with it, so that no
    /// other thread of this process ever changes place. Meant for making and connecting sockets:
    /// it blocks the caller until `work` is done, so `work` must not wait without a bound.
    ///
    /// # Errors
    /// What the kernel says about entering (`CAP_SYS_ADMIN` is needed), or the error of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new()
                .name("netns".to_owned())
                .stack_size(256 << 10)
                .spawn_scoped(scope, || {
                    rustix::thread::move_into_link_name_space(
                        self.0.as_fd(),
                        Some(LinkNameSpaceType::Network),
                    )?;
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
    /// Takes a descriptor of a network namespace; a descriptor of anything else shows as an error
    /// of [`Namespace::run`].
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

//! RDMA devices through libibverbs, which is loaded at run time: a machine without it only lacks RDMA.
//!
//! Objects keep what they depend on alive: a queue pair its domain and queue, a registration its domain
//! and memory, and all of them the opened device. If the kernel fails to deregister memory, the memory
//! stays mapped, because the device may still access it.

mod device;
mod events;
mod ffi;
mod library;
mod memory;
mod queue;
mod requests;
mod view;

pub use device::{Context, Device, Limits, LinkLayer, PortFacts, devices};
pub use events::{DeviceEvent, DeviceEvents};
pub use memory::{MemoryRange, MemoryRegion, ProtectionDomain, RemoteKey};
pub use queue::{Class, CompletionQueue, Destination, Path, QueuePair, connected};
pub use requests::{Completion, CompletionChannel, Direction, Posted, Remote, WorkRequest};
pub use view::{in_root, mount_driver_gpus, mount_host_devices};

use std::fmt;
use std::io;

/// A step in the use of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Loading libibverbs.
    Load,
    /// Listing the devices, and finding the requested one.
    Find,
    Open,
    QueryDevice,
    QueryPort,
    QueryGid,
    MakeDomain,
    Register,
    Deregister,
    /// Reading the events of the device.
    Events,
    /// Creating a completion channel, or requesting its next event.
    Notify,
    MakeQueue,
    MakeQueuePair,
    /// Moving a queue pair to INIT, with its port.
    Init,
    /// Moving a queue pair to RTR, with its peer.
    ReadyToReceive,
    ReadyToSend,
    /// Moving a queue pair to the error state, which ends its work requests.
    Fail,
    /// Destroying a queue pair.
    Destroy,
    /// Posting a work request.
    Post,
    /// Waiting for the completion of a work request.
    Complete,
}

impl Call {
    /// Returns a description for messages.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Load => "loading libibverbs",
            Self::Find => "finding the device",
            Self::Open => "opening the device",
            Self::QueryDevice => "querying the device's limits",
            Self::QueryPort => "querying the port's state",
            Self::QueryGid => "querying the port's GID",
            Self::MakeDomain => "creating a protection domain",
            Self::Register => "registering memory",
            Self::Deregister => "deregistering memory",
            Self::Events => "reading the device's events",
            Self::Notify => "setting up completion events",
            Self::MakeQueue => "creating a completion queue",
            Self::MakeQueuePair => "creating a queue pair",
            Self::Init => "moving a queue pair to INIT",
            Self::ReadyToReceive => "moving a queue pair to RTR",
            Self::ReadyToSend => "moving a queue pair to RTS",
            Self::Fail => "moving a queue pair to the error state",
            Self::Destroy => "destroying a queue pair",
            Self::Post => "posting a write",
            Self::Complete => "completing a write",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {why}")]
pub struct Error {
    /// The step.
    pub call: Call,
    /// The cause.
    pub why: Why,
}

/// The cause of an [`Error`].
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The errno of the kernel or of libibverbs.
    #[error("{0}")]
    Errno(#[source] io::Error),
    /// The loader's error.
    #[error("{0}")]
    Library(String),
    /// The entry of the GID table is empty.
    #[error("the entry is empty")]
    Empty,
    /// The device's driver or libibverbs does not support it.
    #[error("the device's driver does not support it")]
    Unsupported,
    /// The work request failed, with the completion status and its name.
    #[error("{name} (status {status}, vendor error {vendor:#x})")]
    Failed {
        status: u32,
        vendor: u32,
        name: &'static str,
    },
    /// No completion arrived before the deadline.
    #[error("no completion before the deadline")]
    TimedOut,
    /// The range is not inside the registered memory.
    #[error("the range is not inside the registered memory")]
    OutOfRange,
}

impl Error {
    fn of(call: Call, why: Why) -> Self {
        Self { call, why }
    }

    /// The error of a call that returned null.
    fn last(call: Call) -> Self {
        Self::of(call, Why::Errno(io::Error::last_os_error()))
    }

    /// Returns the errno, if that is the cause.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match &self.why {
            Why::Errno(error) => error.raw_os_error(),
            _ => None,
        }
    }

    /// Returns whether a device that was reset or removed fails so, on which all later calls fail: the kernel has ended the
    /// use of the opened one. Other failures have these errnos too.
    #[must_use]
    pub fn may_be_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::EIO | libc::ENODEV))
    }
}

/// Checks the result of a call: 0, an errno, or -1 with errno set.
fn done(call: Call, answer: i32) -> Result<(), Error> {
    match answer {
        0 => Ok(()),
        error if error > 0 => Err(Error::of(
            call,
            Why::Errno(io::Error::from_raw_os_error(error)),
        )),
        _ => Err(Error::last(call)),
    }
}

//! RDMA devices by libibverbs, which is loaded at run time: a machine without it has no RDMA, and lacks
//! nothing else.
//!
//! Whoever is made of something keeps it alive: a queue pair its domain and queue, a registration its
//! domain and memory, all of them the opened device. What the kernel refuses to give back stays where it
//! is, with the memory that the device may still reach.

mod device;
mod ffi;
mod library;
mod memory;
mod queue;
mod view;

pub use device::{Context, Device, Limits, LinkLayer, PortFacts, devices};
pub use memory::{MemoryRegion, Piece, ProtectionDomain};
pub use queue::{CompletionQueue, Destination, Path, QueuePair, connected};
pub use view::{add_gpus, take_view};

use std::fmt;
use std::io;

/// What was asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// libibverbs is loaded.
    Load,
    /// The devices are listed, and the one that is meant is found among them.
    Find,
    Open,
    QueryDevice,
    QueryPort,
    QueryGid,
    MakeDomain,
    Register,
    Deregister,
    MakeQueue,
    MakeQueuePair,
    /// A queue pair is given its port.
    Init,
    /// A queue pair is told its peer.
    ReadyToReceive,
    ReadyToSend,
    /// An order is given to the device.
    Post,
    /// The device carries an order out.
    Complete,
}

impl Call {
    /// What it is called in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Load => "loading libibverbs",
            Self::Find => "finding the device",
            Self::Open => "opening the device",
            Self::QueryDevice => "asking for the device's limits",
            Self::QueryPort => "asking for the port's state",
            Self::QueryGid => "asking for the port's GID",
            Self::MakeDomain => "making a protection domain",
            Self::Register => "registering memory",
            Self::Deregister => "giving a registration back",
            Self::MakeQueue => "making a completion queue",
            Self::MakeQueuePair => "making a queue pair",
            Self::Init => "taking a queue pair to INIT",
            Self::ReadyToReceive => "taking a queue pair to RTR",
            Self::ReadyToSend => "taking a queue pair to RTS",
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

/// Why a device did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {why}")]
pub struct Error {
    /// What was asked.
    pub call: Call,
    /// What came back.
    pub why: Why,
}

/// What came back.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The kernel's word, or the library's.
    #[error("{0}")]
    Errno(#[source] io::Error),
    /// What the loader says.
    #[error("{0}")]
    Library(String),
    /// The entry of the GID table is empty.
    #[error("the entry is empty")]
    Empty,
    /// The device's driver cannot do it.
    #[error("the device's driver cannot do it")]
    Unsupported,
    /// The order came back undone, by the number and the word for it.
    #[error("{word} (status {status}, vendor's {vendor:#x})")]
    Undone {
        status: u32,
        vendor: u32,
        word: &'static str,
    },
    /// Nothing came back in time.
    #[error("nothing came back in time")]
    Late,
    /// The range leaves the registered memory.
    #[error("the range leaves the registered memory")]
    OutOfRange,
}

impl Error {
    fn of(call: Call, why: Why) -> Self {
        Self { call, why }
    }

    /// Of a call that answers with a pointer.
    fn last(call: Call) -> Self {
        Self::of(call, Why::Errno(io::Error::last_os_error()))
    }

    /// The number of the kernel's word, if that is what came back.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match &self.why {
            Why::Errno(error) => error.raw_os_error(),
            _ => None,
        }
    }
}

/// Of a call that answers 0, the error itself, or -1 with errno.
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

//! GPUs by the libraries of NVIDIA's driver, which come with it on the node and are loaded at run time: a
//! node without them has no such GPU, and lacks nothing else.
//!
//! Whatever these libraries answer is a number: a driver that is newer than these lines may answer what no
//! list has. Each of their calls may hold its caller for as long as the driver likes.

mod driver;

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "nvml")]
pub mod nvml;

use std::ffi::{CStr, c_char};
use std::io;

/// Why a GPU did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No folder in which drivers put their libraries has this one.
    #[error("no folder of a GPU driver has {0}")]
    Absent(&'static str),
    /// What the loader says, or what the kernel says of the file.
    #[error("{0}")]
    Library(String),
    /// What the library says, with its number.
    #[error("{words} ({number})")]
    Refused { number: u32, words: String },
    /// The driver is older than the function.
    #[error("the driver has no {0}")]
    Unsupported(&'static str),
    /// What it is called by is no word that the library takes.
    #[error("{0} is no PCI address")]
    NoAddress(String),
    /// The range leaves the memory.
    #[error("the range leaves the memory")]
    OutOfRange,
    /// What was to be a descriptor is none.
    #[error("{0}")]
    NoDescriptor(#[source] io::Error),
}

impl Error {
    /// The number that the library said.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Refused { number, .. } => Some(*number),
            _ => None,
        }
    }
}

/// The words at an address that a library gave, which is null where it has none.
///
/// # Safety
/// It is null or a C string that nobody changes during the call.
unsafe fn words(at: *const c_char) -> String {
    if at.is_null() {
        return "an error of no list".to_owned();
    }
    // SAFETY: not null, and then a C string, as the caller says.
    let words = unsafe { CStr::from_ptr(at) };
    words.to_string_lossy().into_owned()
}

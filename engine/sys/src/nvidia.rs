//! GPUs through the libraries of NVIDIA's driver, which are loaded at run time: a node without them only
//! lacks these GPUs.
//!
//! Status values are kept as numbers, because a newer driver may return unknown ones. Every call may
//! block for ever.

mod driver;

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "nvml")]
pub mod nvml;

use std::ffi::{CStr, c_char};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No driver folder contains this library.
    #[error("no GPU driver folder contains {0}")]
    Absent(&'static str),
    /// The error of the loader, or of opening the file.
    #[error("{0}")]
    Library(String),
    /// The library returned an error.
    #[error("{text} ({number})")]
    Failed { number: u32, text: String },
    /// The driver does not have this function.
    #[error("the driver has no {0}")]
    Unsupported(&'static str),
    /// The library does not accept the PCI address.
    #[error("{0} is not a PCI address")]
    BadAddress(String),
    /// The range is not inside the memory.
    #[error("the range is not inside the memory")]
    OutOfRange,
    /// The library returned an invalid descriptor.
    #[error("the driver returned an invalid descriptor")]
    BadDescriptor,
}

impl Error {
    /// Returns the library's error number.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Failed { number, .. } => Some(*number),
            _ => None,
        }
    }
}

/// Copies the text at an address from a library.
///
/// # Safety
/// The address is null or a C string that does not change during the call.
unsafe fn text_at(at: *const c_char) -> String {
    if at.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, so a C string as the caller guarantees.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_string_lossy().into_owned()
}

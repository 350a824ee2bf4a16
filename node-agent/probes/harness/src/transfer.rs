//! The transfer that proves a path: its memory, its bytes and their comparison.

use std::sync::Arc;
use std::time::Duration;

use sys::mem::{self, PageSize, Region, memfd};
use sys::verbs::{MemoryRange, MemoryRegion};

/// Bytes of a transfer: one page of a GPU.
pub const LENGTH: u32 = 64 << 10;

/// Deadline of the transfers over one port; the device retries each 7 times, at least 67 ms apart.
pub const TRANSFER_DEADLINE: Duration = Duration::from_secs(3);

/// Period of the pattern; a prime, so that a misplaced page is detected.
const PERIOD: usize = 251;

/// The bytes of a transfer, different for each `salt`.
#[must_use]
pub fn pattern(salt: u8) -> Vec<u8> {
    let bytes = (0..LENGTH as usize).map(|at| at % PERIOD);
    bytes
        .filter_map(|byte| u8::try_from(byte).ok())
        .map(|byte| byte ^ salt)
        .collect()
}

/// Compares sent and received bytes; the error is the number of differences as text.
///
/// # Errors
/// Bytes differ.
pub fn compare(sent: &[u8], received: &[u8]) -> Result<(), String> {
    let pairs = sent.iter().zip(received);
    match pairs.filter(|(sent, received)| sent != received).count() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} of {LENGTH} bytes differ")),
    }
}

/// Host memory of [`LENGTH`] bytes with allocated pages.
///
/// # Errors
/// The kernel has no memory or file descriptor.
pub fn host_memory() -> Result<Arc<Region>, mem::Error> {
    let length = u64::from(LENGTH);
    let region = Region::map(
        memfd::create("probe", length, PageSize::Base)?,
        length,
        PageSize::Base,
    )?;
    region.populate(0, length)?;
    Ok(Arc::new(region))
}

/// All of a registered memory region.
#[must_use]
pub fn whole(memory: &MemoryRegion) -> MemoryRange<'_> {
    MemoryRange {
        memory,
        offset: 0,
        length: LENGTH,
    }
}

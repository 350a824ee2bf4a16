//! All unsafe code of the project, behind safe types.
//!
//! Rules for this crate:
//! 1. No safe function takes an address or a raw descriptor. Memory is passed as an owned descriptor
//!    that is checked and mapped, sockets as [`std::os::fd::BorrowedFd`].
//! 2. Mapped memory is shared with other processes and never becomes a `&[u8]`. Bytes move only
//!    through bounds-checked calls that pass the range to the kernel.
//! 3. Memory from another process cannot crash this one: it is sealed against shrinking and accessed
//!    by the kernel only, so a missing page is an error and not a signal.
//!
//! Features: `mem` for memory, `net` for sockets and namespaces, `sandbox` for a process that reads bytes of
//! tenants, `verbs` for RDMA devices through libibverbs, `nvml` and `cuda` for GPUs through the driver's libraries.
//! Those libraries are loaded at run time. `allocations` is for tests.
#![allow(unsafe_code, reason = "this crate holds all unsafe code")]

#[cfg(feature = "allocations")]
pub mod allocations;
#[cfg(any(feature = "verbs", feature = "cuda", feature = "nvml"))]
mod loader;
#[cfg(feature = "mem")]
pub mod mem;
#[cfg(feature = "net")]
pub mod net;
pub mod numa;
#[cfg(any(feature = "cuda", feature = "nvml"))]
pub mod nvidia;
#[cfg(feature = "sandbox")]
pub mod sandbox;
#[cfg(feature = "verbs")]
pub mod verbs;

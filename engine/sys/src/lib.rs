//! All unsafe code of the project, behind types that cannot be misused from safe code.
//!
//! Rules for being in here:
//! 1. No safe function takes an address or a raw descriptor: memory enters as an owned
//!    descriptor that is checked and mapped, sockets come as [`std::os::fd::BorrowedFd`].
//! 2. Mapped memory is shared with other processes and never becomes a `&[u8]`; bytes move only
//!    through bounds-checked calls that hand the range to the kernel.
//! 3. A foreign process cannot end ours through memory that it gave us: sealed against shrinking,
//!    and touched only by the kernel on our behalf, so a bad page is an error and not a signal.
//!
//! Feature `mem` is memory (what a pool process needs), feature `net` is sockets and namespaces, feature
//! `verbs` is RDMA devices, by a libibverbs that is loaded at run time; `nvml` and `cuda` are GPUs, by the
//! libraries of their driver, likewise.
#![allow(unsafe_code, reason = "this crate is the one room for unsafe code")]

#[cfg(any(feature = "verbs", feature = "cuda", feature = "nvml"))]
mod loader;
#[cfg(feature = "mem")]
pub mod mem;
#[cfg(feature = "net")]
pub mod net;
#[cfg(any(feature = "cuda", feature = "nvml"))]
pub mod nvidia;
#[cfg(feature = "verbs")]
pub mod verbs;

//! The engine process of one pool pod: it serves the pod's memory to peers and mounts it in the master. It parses
//! everything that pools, tenants, peers and masters send; so it has no privileges and sees no files. Its agent
//! starts it, and it outlives its agent.
//!
//! ```text
//! agent ── control socket ──► control::link ──► pod (steps of one pool pod) ──► engine, store session
//!       ◄── reports, calls ──               ◄──
//! ```

#[cfg(feature = "program")]
pub mod args;
pub mod control;
#[cfg(feature = "program")]
pub mod launch;
#[cfg(feature = "program")]
pub mod log;
pub mod pidfd;
#[cfg(feature = "program")]
mod pod;
pub mod start;
#[cfg(feature = "program")]
pub mod unmount;

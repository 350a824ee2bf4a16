//! The control socket between an agent and an engine process: one agent at a time, the latest. Packets and limits are
//! those of the hand-over.

#[cfg(feature = "program")]
pub mod agent;
#[cfg(feature = "program")]
pub mod link;
pub mod message;
#[cfg(feature = "program")]
pub(crate) mod silence;
#[cfg(feature = "program")]
pub(crate) mod succession;

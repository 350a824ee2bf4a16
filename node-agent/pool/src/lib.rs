//! The pool process: owns memory, listeners and identity of one pool pod and outlives every agent. It is simple, so
//! that it never needs an upgrade.

pub mod args;
mod guard;
pub mod handover;
mod probe;
mod ready_port;
mod run;
mod secret;
pub mod serve;
mod state;
mod touch;

pub use run::run;

//! The gate: the sidecar that holds an injected pod's start until its pool really answers from
//! inside the pod, with a deadline, and then stays out of the way.

pub mod args;
mod hold;
mod http;
mod install;
mod master;
mod peer;
mod preflight;
mod segment;
mod survey;
mod verdict;

pub use hold::{HoldError, hold};
pub use install::{InstallError, install};
pub use master::{NotReady, master_ready};
pub use verdict::{Verdict, VerdictError};

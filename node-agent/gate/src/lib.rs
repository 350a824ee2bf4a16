//! The gate: a sidecar that delays the start of an injected pod until its pool responds from inside the pod, at
//! most until a deadline, and then idles.

pub mod args;
mod atomic_file;
mod gate_state;
mod hold;
mod http;
mod install;
mod master;
mod peer;
mod preflight;
mod run;
mod segment;
mod survey;

pub use run::run;

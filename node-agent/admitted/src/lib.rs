//! Which addresses may connect to a cluster. Agents watch them for pool pods; the program `admitted` writes them to a file
//! for the built-in master, which thus needs no access to Kubernetes.

pub mod file;
mod watch;

pub use watch::{Admitted, members, operators};

//! Which addresses may connect to a cluster. Agents watch them for pool pods; the program `admitted` writes them to a file
//! for the built-in master, which thus needs no access to Kubernetes. Where there are several masters, it also elects the one that
//! serves.

pub mod args;
pub mod election;
pub mod elector;
pub mod file;
mod quotas;
mod run;
pub mod seat;
mod watch;
mod witness;

pub use run::run;
pub use watch::{Addresses, Admitted, members, operators};

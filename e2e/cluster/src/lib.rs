//! Creates, uses, disturbs and removes a real Kubernetes cluster on one machine.
//!
//! 1. A cluster is what its folder under the state directory records: names, pids with start times, addresses.
//!    Any process that can read the folder can use the cluster and remove it.
//! 2. A process is never signalled by pid alone: pid and start time must match the record.
//! 3. Changes to the machine outside the cluster's own names are recorded before they are made, and reverted
//!    when the last cluster is removed.
//! 4. Binaries and images are cache entries, named by a hash of their inputs.
//! 5. Every wait has a deadline, and its error names what was awaited and the log.

pub mod binaries;
pub mod cache;
pub mod cluster;
pub mod command;
pub mod error;
pub mod guest;
pub mod images;
mod kernel;
pub mod kubectl;
pub mod needs;
pub mod process;
pub mod settings;
pub mod wait;

pub use cluster::{Cluster, NodeKind, Part, Spec};
pub use error::Error;
pub use settings::{Scale, Settings};

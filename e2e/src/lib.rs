//! A real Kubernetes on one machine, and what the stories told on it share.
//!
//! 1. A cluster is what its folder under the state directory records: names, pids with start times, addresses.
//!    Whoever has the folder can use it and take it down; the process that made it need not live.
//! 2. Nothing is killed by a pid alone: a recorded process is the one with the same start time.
//! 3. What is changed on the machine outside the cluster's own names is recorded first and put back
//!    when the last cluster goes.
//! 4. Binaries and images live in a cache whose entries are named by a hash of what they are made from.
//! 5. Every wait has a deadline, and says what it waited for and where the log is.

pub mod binaries;
pub mod cache;
pub mod cluster;
pub mod command;
pub mod error;
pub mod images;
pub mod kubectl;
pub mod needs;
pub mod process;
pub mod product;
pub mod settings;
pub mod story;
pub mod wait;

pub use cluster::{Cluster, NodeKind, Part, Spec};
pub use error::Error;
pub use settings::Settings;

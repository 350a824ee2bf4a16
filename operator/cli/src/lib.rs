//! `kubectl mooncake`: shows the state of Mooncake on a cluster, explains problems, and drains nodes.
//!
//! ```text
//! args --> connection --> collect --> Snapshot --> status, doctor, why, node, segment, sizing --> table | JSON
//!              +--> preflight, bundle (read more), keys (reads the master)
//!          effects: each request has a deadline    pure: values in, values out
//! ```

pub mod admin_port;
pub mod age;
pub mod args;
pub mod bundle;
pub mod collect;
pub mod connection;
pub mod doctor;
pub mod drain;
pub mod keys;
pub mod masters;
pub mod node;
pub mod preflight;
pub mod read_error;
pub mod renderer;
pub mod report;
pub mod run;
pub mod segment;
pub mod sizing;
pub mod snapshot;
pub mod status;
pub mod webhook;
pub mod why;

pub use report::Report;
pub use run::run;
pub use snapshot::Snapshot;

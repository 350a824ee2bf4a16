//! The agent of a node: takes descriptors from the node's pool pods, serves them and mounts them in
//! their cluster's master.

mod admission;
pub mod args;
mod assignments;
mod census;
mod claim;
mod fleet;
mod http;
mod ledger;
mod metrics;
mod numa;
mod pool;
mod readers;
mod report;
pub mod supervisor;
pub mod worker;

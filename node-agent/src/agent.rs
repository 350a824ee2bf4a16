//! The agent of a node: takes descriptors from the node's pool pods, serves them and mounts them in
//! their cluster's master.

mod admission;
pub mod args;
pub(crate) mod assignments;
mod canary;
mod census;
mod child;
mod claim;
mod clock;
mod containers;
pub mod describe;
mod fixing;
mod fleet;
mod gpus;
mod grpc;
pub mod hardware;
mod health;
mod http;
pub mod inventory;
mod inventory_object;
mod ledger;
mod metrics;
mod name_service;
mod numa;
mod orphans;
pub(crate) mod pace;
pub(crate) mod patience;
mod pool;
mod proof;
mod readers;
mod report;
mod room;
mod runtime;
pub mod supervisor;
pub mod worker;

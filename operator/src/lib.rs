//! The operator: turns MooncakeClusters into Kubernetes objects and MooncakeNodes, reports their
//! status, and injects pods. `kubectl mooncake` (`operator/cli`) judges by the same functions.
//!
//! `run` is the one place that spawns. Each kind has a pipeline of files: observe (caches), validate,
//! desired (pure), apply, status (pure, then one write). Invariants, each with a test of its name:
//!
//! 1. A second reconcile with nothing changed writes nothing.
//! 2. A deposed leader ends its last write before another may begin.
//! 3. Another release or image of the operator restarts neither a pool pod nor a master.
//! 4. Pool pods are replaced one at a time, the next only when all others serve.
//! 5. A pod is served only if a DaemonSet of the operator owns it, regardless of its labels.

pub mod admission;
pub mod apply;
pub mod args;
pub mod cache;
pub mod certificates;
pub mod cluster;
pub mod compute_domain;
pub mod controller;
pub mod cordon_state;
pub mod event;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod node;
pub mod pod;
mod pod_parts;
pub mod policy;
pub mod quantity;
pub mod run;
mod undecodable;
pub mod untyped;

pub use crds::sizing;

#[cfg(test)]
mod fixture;

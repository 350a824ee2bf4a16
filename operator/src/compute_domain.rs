//! ComputeDomains (NVIDIA's multi-node NVLink): creates or finds the one that a cluster requests, and
//! decides for each node whether its pods may use NVLink to other nodes.
//!
//! ```text
//! cache::ComputeDomains: watches --> snapshot
//! snapshot --> membership of each node --> status of the cluster        pure
//! created by the operator, requested by no cluster, no claim --> deleted by retire
//! ```

pub mod desired;
pub mod membership;
pub mod request;
pub mod retire;
pub mod status;
pub mod view;

#[cfg(test)]
pub(crate) mod fixture;

pub use request::DomainRequest;

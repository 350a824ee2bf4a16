//! ComputeDomains (NVIDIA's multi-node NVLink): makes or finds the one that a cluster wants, and says
//! of each node whether pods there may use NVLink to other nodes.
//!
//! ```text
//! CRD watch --> absent: a calm condition            fabric    effects: watches, state
//!           --> there: six more watches             objects   plain values out of API objects
//! world --> membership --> outlook                  the rest  pure: decided from those values
//! domain of ours, wanted by nobody, no claim --> deleted      retire
//! ```

pub mod desired;
pub mod fabric;
pub mod membership;
pub mod objects;
pub mod outlook;
pub mod patience;
pub mod retire;
pub mod view;
pub mod wanted;
pub mod world;

#[cfg(test)]
pub(crate) mod fixture;

pub use fabric::{Fabric, State};
pub use wanted::Wanted;
pub use world::World;

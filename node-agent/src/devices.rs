//! RDMA devices that pods claim (dynamic resource allocation): offered to the scheduler as slots, given
//! to the pod that holds the claim, and to no other.
//!
//! ```text
//! Facts ─ offer ─ ResourceSlice ─► scheduler ─► ResourceClaim
//!                                                    │ allocation
//! kubelet ─ rpc ─ driver ───────────────────────── grant ─ holdings ─ cdi ─► container runtime
//!    ▲                                                        │
//!    └─ what pods are told ────────────────── health ─────────┼─ sick
//!       who is asked to restart ──────────── owners ─────────┘
//! ```

use std::path::PathBuf;

mod allotment;
mod cdi;
mod checkpoint;
mod driver;
mod health;
mod holdings;
mod memlock;
mod message;
mod offer;
mod owners;
mod plugin;
mod publication;
mod refusal;
pub(crate) mod rpc;

pub(crate) use plugin::keep;

/// Name of the driver, of its DeviceClass and of the domain of its attributes.
pub(crate) const DRIVER: &str = "hca.mooncake.io";

/// Where and what is offered.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) node_name: String,
    /// Tells the sockets of this agent's pod from those of another, of which the kubelet may be weary.
    pub(crate) pod_uid: String,
    pub(crate) kubelet: PathBuf,
    pub(crate) cdi: PathBuf,
    /// What was given outlives the agent in here.
    pub(crate) state: PathBuf,
    pub(crate) boot_id: String,
    /// How many claims may share a device.
    pub(crate) slots_per_hca: u8,
}

//! DRA driver for the node's RDMA devices: publishes them as slots in a ResourceSlice, prepares the claims
//! that the scheduler allocates, and gives their device files to the pods of the claim only.
//!
//! ```text
//! Snapshot ─ slice ─ slice_publisher ─ ResourceSlice ─► scheduler ─► ResourceClaim
//!                                                                        │ allocation
//! kubelet ─ rpc ─ driver ──────────────────────────────────── grant ─ claim_store ─ cdi ─► container runtime
//!    ▲                                                                   │
//!    └─ device health in pod status ──────────────── health ─────────────┼─ unhealthy devices
//!       affected pods ────────────────────────────── owners ─────────────┘
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use host::Snapshot;
use tokio::sync::watch;

mod allocation;
pub mod backoff;
mod cdi;
mod checkpoint;
mod claim_store;
pub mod deadline;
mod driver;
mod health;
mod memlock_hook;
mod message;
mod owners;
mod plugin;
mod refusal;
pub mod rpc;
mod slice;
mod slice_publisher;

pub(crate) use checks::unhealthy_devices::UnhealthyDevices;
pub use plugin::keep;

/// Name of the driver, of its DeviceClass and of the domain of its attributes.
pub(crate) const DRIVER: &str = "hca.mooncake.io";

/// The latest snapshot of the node; none before the first reading of the hardware.
pub type Snapshots = watch::Receiver<Option<Arc<Snapshot>>>;

/// What the driver works with.
#[derive(Clone)]
pub struct Inputs {
    pub settings: Settings,
    pub client: kube::Client,
    pub snapshots: Snapshots,
    pub node_uid: watch::Receiver<Option<String>>,
    pub unhealthy: watch::Receiver<UnhealthyDevices>,
    /// Where the driver delivers the pods that hold unhealthy devices.
    pub inbox: watch::Sender<Snapshot>,
    /// True when the driver is to stop.
    pub stopped: watch::Receiver<bool>,
}

/// Settings of the driver.
#[derive(Debug, Clone)]
pub struct Settings {
    pub node_name: String,
    /// Part of the socket names: the kubelet may have given up the sockets of an earlier agent pod.
    pub pod_uid: String,
    pub kubelet: PathBuf,
    pub cdi: PathBuf,
    /// Directory of the checkpoint, which outlives the agent.
    pub state: PathBuf,
    pub boot_id: String,
    /// Slots of each RDMA device: the number of claims that can share it.
    pub slots_per_hca: u8,
}

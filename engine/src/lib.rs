//! The transfer engine: serves memory regions to Mooncake peers, and transfers bytes between regions
//! and peers. Knows nothing of Kubernetes.
//!
//! ```text
//!  Endpoint (one served identity: name, listeners, regions, admission)
//!    │ commands: channel + eventfd                 control: tokio
//!  ┌─▼───────────────────────────────┐   ┌────────────────────────────────┐
//!  │ data thread (n of them)         │◄──│ accept · handshake · resolve · │
//!  │  scheduler (pure) per endpoint  │   │ connect                        │
//!  │  reactor, transport, regions    │   └────────────────────────────────┘
//!  └─────────────────────────────────┘
//! ```
//!
//! Invariants:
//! 1. Bytes of a region move only on data threads, and only by the kernel on checked ranges.
//! 2. A transfer has one outcome, by its deadline, and one release, after which nothing accesses
//!    its memory.
//! 3. A wire address is translated for every request; after `remove_region` or `rebase_region`
//!    resolves, no byte under the old address moves.
//! 4. No byte of a peer that is not admitted is parsed.
//! 5. A connection that has transferred is never closed for being idle. At a limit new connections
//!    are refused; open ones stay.

mod admission;
mod batch;
mod command;
mod connect;
mod control;
mod ended;
mod endpoint;
mod engine;
mod engine_state;
mod error;
mod identity;
mod numa;
mod outstanding;
mod peers;
mod resolve;
mod settings;
mod stats;
mod sync;
mod thread;
pub mod transport;

pub use admission::{Admission, Targets};
pub use batch::Batch;
pub use ended::{Ended, Ends};
pub use endpoint::{Endpoint, EndpointSpec, Transfer};
pub use engine::Engine;
pub use error::{Bound, Error, TransferError};
pub use numa::{Node as NumaNode, nodes as numa_nodes};
pub use outstanding::Limits;
pub use peers::PeerFailures;
pub use proto::frame::Op;
pub use proto::handshake::Notify;
pub use proto::scheduler::{Cause, Stage};
pub use settings::Settings;
pub use stats::EndpointStats;
pub use sys::mem::{PageSize, Region};
pub use sys::net::Namespace;
#[cfg(feature = "rdma")]
pub use sys::verbs::Class;
pub use thread::{ThreadSnapshot, ThreadStage};
#[cfg(feature = "rdma")]
pub use transport::rdma::{Card, CardError, OpenedDevice, Port};
pub use transport::{Before, IdleConnection, RegionId};

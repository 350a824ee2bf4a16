//! The transfer engine: memory given by descriptor is served to stock and own peers, and moved
//! from and to them. Knows nothing of Kubernetes.
//!
//! ```text
//!  Host (one served identity: name, listeners, regions, admission)
//!    │ commands: bounded ring + eventfd            control: tokio
//!  ┌─▼───────────────────────────────┐   ┌────────────────────────────────┐
//!  │ data thread (n of them)         │◄──│ accept · handshake · resolve · │
//!  │  scheduler (pure) per host      │   │ connect                        │
//!  │  transport: sockets, regions    │   └────────────────────────────────┘
//!  └─────────────────────────────────┘
//! ```
//!
//! Invariants:
//! 1. Bytes of a region move only on data threads, and only by the kernel on checked ranges.
//! 2. A transfer has one outcome, by its deadline, and one release, after which nothing touches
//!    its memory.
//! 3. A wire address is translated for every request; after `remove_region` or `rebase_region`
//!    resolves, no byte under the old address moves.
//! 4. Nobody who is not admitted gets a byte parsed.
//! 5. A connection that has transferred is never closed for being idle; newcomers are refused
//!    at the bounds and nobody served is evicted.
#![forbid(unsafe_code)]

mod admission;
mod batch;
mod command;
mod control;
mod engine;
mod error;
mod host;
mod numa;
mod peers;
mod settings;
mod stats;
mod thread;
pub mod transport;

pub use admission::Admission;
pub use batch::Batch;
pub use engine::Engine;
pub use error::{Error, TransferError};
pub use host::{Host, HostSpec, Transfer};
pub use numa::parse_list;
pub use peers::PeerFailures;
pub use proto::frame::Op;
pub use proto::handshake::Notify;
pub use proto::scheduler::{Cause, Stage};
pub use settings::Settings;
pub use stats::{Ended, Ends, HostStats};
pub use sys::mem::{NumaPolicy, PageSize, Region};
pub use sys::net::Namespace;
pub use transport::RegionId;

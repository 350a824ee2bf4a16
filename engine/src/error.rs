//! Errors of the engine's public functions.

use std::io;

use proto::extent::Unmappable;
use proto::frame::Op;
use proto::scheduler::{Cause, Fault, Stage};

use crate::transport::LinkError;

/// Why a control operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`crate::Engine::start`] was called outside a tokio runtime.
    #[error("the engine must be started inside a tokio runtime")]
    NoRuntime,
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A region cannot be served at that wire base.
    #[error("region cannot be served: {0}")]
    Unmappable(#[from] Unmappable),
    /// The endpoint has no such region.
    #[error("the endpoint has no such region")]
    UnknownRegion,
    /// A data thread has ended.
    #[error("the engine has stopped")]
    Stopped,
    /// The RDMA device cannot be used, or cannot register a region.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Card(#[from] crate::transport::rdma::CardError),
    /// An engine over RDMA was to be started without a device.
    #[cfg(feature = "rdma")]
    #[error("an engine over RDMA needs a device")]
    NoCard,
    /// An endpoint of an engine with an RDMA device was to use a metadata service.
    #[cfg(feature = "rdma")]
    #[error(
        "an engine with an RDMA device cannot use a metadata service yet: choose P2P, or the transport TCP"
    )]
    MetadataOverRdma,
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Why a transfer did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransferError {
    /// The transfer failed. The peer has received nothing of a write.
    #[error("{} {peer} failed while {}: {}", verb(*.op), step(*.stage), reason(.cause))]
    Failed {
        /// Server name of the peer.
        peer: String,
        /// The direction.
        op: Op,
        /// The step that failed.
        stage: Stage,
        /// Why it failed.
        cause: Cause<LinkError>,
    },
    /// A write failed, and the peer may have received some or all of it. The target range is undefined
    /// until it is written again or read back.
    #[error(
        "{} {peer} has an unknown outcome: failed while {}: {}; the peer may have received some or all bytes",
        verb(*.op), step(*.stage), reason(.cause)
    )]
    Indeterminate {
        /// Server name of the peer.
        peer: String,
        /// Always a write.
        op: Op,
        /// The step that failed.
        stage: Stage,
        /// Why it failed.
        cause: Cause<LinkError>,
    },
    /// Not started, and no other transfer of the batch: the range is not inside the local region, or the region is unknown.
    #[error("{length} bytes at offset {offset} are not inside the local region")]
    LocalRange {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Not started, and no other transfer of the batch: too much is submitted and not released.
    #[error("the limit of {bound} is reached with {peer}; submit again when transfers have ended")]
    Busy {
        /// Server name of the peer of the first transfer above the limit.
        peer: String,
        /// The limit.
        bound: Bound,
    },
    /// Not started or cancelled: the endpoint is closed or the engine has stopped.
    #[error("the endpoint was closed before the transfer with {peer} ended")]
    Closed {
        /// Server name of the peer.
        peer: String,
    },
}

/// A limit of an endpoint's transfers that are not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Bound {
    /// Transfers with one peer.
    #[error("{0} transfers with one peer")]
    TransfersOfPeer(u64),
    /// Bytes with one peer.
    #[error("{0} bytes with one peer")]
    BytesOfPeer(u64),
    /// Transfers with all peers.
    #[error("{0} transfers")]
    Transfers(u64),
    /// Bytes with all peers.
    #[error("{0} bytes")]
    Bytes(u64),
}

impl TransferError {
    pub(crate) fn from_fault(peer: &str, op: Op, fault: Fault<LinkError>) -> Self {
        let Fault {
            stage,
            cause,
            indeterminate,
        } = fault;
        let peer = peer.to_owned();
        if indeterminate {
            Self::Indeterminate {
                peer,
                op,
                stage,
                cause,
            }
        } else {
            Self::Failed {
                peer,
                op,
                stage,
                cause,
            }
        }
    }
}

fn verb(op: Op) -> &'static str {
    match op {
        Op::Read => "read from",
        Op::Write => "write to",
    }
}

fn step(stage: Stage) -> &'static str {
    match stage {
        Stage::Resolve => "requesting its descriptor",
        Stage::Connect => "connecting",
        Stage::Queue => "waiting for a free connection",
        Stage::Transfer => "moving bytes",
    }
}

fn reason(cause: &Cause<LinkError>) -> String {
    match cause {
        Cause::Deadline => "the deadline has passed".to_owned(),
        Cause::PeerMoved => "the peer was replaced by another engine".to_owned(),
        Cause::Withdrawn => "the local region was removed or got another wire base".to_owned(),
        Cause::Cancelled => "its caller has dropped it".to_owned(),
        Cause::Transport(error) => error.to_string(),
    }
}

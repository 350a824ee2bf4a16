//! What can go wrong at the engine's face.

use std::io;

use proto::extent::Unmappable;
use proto::frame::Op;
use proto::scheduler::{Cause, Fault, Stage};

use crate::transport::LinkError;

/// Why the engine could not be set up as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's control side lives in a tokio runtime.
    #[error("the engine must be started inside a tokio runtime")]
    NoRuntime,
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A region cannot be served at that wire base.
    #[error("region cannot be served: {0}")]
    Unmappable(#[from] Unmappable),
    /// No such region at this host.
    #[error("no such region at this host")]
    UnknownRegion,
    /// The engine's data threads are gone.
    #[error("the engine has stopped")]
    Stopped,
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Why a transfer did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TransferError {
    /// It failed, and for a write: the peer has taken nothing of it.
    #[error("{} {peer} failed while {}: {}", verb(*.op), doing(*.stage), words(.cause))]
    Failed {
        /// Server name of the peer.
        peer: String,
        /// Direction.
        op: Op,
        /// What was being done.
        stage: Stage,
        /// What went wrong.
        cause: Cause<LinkError>,
    },
    /// A write of which the peer may have taken some or all. Its target range must be seen as
    /// undefined until it is written again or read back.
    #[error(
        "{} {peer} ended unknown while {}: {}; the peer may hold some or all of it",
        verb(*.op), doing(*.stage), words(.cause)
    )]
    Indeterminate {
        /// Server name of the peer.
        peer: String,
        /// Direction, always a write.
        op: Op,
        /// What was being done.
        stage: Stage,
        /// What went wrong.
        cause: Cause<LinkError>,
    },
    /// Not tried: the range is not inside the local region, or the region is unknown.
    #[error("{length} bytes at offset {offset} are not inside the local region")]
    LocalRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Not tried: the data thread's ring is full.
    #[error("too many transfers wait for the data thread; nothing was sent to {peer}")]
    Busy {
        /// Server name of the peer.
        peer: String,
    },
    /// Not tried, or given up: the host or the engine is gone.
    #[error("the host was closed before the transfer to {peer} ended")]
    Closed {
        /// Server name of the peer.
        peer: String,
    },
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

fn doing(stage: Stage) -> &'static str {
    match stage {
        Stage::Resolve => "asking for its descriptor",
        Stage::Connect => "connecting",
        Stage::Queue => "waiting for a free connection",
        Stage::Transfer => "moving bytes",
    }
}

fn words(cause: &Cause<LinkError>) -> String {
    match cause {
        Cause::Deadline => "the deadline passed".to_owned(),
        Cause::PeerMoved => "the peer is no longer the same engine".to_owned(),
        Cause::Withdrawn => "the local region was removed".to_owned(),
        Cause::Transport(error) => error.to_string(),
    }
}

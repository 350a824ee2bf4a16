//! The types that the scheduler and its driver share.

use super::{LinkKey, Op, PeerKey, PieceKey, Time};

/// A requested transfer.
#[derive(Debug, Clone, Copy)]
pub struct Request<M> {
    /// The operation, as seen from this side.
    pub op: Op,
    /// Wire address at the peer.
    pub remote: u64,
    /// Local memory.
    pub memory: M,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The latest time of the outcome.
    pub deadline: Time,
    /// Chosen by the driver; returned with outcome and release.
    pub token: u64,
}

/// One wire request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice<M> {
    /// The operation, as seen from this side.
    pub op: Op,
    /// Wire address at the peer.
    pub remote: u64,
    /// Local memory.
    pub memory: M,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// An instruction to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<M, C> {
    /// Fetch the peer's descriptor; answered by `resolved`.
    Resolve {
        /// The peer.
        peer: PeerKey,
    },
    /// Connect; answered by `link_up` or `link_down`.
    Open {
        /// The key of the new link.
        link: LinkKey,
        /// The peer.
        peer: PeerKey,
    },
    /// Start a request; answered by `slice_done`, `link_down` or `not_accepted`.
    Post {
        /// A link that is up and has space in its window.
        link: LinkKey,
        /// Names the slice in the answer.
        piece: PieceKey,
        /// The bytes to move.
        slice: Slice<M>,
    },
    /// Close a link and cancel its requests; answered by `link_released`.
    Close {
        /// The link.
        link: LinkKey,
    },
    /// Report the outcome of a transfer.
    Outcome {
        /// The token of its request.
        token: u64,
        /// The outcome.
        ending: Ending<C>,
    },
    /// Report that nothing accesses a transfer's local memory any more.
    Release {
        /// The token of its request.
        token: u64,
    },
}

/// The outcome of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<C> {
    /// All bytes were moved; confirmed by the peer if the protocol version has a status.
    Done,
    /// It failed.
    Failed(Fault<C>),
}

/// Why a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault<C> {
    /// The step that failed.
    pub stage: Stage,
    /// The cause.
    pub cause: Cause<C>,
    /// The peer may have received some or all bytes of a write.
    pub indeterminate: bool,
}

impl<C> Fault<C> {
    pub(super) fn new(stage: Stage, cause: Cause<C>) -> Self {
        Self {
            stage,
            cause,
            indeterminate: false,
        }
    }
}

/// The step of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Requesting the peer's descriptor.
    Resolve,
    /// Connecting to its data port.
    Connect,
    /// Waiting for a free link.
    Queue,
    /// Moving bytes.
    Transfer,
}

/// Why a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause<C> {
    /// The deadline passed.
    Deadline,
    /// The peer was replaced by another engine after the start of the transfer.
    PeerMoved,
    /// The local memory was removed or got another wire base.
    Withdrawn,
    /// The caller has cancelled it.
    Cancelled,
    /// The transport failed.
    Transport(C),
}

/// The effect of a failed attempt at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// None: no payload byte of a write has reached it, and none will.
    None,
    /// Unknown: payload bytes of a write may have reached it, or may still do.
    Unknown,
}

/// Why a link went down.
#[derive(Debug, Clone)]
pub struct Failure<C> {
    /// The transport's error.
    pub cause: C,
    /// The possible effect of its requests.
    pub effect: Effect,
    /// The peer had sent some reply to one of its requests.
    pub reply_seen: bool,
}

impl<C> Failure<C> {
    /// A failure before any byte of a request was sent.
    pub fn unsent(cause: C) -> Self {
        Self {
            cause,
            effect: Effect::None,
            reply_seen: false,
        }
    }
}

/// The state of a peer's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    Unknown,
    Resolving,
    /// A number that changes when the peer publishes something else.
    Known(u64),
}

//! The words that the scheduler and its driver share.

use super::{LinkKey, Op, PeerKey, Time};

/// A transfer as asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<M> {
    /// Direction, as seen from here.
    pub op: Op,
    /// Wire address at the peer.
    pub remote: u64,
    /// Local memory.
    pub memory: M,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The outcome comes by then.
    pub deadline: Time,
    /// The driver's name for it; comes back with outcome and release.
    pub token: u64,
}

/// One wire request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice<M> {
    /// Direction, as seen from here.
    pub op: Op,
    /// Wire address at the peer.
    pub remote: u64,
    /// Local memory.
    pub memory: M,
    /// First byte in it.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<M, C> {
    /// Ask the peer what it publishes; answered by `resolved`.
    Resolve {
        /// Whom.
        peer: PeerKey,
    },
    /// Connect; answered by `link_up` or `link_down`.
    Open {
        /// The link's name from now on.
        link: LinkKey,
        /// Where to.
        peer: PeerKey,
    },
    /// Carry out one request on a link that has none; answered by `slice_done` or `link_down`.
    Post {
        /// The link, which is up and free.
        link: LinkKey,
        /// What to move.
        slice: Slice<M>,
    },
    /// Give up a link and what is on it; answered by `link_released`.
    Close {
        /// The link.
        link: LinkKey,
    },
    /// How a transfer ended.
    Outcome {
        /// The driver's name for it.
        token: u64,
        /// How.
        ending: Ending<C>,
    },
    /// Nothing touches a transfer's local memory any more.
    Release {
        /// The driver's name for it.
        token: u64,
    },
}

/// How a transfer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending<C> {
    /// Every byte is where it should be, by the peer's own word where the protocol has one.
    Done,
    /// Not so.
    Failed(Fault<C>),
}

/// Why a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault<C> {
    /// What was being done.
    pub stage: Stage,
    /// What went wrong.
    pub cause: Cause<C>,
    /// A write of which the peer may have taken some or all.
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

/// What was being done when a transfer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Asking the peer for its descriptor.
    Resolve,
    /// Connecting to its data port.
    Connect,
    /// Waiting for a free link.
    Queue,
    /// Moving bytes.
    Transfer,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause<C> {
    /// The deadline came.
    Deadline,
    /// The peer is no longer the one that the transfer was started with.
    PeerMoved,
    /// The local memory was taken away.
    Withdrawn,
    /// The transport says.
    Transport(C),
}

/// What a failed attempt may have done at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Surely nothing.
    None,
    /// Nobody knows.
    Unknown,
}

/// Why a link went down.
#[derive(Debug, Clone)]
pub struct Failure<C> {
    /// The transport's words.
    pub cause: C,
    /// What the request on it may have done.
    pub effect: Effect,
    /// Whether the peer had answered anything to the request on it.
    pub reply_seen: bool,
}

/// What is known of a peer's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    Unknown,
    Resolving,
    /// A number that stands for what it publishes.
    Known(u64),
}

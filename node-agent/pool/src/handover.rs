//! The hand-over of memory, listeners and record from a pool process to its engine process, which the node's agent connects: packets over a Unix
//! socket in the pool pod's network namespace.

pub mod client;
pub mod connection;
pub mod message;
pub mod record;

pub use client::Client;
pub use connection::Connection;

use std::time::Duration;

/// Abstract address on which a pool process listens, in its own network namespace.
pub const ADDRESS: &str = "mooncake-pool";

/// Longest packet in bytes, both ways.
pub const PACKET_LIMIT: usize = 64 << 10;

/// Longest record in bytes. Its JSON string form must fit a packet.
pub const RECORD_LIMIT: usize = 48 << 10;

pub use crds::pool_memory::ledger as ledger_bytes;
pub use crds::sizing::MAX_EXTENT_BYTES;

/// Most extents of one pool: 16 TiB in extents of 16 GiB.
pub const EXTENT_LIMIT: usize = 1024;

/// Deadline of one answer. No answer waits for memory to be touched.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// A pool without a request of its agent for this long is not Ready.
pub const AGENT_SILENCE: Duration = Duration::from_secs(10);

/// Why a hand-over failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket call failed.
    #[error("the hand-over socket failed, {stage}: {source}")]
    Socket {
        /// What was being done.
        stage: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The other side closed.
    #[error("the other side of the hand-over socket closed, {stage}")]
    Closed {
        /// What was being done.
        stage: &'static str,
    },
    /// The other side did not send or receive a packet in time.
    #[error("no progress within {} s, {stage}", deadline.as_secs())]
    TimedOut {
        /// What was awaited.
        stage: &'static str,
        /// How long.
        deadline: Duration,
    },
    /// A packet that is not a message of this protocol.
    #[error("malformed hand-over packet ({cause}). Use pool and agent images of one release")]
    InvalidMessage {
        /// What is wrong with it.
        cause: String,
    },
    /// The pool rejected the request.
    #[error("the pool rejected `{request}`: {message}")]
    Refused {
        /// Name of the request.
        request: &'static str,
        /// The kind of rejection.
        kind: message::RefusalKind,
        /// The pool's message.
        message: String,
    },
    /// An answer of the wrong kind.
    #[error(
        "the pool sent a wrong answer to `{request}`. Use pool and agent images of one release"
    )]
    WrongAnswer {
        /// Name of the request.
        request: &'static str,
    },
}

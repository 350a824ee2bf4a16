//! How a pool process hands its memory, listeners and record to the agent of its node: packets
//! over a Unix socket in the pool pod's network namespace.

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

/// Largest extent in bytes.
pub const EXTENT_MOST: u64 = 16 << 30;

/// Most extents of one pool: 16 TiB in extents of 16 GiB.
pub const EXTENT_LIMIT: usize = 1024;

/// How long one answer may take. No answer waits for memory to be touched.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// A pool that has not heard from an agent for this long is not Ready.
pub const AGENT_SILENCE: Duration = Duration::from_secs(10);

/// Why a hand-over failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket call failed.
    #[error("the hand-over socket, {stage}: {source}")]
    Socket {
        /// What was being done.
        stage: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The other side closed.
    #[error("the other side of the hand-over socket closed, {stage}")]
    Closed {
        /// What was being done.
        stage: &'static str,
    },
    /// The other side did not take or give a packet in time.
    #[error("no progress within {} s, {stage}", deadline.as_secs())]
    Silent {
        /// What was waited for.
        stage: &'static str,
        /// How long.
        deadline: Duration,
    },
    /// A packet that is no message of this protocol.
    #[error(
        "a packet of the hand-over is not understood ({cause}); use pool and agent of one release"
    )]
    Nonsense {
        /// What is wrong with it.
        cause: String,
    },
    /// The pool understood the request and says no.
    #[error("the pool refused `{request}`: {message}")]
    Refused {
        /// Name of the request.
        request: &'static str,
        /// Which kind of no.
        kind: message::RefusalKind,
        /// The pool's words.
        message: String,
    },
    /// An answer of another kind than the request calls for.
    #[error("the pool answered `{request}` with something else; use pool and agent of one release")]
    WrongAnswer {
        /// Name of the request.
        request: &'static str,
    },
}

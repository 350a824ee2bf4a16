//! The messages of the hand-over. The agent asks, the pool answers each request once; progress and
//! the wish to drain come unasked.

use serde::{Deserialize, Serialize};

/// Version of this protocol; a pool answers the agent of another one with a refusal.
pub const PROTOCOL: u32 = 1;

/// A request with the number that its answer repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Chosen by the asker.
    pub id: u64,
    /// What is asked.
    pub request: Request,
}

/// What an agent (and, for `Status` alone, a probe) may ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// How the pool is; asked by probes.
    Status,
    /// Makes the asker the pool's agent; an earlier one is closed.
    Attach {
        /// [`PROTOCOL`] of the asker.
        protocol: u32,
    },
    /// Lets the pool make its memory: one extent for each length in bytes.
    Grant {
        /// Bytes of each extent.
        extents: Vec<u64>,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// The descriptor of one extent.
    Extent {
        /// Which one.
        index: usize,
    },
    /// Handshake and data listener, in this order.
    Listeners,
    /// Makes the pages of one extent exist. Answered at once; [`FromPool::Touched`] tells the rest.
    Touch {
        /// Which one.
        index: usize,
    },
    /// Keeps bytes for the next agent.
    PutRecord {
        /// At most [`super::RECORD_LIMIT`] bytes.
        record: String,
    },
    /// The bytes kept last.
    GetRecord,
    /// Decides readiness, and shows that the agent lives.
    SetServing {
        /// Mounted and served.
        serving: bool,
        /// Why not, for the probe's output.
        reason: String,
    },
    /// Everything is unmounted: the pool may end.
    Drained,
}

impl Request {
    /// Its name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Attach { .. } => "attach",
            Self::Grant { .. } => "grant",
            Self::Extent { .. } => "extent",
            Self::Listeners => "listeners",
            Self::Touch { .. } => "touch",
            Self::PutRecord { .. } => "putRecord",
            Self::GetRecord => "getRecord",
            Self::SetServing { .. } => "setServing",
            Self::Drained => "drained",
        }
    }
}

/// Everything that a pool sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum FromPool {
    /// The answer to the call of that number.
    Answer {
        /// The call's number.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// How far the touching of an extent is.
    Touched {
        /// Which extent.
        index: usize,
        /// Bytes whose pages exist.
        bytes: u64,
        /// Why the rest cannot be had; touching has stopped.
        failure: Option<String>,
    },
    /// The pool was told to end: unmount, then send `Drained`.
    DrainRequest,
}

/// Answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Reply {
    /// Done; descriptors that were asked for come beside it.
    Done,
    /// To `Status`.
    Status(Status),
    /// To `Attach`.
    Attached(Attached),
    /// To `GetRecord`.
    Record {
        /// Absent where none was ever put.
        record: Option<String>,
    },
    /// No.
    Refused {
        /// Which kind of no.
        kind: RefusalKind,
        /// Who, where, what to do.
        message: String,
    },
}

/// Kinds of no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalKind {
    /// The asker may not ask this.
    NotAllowed,
    /// Another protocol version.
    Protocol,
    /// Not now: before the grant, or twice.
    OutOfOrder,
    /// Beyond a bound or not as the pod's own settings say.
    OutOfBounds,
    /// The kernel gave no memory, or no page of that size.
    NoMemory,
}

/// What a pool tells its agent about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attached {
    /// Its claim; the agent believes the process's cgroup instead, and compares.
    pub pod_uid: String,
    /// Its claim; the agent proves it in the pool's network namespace.
    pub pod_ip: String,
    /// Port of the handshake listener.
    pub handshake_port: u16,
    /// Port of the data listener.
    pub data_port: u16,
    /// Extents made so far; none before the grant.
    pub extents: Vec<ExtentState>,
    /// It was told to end.
    pub ending: bool,
}

/// One extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtentState {
    /// Bytes.
    pub length: u64,
    /// Bytes whose pages exist.
    pub touched: u64,
}

/// What a probe sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Status {
    /// Mounted and served, by an agent that spoke within [`super::AGENT_SILENCE`].
    pub ready: bool,
    /// Why it is or is not.
    pub reason: String,
}

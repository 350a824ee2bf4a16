//! Messages of the hand-over. The pool answers each request of the agent once; progress and the drain request are
//! sent without a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this protocol. Since version 2 a pool has a ledger, since version 3 the Secret of its metadata service.
pub const PROTOCOL: u32 = 3;

/// The first version with [`Request::Secret`].
pub const PROTOCOL_WITH_SECRET: u32 = 3;

/// The oldest version that both sides still use. A pool rejects others.
pub const OLDEST_PROTOCOL: u32 = 1;

/// A request with its number, which the answer repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Chosen by the caller.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// Requests of an agent; a probe may only send `Status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// Reads the status; sent by probes.
    Status,
    /// Makes the caller the pool's agent and closes an earlier one.
    Attach {
        /// [`PROTOCOL`] of the caller.
        protocol: u32,
    },
    /// Allows the pool to create its memory: one extent per length.
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
    /// The descriptor of the ledger; since version 2.
    Ledger,
    /// What the Secret of the metadata service has now; since version 3.
    Secret,
    /// Handshake and data listener, in this order.
    Listeners,
    /// Allocates the pages of one extent. Answered at once; [`FromPool::Touched`] reports progress.
    Touch {
        /// Which one.
        index: usize,
    },
    /// Stores a record for the next agent.
    PutRecord {
        /// At most [`super::RECORD_LIMIT`] bytes.
        record: String,
    },
    /// Reads the stored record.
    GetRecord,
    /// Sets readiness and shows that the agent is alive.
    SetServing {
        /// Mounted and served.
        serving: bool,
        /// Why not, for the probe's output.
        reason: String,
    },
    /// Everything is unmounted: the pool may exit.
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
            Self::Ledger => "ledger",
            Self::Secret => "secret",
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
    /// Progress of touching an extent.
    Touched {
        /// Which extent.
        index: usize,
        /// Bytes whose pages exist.
        bytes: u64,
        /// Why touching stopped before the end.
        failure: Option<String>,
    },
    /// The pool is terminating: unmount, then send `Drained`.
    DrainRequest,
}

/// Answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Reply {
    /// Done, with the requested descriptors.
    Done,
    /// To `Status`.
    Status(Status),
    /// To `Attach`.
    Attached(Attached),
    /// To `GetRecord`.
    Record {
        /// Absent if none was stored.
        record: Option<String>,
    },
    /// To `Secret`.
    Secret {
        /// Contents by the keys of the Secret; none while it does not exist.
        files: BTreeMap<String, String>,
    },
    /// The request is rejected.
    Refused {
        /// The kind of rejection.
        kind: RefusalKind,
        /// The cause and what to do.
        message: String,
    },
}

/// Kinds of rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalKind {
    /// The caller may not send this request.
    NotAllowed,
    /// Another protocol version.
    Protocol,
    /// Wrong order: before the grant, or twice.
    OutOfOrder,
    /// Beyond a bound, or different from the pod's settings.
    OutOfBounds,
    /// The kernel has no memory, or no page of that size.
    NoMemory,
    /// A file of the Secret cannot be read; since version 3.
    Unreadable,
}

/// State of the pool at the attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attached {
    /// As the pool claims; the agent compares it with the process's cgroup.
    pub pod_uid: String,
    /// As the pool claims; the agent verifies it in the pool's network namespace.
    pub pod_ip: String,
    /// Port of the handshake listener.
    pub handshake_port: u16,
    /// Port of the data listener.
    pub data_port: u16,
    /// Extents made so far; none before the grant.
    pub extents: Vec<ExtentState>,
    /// The pool is terminating.
    pub ending: bool,
    /// Bytes of the ledger. Absent in version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<u64>,
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

/// Status for probes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Status {
    /// Mounted and served, by an agent with a request within [`super::AGENT_SILENCE`].
    pub ready: bool,
    /// Why it is or is not.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_request_is_that_on_the_wire() {
        let requests = [
            Request::Status,
            Request::Attach { protocol: PROTOCOL },
            Request::Grant {
                extents: vec![1],
                page_bytes: 4096,
            },
            Request::Extent { index: 0 },
            Request::Ledger,
            Request::Secret,
            Request::Listeners,
            Request::Touch { index: 0 },
            Request::PutRecord {
                record: String::new(),
            },
            Request::GetRecord,
            Request::SetServing {
                serving: true,
                reason: String::new(),
            },
            Request::Drained,
        ];
        for request in requests {
            let call = serde_json::to_value(Call { id: 7, request }).unwrap();
            let read: Call = serde_json::from_value(call.clone()).unwrap();
            assert_eq!(call["request"]["type"], read.request.name());
        }
    }

    #[test]
    fn messages_with_fields_that_this_version_does_not_know_are_refused() {
        for text in [
            r#"{"id":1,"request":{"type":"status"},"more":1}"#,
            r#"{"id":1,"request":{"type":"attach","protocol":3,"more":1}}"#,
            r#"{"id":1,"request":{"type":"attach"}}"#,
            r#"{"id":-1,"request":{"type":"status"}}"#,
            r#"{"id":1,"request":{"type":"leave"}}"#,
        ] {
            assert!(serde_json::from_str::<Call>(text).is_err(), "{text}");
        }
    }
}

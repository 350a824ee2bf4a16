//! Errors of calls, with peer, function, stage and cause.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::coro_rpc::HeaderError;
use proto::store::ErrorCode;
use proto::struct_pack::{DecodeError, TypeHash, literal_text};

/// A failed call to a master.
#[derive(Debug, Clone, thiserror::Error)]
#[error("master {peer}: {rpc} failed {stage}: {cause}")]
pub struct Error {
    pub peer: Arc<str>,
    /// Name of the function, or `connect`.
    pub rpc: &'static str,
    pub stage: Stage,
    #[source]
    pub cause: Cause,
}

impl Error {
    /// Returns the error code of the function, if that is the cause.
    #[must_use]
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self.cause {
            Cause::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Returns whether the connection failed and not the call, so that a retry on another connection may
    /// succeed.
    #[must_use]
    pub fn is_connection_error(&self) -> bool {
        matches!(
            self.cause,
            Cause::Io(_) | Cause::NotConnected | Cause::Lost(_) | Cause::Deadline(_)
        )
    }
}

/// The stage in which a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before the connection was established.
    Connect,
    /// Before the reply arrived.
    Reply,
    /// After the reply arrived.
    Answer,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "while connecting",
            Self::Reply => "while waiting for the reply",
            Self::Answer => "in its answer",
        })
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum Cause {
    #[error("{0}")]
    Io(Arc<io::Error>),
    #[error("there is no connection")]
    NotConnected,
    #[error(transparent)]
    Lost(Lost),
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    #[error(transparent)]
    Schema(SchemaMismatch),
    /// The RPC layer of the master failed, with its code and message.
    #[error("RPC code {code}: {message}")]
    Failed { code: u16, message: String },
    #[error("cannot decode the answer: {0}")]
    Malformed(#[from] DecodeError),
    /// The function returned an error.
    #[error("the master returned {0}")]
    Refused(ErrorCode),
}

/// Why a connection ended. All calls on it fail with this cause.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Lost {
    #[error("the master closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the master announced a reply of {0} bytes, which exceeds the limit")]
    TooLarge(u32),
    #[error("the master replied to call {0}, which was never sent")]
    UnexpectedReply(u32),
}

/// A function whose message schema differs at the master. Releases differ in these hashes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaMismatch {
    #[error("{rpc}: arguments with hash {ours} rejected")]
    ArgumentsRefused { rpc: &'static str, ours: TypeHash },
    #[error("{rpc}: function {function_id:08x} is not registered")]
    NotRegistered { rpc: &'static str, function_id: u32 },
    #[error("{rpc}: the answer has hash {theirs}, expected {ours}{}", sent_type(literal.as_deref()))]
    AnswerDiffers {
        rpc: &'static str,
        ours: TypeHash,
        theirs: TypeHash,
        /// The first 1024 bytes of the type literal of the answer, if it has one.
        literal: Option<Arc<[u8]>>,
    },
}

impl SchemaMismatch {
    #[must_use]
    pub fn rpc(&self) -> &'static str {
        match self {
            Self::ArgumentsRefused { rpc, .. }
            | Self::NotRegistered { rpc, .. }
            | Self::AnswerDiffers { rpc, .. } => rpc,
        }
    }
}

fn sent_type(literal: Option<&[u8]>) -> String {
    literal
        .map(|bytes| format!(" (type {})", literal_text(bytes)))
        .unwrap_or_default()
}

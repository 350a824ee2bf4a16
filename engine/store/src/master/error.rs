//! What can end a call, always with peer, function and stage.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::coro_rpc::HeaderError;
use proto::store::ErrorCode;
use proto::struct_pack::{DecodeError, TypeHash, literal_text};

/// A call to a master that brought no value.
#[derive(Debug, Clone, thiserror::Error)]
#[error("master {peer}: {rpc} failed {stage}: {cause}")]
pub struct Error {
    pub peer: Arc<str>,
    /// The function's name, or `connect`.
    pub rpc: &'static str,
    pub stage: Stage,
    #[source]
    pub cause: Cause,
}

impl Error {
    /// The master's own answer, when there was one.
    #[must_use]
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self.cause {
            Cause::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// Whether the connection (and not the question) is the trouble, so that asking again over
    /// another one can help.
    #[must_use]
    pub fn is_of_the_connection(&self) -> bool {
        matches!(
            self.cause,
            Cause::Io(_) | Cause::Unconnected | Cause::Lost(_) | Cause::Deadline(_)
        )
    }
}

/// How far a call had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No connection yet.
    Connect,
    /// Sent, or about to be; no reply yet.
    Reply,
    /// The reply is here.
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
    #[error("there is no connection at present")]
    Unconnected,
    #[error(transparent)]
    Lost(Lost),
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    #[error(transparent)]
    Schema(SchemaMismatch),
    /// The RPC layer failed at the other end, with its code and words.
    #[error("RPC code {code}: {message}")]
    Failed { code: u16, message: String },
    #[error("the answer cannot be read: {0}")]
    Malformed(#[from] DecodeError),
    /// The function ran and said no.
    #[error("the master answers {0}")]
    Refused(ErrorCode),
}

/// Why a connection ended. Every call on it then ends with this.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Lost {
    #[error("the master closed the connection")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(Arc<io::Error>),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("a reply of {0} bytes is announced, more than any answer has")]
    TooLarge(u32),
    #[error("a reply to the call {0} came, which was never made")]
    NeverAsked(u32),
}

/// A message whose schema the master does not share. The hash is what its releases differ in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaMismatch {
    #[error("{rpc} args hash {ours} refused")]
    ArgumentsRefused { rpc: &'static str, ours: TypeHash },
    #[error("{rpc} (function {function_id:08x}) is not known there")]
    NotRegistered { rpc: &'static str, function_id: u32 },
    #[error("{rpc} answers with hash {theirs}, expected {ours}{}", sent_type(literal.as_deref()))]
    AnswerDiffers {
        rpc: &'static str,
        ours: TypeHash,
        theirs: TypeHash,
        /// The type as the master describes it, when it does.
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

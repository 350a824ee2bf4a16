//! A client of a master over one connection. Calls are pipelined and matched by sequence number.

mod calls;
mod connection;
mod error;

use std::sync::Arc;
use std::time::Duration;

use proto::coro_rpc::{Failure, INVALID_ARGUMENTS, NOT_REGISTERED};
use proto::store::{ErrorCode, Rpc};
use proto::struct_pack::{self, DecodeError, Packed, Schema};
use tokio::net::TcpStream;

use connection::{Connection, Reply};
pub use error::{Cause, Error, Lost, SchemaMismatch, Stage};

/// Default timeout of a call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Limit of an answer. Those that a storing node needs have some kilobytes, and many calls wait at once.
const MOST_ANSWER_BYTES: u32 = 256 << 10;
/// Limit of an answer with changes of the ledger.
pub(crate) const MOST_LEDGER_BYTES: u32 = 16 << 20;
/// Most elements of an answer: an element may take more memory than it has bytes.
const MOST_ELEMENTS: usize = 16 << 10;

/// A handle to one connection, which closes when the last clone is dropped.
#[derive(Clone)]
pub struct Master {
    connection: Arc<Connection>,
    peer: Arc<str>,
    call_timeout: Duration,
}

impl Master {
    /// Takes over a connected socket. `peer` names the master in errors. Must be called in a tokio
    /// runtime, in which two tasks serve the socket.
    #[must_use]
    pub fn connect(stream: TcpStream, peer: String) -> Self {
        Self {
            connection: Arc::new(Connection::start(stream)),
            peer: peer.into(),
            call_timeout: CALL_TIMEOUT,
        }
    }

    /// Sets the timeout per call (default: 3 s).
    #[must_use]
    pub fn with_call_timeout(mut self, call_timeout: Duration) -> Self {
        self.call_timeout = call_timeout;
        self
    }

    #[must_use]
    pub fn peer(&self) -> &Arc<str> {
        &self.peer
    }

    /// Calls a function and waits for its answer, at most for the call timeout. If the future is dropped,
    /// the master may still carry out the call.
    ///
    /// # Errors
    /// [`Cause::Refused`] is an error of the function. After [`Cause::Lost`] this connection cannot be
    /// used. After [`Cause::Deadline`] the master may have carried out the call. Others: see [`Cause`].
    pub async fn call<R: Rpc>(&self, arguments: &R::Arguments) -> Result<R::Value, Error> {
        self.call_within::<R>(arguments, MOST_ANSWER_BYTES).await
    }

    /// Like [`Self::call`], with another limit of the answer's size.
    pub(crate) async fn call_within<R: Rpc>(
        &self,
        arguments: &R::Arguments,
        most_bytes: u32,
    ) -> Result<R::Value, Error> {
        let body = struct_pack::encode(arguments);
        let exchange = self
            .connection
            .exchange(R::function_id(), &body, most_bytes);
        let reply = match tokio::time::timeout(self.call_timeout, exchange).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(lost)) => return Err(self.error::<R>(Stage::Reply, Cause::Lost(lost))),
            Err(_elapsed) => {
                return Err(self.error::<R>(Stage::Reply, Cause::Deadline(self.call_timeout)));
            }
        };
        Self::read::<R>(&reply).map_err(|cause| self.error::<R>(Stage::Answer, cause))
    }

    fn read<R: Rpc>(reply: &Reply) -> Result<R::Value, Cause> {
        if reply.code != 0 {
            let failure = Failure::decode(reply.code, &reply.body)?;
            return Err(match failure.code {
                INVALID_ARGUMENTS => Cause::Schema(SchemaMismatch::ArgumentsRefused {
                    rpc: R::METHOD,
                    ours: R::arguments_hash(),
                }),
                NOT_REGISTERED => Cause::Schema(SchemaMismatch::NotRegistered {
                    rpc: R::METHOD,
                    function_id: R::function_id(),
                }),
                code => Cause::Failed {
                    code,
                    message: failure.message,
                },
            });
        }
        let answer = Schema::of::<Result<R::Value, ErrorCode>>()
            .open(&reply.body)
            .and_then(|body| Packed::unpack(&mut body.with_most_elements(MOST_ELEMENTS)));
        let answer: Result<R::Value, ErrorCode> = match answer {
            Ok(answer) => answer,
            Err(DecodeError::Schema {
                expected,
                got,
                literal,
            }) => {
                return Err(Cause::Schema(SchemaMismatch::AnswerDiffers {
                    rpc: R::METHOD,
                    ours: expected,
                    theirs: got,
                    literal: literal.map(Arc::from),
                }));
            }
            Err(malformed) => return Err(malformed.into()),
        };
        answer.map_err(Cause::Refused)
    }

    fn error<R: Rpc>(&self, stage: Stage, cause: Cause) -> Error {
        Error {
            peer: Arc::clone(&self.peer),
            rpc: R::METHOD,
            stage,
            cause,
        }
    }
}

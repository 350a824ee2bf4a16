//! Whether a master speaks our generation of the protocol. Its version text has stayed the same
//! through incompatible releases, so each message that a storing node depends on is tried with
//! arguments that change nothing.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, try_join_all};
use proto::store::generation_0_3_13 as wire;
use proto::store::{PROTOCOL_VERSION, Rpc, Uuid};

use crate::master::{Cause, Error, Master, SchemaMismatch};

/// A generation that this crate speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// 0.3.13 and its post releases.
    V0_3_13,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V0_3_13 => f.write_str("0.3.13"),
        }
    }
}

/// What a master of another generation answers like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LooksLike {
    /// Keys without tenants.
    UpTo0_3_11,
    /// Tenants, but objects without checksums.
    V0_3_12,
    /// Neither an older generation that we know nor ours.
    Other,
}

impl fmt::Display for LooksLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UpTo0_3_11 => "0.3.11 or older",
            Self::V0_3_12 => "0.3.12",
            Self::Other => "none that is known here (newer?)",
        })
    }
}

/// The master is of another generation than we are. Nothing was mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "master {peer} is of another generation: it answers like {looks_like} (protocol {protocol}), \
     this node speaks {ours} (protocol {PROTOCOL_VERSION}): {}",
    list(mismatches)
)]
pub struct Skew {
    pub peer: Arc<str>,
    pub ours: Generation,
    pub looks_like: LooksLike,
    /// What `ServiceReady` answered.
    pub protocol: String,
    /// Every message that differs.
    pub mismatches: Vec<SchemaMismatch>,
}

fn list(mismatches: &[SchemaMismatch]) -> String {
    if mismatches.is_empty() {
        return "the protocol versions differ".into();
    }
    mismatches
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Why a generation was not proven.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Skew(Arc<Skew>),
    /// No verdict: the master could not be asked.
    #[error("{0}")]
    Unasked(#[from] Error),
}

impl Master {
    /// Proves that the master speaks generation 0.3.13, by its protocol version and by trying each
    /// message that a storing node depends on. Changes nothing at the master.
    ///
    /// # Errors
    /// [`ProbeError::Skew`] is the verdict that it does not; the other variant is no verdict.
    pub async fn probe_generation(&self) -> Result<Generation, ProbeError> {
        let protocol = self.service_ready().await?;
        let mismatches = self.try_messages().await?;
        if protocol == PROTOCOL_VERSION && mismatches.is_empty() {
            return Ok(Generation::V0_3_13);
        }
        Err(ProbeError::Skew(Arc::new(Skew {
            peer: Arc::clone(self.peer()),
            ours: Generation::V0_3_13,
            looks_like: looks_like(&mismatches),
            protocol,
            mismatches,
        })))
    }

    /// `ReMountSegment` and `Ping` are not among them, since they would leave traces; what they
    /// carry is proven by `MountSegment` and has never changed.
    async fn try_messages(&self) -> Result<Vec<SchemaMismatch>, Error> {
        let nobody = Uuid {
            first: 0,
            second: 0,
        };
        let none = String::new;
        let no_space = wire::Segment {
            id: nobody,
            name: none(),
            base: 0,
            size: 0,
            te_endpoint: none(),
            protocol: none(),
            host_id: none(),
        };
        let no_object = wire::ObjectMeta {
            key: none(),
            object_checksum: None,
        };
        let no_task = wire::TaskCompleteRequest {
            id: nobody,
            status: wire::TaskStatus::Failed,
            message: none(),
        };
        let placement = wire::ReplicateConfig {
            replica_num: 0,
            ..Default::default()
        };
        let no_put = (nobody, none(), 0, placement, none());
        let no_end = (nobody, no_object, wire::ReplicaType::Memory, none());
        let no_copy = (nobody, none(), none(), none(), Vec::new());
        let no_move = (nobody, none(), none(), none(), none());
        let no_key = (nobody, none(), none());

        let tried = vec![
            self.attempt::<wire::ExistKey>((none(), none())),
            self.attempt::<wire::GetReplicaList>((none(), none())),
            self.attempt::<wire::PutStart>(no_put),
            self.attempt::<wire::PutEnd>(no_end),
            self.attempt::<wire::GetStorageConfig>(()),
            self.attempt::<wire::MountSegment>((no_space, nobody)),
            self.attempt::<wire::UnmountSegment>((nobody, nobody)),
            self.attempt::<wire::GracefulUnmountSegment>((nobody, nobody, 0)),
            self.attempt::<wire::QuerySegmentStatusById>(nobody),
            self.attempt::<wire::FetchTasks>((nobody, 0)),
            self.attempt::<wire::MarkTaskToComplete>((nobody, no_task)),
            self.attempt::<wire::CopyStart>(no_copy),
            self.attempt::<wire::CopyEnd>(no_key.clone()),
            self.attempt::<wire::CopyRevoke>(no_key.clone()),
            self.attempt::<wire::MoveStart>(no_move),
            self.attempt::<wire::MoveEnd>(no_key.clone()),
            self.attempt::<wire::MoveRevoke>(no_key),
        ];
        Ok(try_join_all(tried).await?.into_iter().flatten().collect())
    }

    /// Any answer of the function proves its schema, refusals too.
    fn attempt<R: Rpc>(
        &self,
        arguments: R::Arguments,
    ) -> BoxFuture<'_, Result<Option<SchemaMismatch>, Error>> {
        Box::pin(async move {
            match self.call::<R>(&arguments).await {
                Ok(_) => Ok(None),
                Err(Error {
                    cause: Cause::Refused(_),
                    ..
                }) => Ok(None),
                Err(Error {
                    cause: Cause::Schema(mismatch),
                    ..
                }) => Ok(Some(mismatch)),
                Err(error) => Err(error),
            }
        })
    }
}

fn looks_like(mismatches: &[SchemaMismatch]) -> LooksLike {
    let differs = |rpc| mismatches.iter().any(|mismatch| mismatch.rpc() == rpc);
    if differs(wire::ExistKey::METHOD) {
        LooksLike::UpTo0_3_11
    } else if differs(wire::PutEnd::METHOD) {
        LooksLike::V0_3_12
    } else {
        LooksLike::Other
    }
}

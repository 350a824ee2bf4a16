//! Detects the release of a master. The protocol version is the same in incompatible releases, so the probe
//! calls each function that a storing node needs, with arguments that change nothing.

use std::fmt;
use std::sync::Arc;

use futures::future::{BoxFuture, try_join_all};
use proto::coro_rpc::clip;
use proto::store::release_0_3_13 as wire;
use proto::store::{PROTOCOL_VERSION, Rpc, Uuid};

use crate::master::{Cause, Error, Master, SchemaMismatch};

/// Limit of an answer to the probe. Those of masters of all releases have less than a kilobyte, and all functions are
/// called at once.
const MOST_ANSWER_BYTES: u32 = 64 << 10;

/// A supported release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 0.3.13 and its post releases.
    V0_3_13,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V0_3_13 => f.write_str("0.3.13"),
        }
    }
}

/// The release that a master's answers indicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LooksLike {
    /// Keys without tenants.
    UpTo0_3_11,
    /// Tenants, but objects without checksums.
    V0_3_12,
    /// None of the known releases.
    Other,
}

impl fmt::Display for LooksLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UpTo0_3_11 => "0.3.11 or older",
            Self::V0_3_12 => "0.3.12",
            Self::Other => "an unknown, perhaps newer release",
        })
    }
}

/// The master has an unsupported release. Nothing was mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "master {peer} has an unsupported release: its answers match {looks_like} (protocol {protocol}), \
     this node supports {ours} (protocol {PROTOCOL_VERSION}): {}",
    list(mismatches)
)]
pub struct Skew {
    pub peer: Arc<str>,
    pub ours: Release,
    pub looks_like: LooksLike,
    /// The answer of `ServiceReady`.
    pub protocol: String,
    /// All messages that differ.
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

/// Why a release probe did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Skew(Arc<Skew>),
    /// A call failed, so the release is unknown.
    #[error("{0}")]
    Call(#[from] Error),
}

impl Master {
    /// Checks that the master has release 0.3.13, by its protocol version and by a call of each function
    /// that a storing node needs. Changes nothing at the master.
    ///
    /// # Errors
    /// [`ProbeError::Skew`] for another release; [`ProbeError::Call`] if a call failed.
    pub async fn probe_release(&self) -> Result<Release, ProbeError> {
        let protocol = self.call_within::<wire::ServiceReady>(&(), MOST_ANSWER_BYTES);
        let protocol = clip(protocol.await?);
        let mismatches = self.try_messages().await?;
        if protocol == PROTOCOL_VERSION && mismatches.is_empty() {
            return Ok(Release::V0_3_13);
        }
        Err(ProbeError::Skew(Arc::new(Skew {
            peer: Arc::clone(self.peer()),
            ours: Release::V0_3_13,
            looks_like: looks_like(&mismatches),
            protocol,
            mismatches,
        })))
    }

    /// Calls the functions. Omits `ReMountSegment` and `Ping`, which would change the master; their types
    /// are covered by `MountSegment`.
    async fn try_messages(&self) -> Result<Vec<SchemaMismatch>, Error> {
        let no_id = Uuid {
            first: 0,
            second: 0,
        };
        let none = String::new;
        let no_space = wire::Segment {
            id: no_id,
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
            id: no_id,
            status: wire::TaskStatus::Failed,
            message: none(),
        };
        let placement = wire::ReplicateConfig {
            replica_num: 0,
            ..Default::default()
        };
        let no_put = (no_id, none(), 0, placement, none());
        let no_end = (no_id, no_object, wire::ReplicaType::Memory, none());
        let no_copy = (no_id, none(), none(), none(), Vec::new());
        let no_move = (no_id, none(), none(), none(), none());
        let no_key = (no_id, none(), none());

        let tried = vec![
            self.attempt::<wire::ExistKey>((none(), none())),
            self.attempt::<wire::GetReplicaList>((none(), none())),
            self.attempt::<wire::PutStart>(no_put),
            self.attempt::<wire::PutEnd>(no_end),
            self.attempt::<wire::GetStorageConfig>(()),
            self.attempt::<wire::MountSegment>((no_space, no_id)),
            self.attempt::<wire::UnmountSegment>((no_id, no_id)),
            self.attempt::<wire::GracefulUnmountSegment>((no_id, no_id, 0)),
            self.attempt::<wire::QuerySegmentStatusById>(no_id),
            self.attempt::<wire::FetchTasks>((no_id, 0)),
            self.attempt::<wire::MarkTaskToComplete>((no_id, no_task)),
            self.attempt::<wire::CopyStart>(no_copy),
            self.attempt::<wire::CopyEnd>(no_key.clone()),
            self.attempt::<wire::CopyRevoke>(no_key.clone()),
            self.attempt::<wire::MoveStart>(no_move),
            self.attempt::<wire::MoveEnd>(no_key.clone()),
            self.attempt::<wire::MoveRevoke>(no_key),
        ];
        Ok(try_join_all(tried).await?.into_iter().flatten().collect())
    }

    /// Calls one function. Any answer of the function confirms its schema, errors included.
    fn attempt<R: Rpc>(
        &self,
        arguments: R::Arguments,
    ) -> BoxFuture<'_, Result<Option<SchemaMismatch>, Error>> {
        Box::pin(async move {
            match self.call_within::<R>(&arguments, MOST_ANSWER_BYTES).await {
                Ok(_) => Ok(None),
                Err(error) => match error.cause {
                    Cause::Refused(_) => Ok(None),
                    Cause::Schema(mismatch) => Ok(Some(mismatch)),
                    _ => Err(error),
                },
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

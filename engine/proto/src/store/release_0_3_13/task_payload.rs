//! The JSON payload of a task.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Deserialize;
use serde_json::json;

use super::{TaskAssignment, TaskKind};
use crate::store::Uuid;

/// Copies an object to further segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPayload {
    pub tenant_id: String,
    pub key: String,
    /// Name of the segment to read from.
    pub source: String,
    /// Names of the segments to write to.
    pub targets: Vec<String>,
    /// Set if dynamic replication requested the copy; the calls then carry it.
    pub dynamic: Option<DynamicReplication>,
}

/// The lease of a copy by the master's dynamic replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DynamicReplication {
    pub lease_id: Uuid,
    pub version_epoch: u64,
}

/// Moves an object from one segment to another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MovePayload {
    #[serde(default)]
    pub tenant_id: String,
    pub key: String,
    /// Name of the segment to read from.
    pub source: String,
    /// Name of the segment to write to.
    pub target: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskPayload {
    Copy(CopyPayload),
    Move(MovePayload),
}

#[derive(Debug, thiserror::Error)]
pub enum TaskPayloadError {
    #[error("task kind {0} is neither copy nor move")]
    Kind(TaskKind),
    #[error("cannot parse the payload of the {kind:?} task: {cause}")]
    Json {
        kind: TaskKind,
        cause: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct CopyJson {
    #[serde(default)]
    tenant_id: String,
    key: String,
    source: String,
    targets: Vec<String>,
    #[serde(default)]
    dynamic_replication_lease_id_high: u64,
    #[serde(default)]
    dynamic_replication_lease_id_low: u64,
    #[serde(default)]
    dynamic_replication_version_epoch: u64,
}

impl From<CopyJson> for CopyPayload {
    fn from(json: CopyJson) -> Self {
        let lease_id = Uuid {
            first: json.dynamic_replication_lease_id_high,
            second: json.dynamic_replication_lease_id_low,
        };
        let ordinary = lease_id
            == Uuid {
                first: 0,
                second: 0,
            };
        Self {
            tenant_id: json.tenant_id,
            key: json.key,
            source: json.source,
            targets: json.targets,
            dynamic: (!ordinary).then_some(DynamicReplication {
                lease_id,
                version_epoch: json.dynamic_replication_version_epoch,
            }),
        }
    }
}

impl TaskPayload {
    /// Returns the kind of a task with this payload.
    #[must_use]
    pub fn kind(&self) -> TaskKind {
        match self {
            Self::Copy(_) => TaskKind::Copy,
            Self::Move(_) => TaskKind::Move,
        }
    }

    /// Returns the text that [`Self::parse`] and stock clients read.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Copy(copy) => {
                let none = DynamicReplication {
                    lease_id: Uuid {
                        first: 0,
                        second: 0,
                    },
                    version_epoch: 0,
                };
                let dynamic = copy.dynamic.unwrap_or(none);
                json!({
                    "tenant_id": copy.tenant_id,
                    "key": copy.key,
                    "source": copy.source,
                    "targets": copy.targets,
                    "dynamic_replication_lease_id_high": dynamic.lease_id.first,
                    "dynamic_replication_lease_id_low": dynamic.lease_id.second,
                    "dynamic_replication_version_epoch": dynamic.version_epoch,
                })
            }
            Self::Move(moved) => json!({
                "tenant_id": moved.tenant_id,
                "key": moved.key,
                "source": moved.source,
                "target": moved.target,
            }),
        }
        .to_string()
    }

    /// Parses the payload of a task.
    ///
    /// # Errors
    /// [`TaskPayloadError::Kind`] for an unknown kind; [`TaskPayloadError::Json`] for a malformed payload.
    pub fn parse(task: &TaskAssignment) -> Result<Self, TaskPayloadError> {
        let bytes = &task.payload.0;
        let malformed = |cause| TaskPayloadError::Json {
            kind: task.kind,
            cause,
        };
        match task.kind {
            TaskKind::Copy => serde_json::from_slice::<CopyJson>(bytes)
                .map(|json| Self::Copy(json.into()))
                .map_err(malformed),
            TaskKind::Move => serde_json::from_slice(bytes)
                .map(Self::Move)
                .map_err(malformed),
            TaskKind::Unknown(_) => Err(TaskPayloadError::Kind(task.kind)),
        }
    }
}

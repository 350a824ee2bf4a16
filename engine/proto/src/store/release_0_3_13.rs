//! Messages of releases 0.3.13 and 0.3.13.post1: functions that a storing node calls, and functions for the
//! release probe.

mod object;
mod replica;
mod rpc;
mod segment;
mod task;
mod task_payload;

pub use object::{ObjectMeta, ReplicaType, ReplicateConfig, SoftPinAction};
pub use replica::{
    CopyStartResponse, DfsReplica, DiskReplica, GetReplicaListResponse, LocalDiskReplica, Location,
    MemoryReplica, MoveStartResponse, ReplicaDescriptor, ReplicaStatus,
};
pub use rpc::*;
pub use segment::{ClientStatus, PingResponse, Segment, SegmentStatus, StorageConfig};
pub use task::{QueryTaskResponse, TaskAssignment, TaskCompleteRequest, TaskKind, TaskStatus};
pub use task_payload::{
    CopyPayload, DynamicReplication, MovePayload, TaskPayload, TaskPayloadError,
};

#[cfg(test)]
mod tests;

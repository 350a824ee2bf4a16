//! Messages of releases 0.3.13 and 0.3.13.post1: every function that the stock master
//! registers.

mod object;
mod replica;
mod rpc;
mod segment;
mod task;
mod task_payload;
mod tier;

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
pub use tier::{
    NofOwner, NofSegment, OffloadTask, PromotionAllocStartResponse, StorageObjectMetadata,
};

#[cfg(test)]
mod tests;

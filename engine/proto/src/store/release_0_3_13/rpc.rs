//! The functions and their types. Hashes and IDs are derived from types and names; the table in the tests
//! pins them.

use alloc::string::String;
use alloc::vec::Vec;

use super::{
    CopyStartResponse, GetReplicaListResponse, MoveStartResponse, ObjectMeta, PingResponse,
    QueryTaskResponse, ReplicaDescriptor, ReplicaType, ReplicateConfig, Segment, SegmentStatus,
    StorageConfig, TaskAssignment, TaskCompleteRequest,
};
use crate::store::{Rpc, Uuid};

macro_rules! rpcs {
    ($($(#[$meta:meta])* $name:ident: $arguments:ty => $value:ty;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;

        impl Rpc for $name {
            const METHOD: &'static str = stringify!($name);
            type Arguments = $arguments;
            type Value = $value;
        }
    )*};
}

rpcs! {
    /// Returns [`crate::store::PROTOCOL_VERSION`] once the master serves.
    ServiceReady: () => String;
    GetStorageConfig: () => StorageConfig;

    /// (segment, client). Makes the space allocatable; an existing ID is Ok, also of another client.
    MountSegment: (Segment, Uuid) => ();
    /// (all segments of the client, client). Mounts what is missing and marks the client alive.
    ReMountSegment: (Vec<Segment>, Uuid) => ();
    /// (segment, client). Unmounts at once; an unknown ID is Ok; the owner is not checked.
    UnmountSegment: (Uuid, Uuid) => ();
    /// (segment, client, milliseconds). Stops new objects, and unmounts after the time.
    GracefulUnmountSegment: (Uuid, Uuid, u64) => ();
    /// (segment name).
    QuerySegmentStatus: String => SegmentStatus;
    /// (segment).
    QuerySegmentStatusById: Uuid => SegmentStatus;
    /// (client). Restarts the client's TTL and returns whether the client is known.
    Ping: Uuid => PingResponse;

    /// (client, most tasks). Returns each task once.
    FetchTasks: (Uuid, u64) => Vec<TaskAssignment>;
    MarkTaskToComplete: (Uuid, TaskCompleteRequest) => ();
    /// (client, key, tenant, source segment name, target segment names).
    CopyStart: (Uuid, String, String, String, Vec<String>) => CopyStartResponse;
    /// (client, key, tenant).
    CopyEnd: (Uuid, String, String) => ();
    /// (client, key, tenant).
    CopyRevoke: (Uuid, String, String) => ();
    /// Like [`CopyStart`], with lease and version epoch of the dynamic replication.
    DynamicReplicaCopyStart:
        (Uuid, String, String, String, Vec<String>, Uuid, u64) => CopyStartResponse;
    /// Like [`CopyEnd`], with lease and version epoch.
    DynamicReplicaCopyEnd: (Uuid, String, String, Uuid, u64) => ();
    /// Like [`CopyRevoke`], with lease and version epoch.
    DynamicReplicaCopyRevoke: (Uuid, String, String, Uuid, u64) => ();
    /// (client, key, tenant, source segment name, target segment name).
    MoveStart: (Uuid, String, String, String, String) => MoveStartResponse;
    /// (client, key, tenant).
    MoveEnd: (Uuid, String, String) => ();
    /// (client, key, tenant).
    MoveRevoke: (Uuid, String, String) => ();
    /// (key, tenant, target segment names).
    CreateCopyTask: (String, String, Vec<String>) => Uuid;
    /// (key, tenant, source segment name, target segment name).
    CreateMoveTask: (String, String, String, String) => Uuid;
    /// (task).
    QueryTask: Uuid => QueryTaskResponse;

    /// (key, tenant).
    ExistKey: (String, String) => bool;
    /// (client, key, bytes, placement, tenant).
    PutStart: (Uuid, String, u64, ReplicateConfig, String) => Vec<ReplicaDescriptor>;
    /// (client, object, replicas, tenant).
    PutEnd: (Uuid, ObjectMeta, ReplicaType, String) => ();
    /// (key, tenant).
    GetReplicaList: (String, String) => GetReplicaListResponse;
}

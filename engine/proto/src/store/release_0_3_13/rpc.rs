//! The functions and their types. Hashes and IDs are derived from types and names; the table in the tests
//! pins them.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{
    CopyStartResponse, GetReplicaListResponse, MoveStartResponse, NofOwner, NofSegment, ObjectMeta,
    OffloadTask, PingResponse, PromotionAllocStartResponse, QueryTaskResponse, ReplicaDescriptor,
    ReplicaType, ReplicateConfig, Segment, SegmentStatus, StorageConfig, StorageObjectMetadata,
    TaskAssignment, TaskCompleteRequest,
};
use crate::store::{BareRpc, ErrorCode, Rpc, Uuid};

/// Something that is done with each function of the master.
pub trait Visitor {
    /// A function whose answer is one result.
    fn rpc<R: Rpc>(&mut self);
    /// A function with another answer.
    fn bare<R: BareRpc>(&mut self);
}

/// Visits every function that the stock master registers.
pub fn visit_functions(visitor: &mut impl Visitor) {
    visit_rpcs(visitor);
    visit_bare_rpcs(visitor);
}

macro_rules! rpcs {
    ($($(#[$meta:meta])* $name:ident: $arguments:ty => $value:ty;)*) => {
        fn visit_rpcs(visitor: &mut impl Visitor) {
            $(visitor.rpc::<$name>();)*
        }
        $(
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
    /// (client, key, replicas, tenant).
    PutRevoke: (Uuid, String, ReplicaType, String) => ();
    /// Like [`PutStart`]; an object with this key is replaced.
    UpsertStart: (Uuid, String, u64, ReplicateConfig, String) => Vec<ReplicaDescriptor>;
    /// Like [`PutEnd`].
    UpsertEnd: (Uuid, ObjectMeta, ReplicaType, String) => ();
    /// Like [`PutRevoke`].
    UpsertRevoke: (Uuid, String, ReplicaType, String) => ();
    /// (ECMAScript pattern, tenant). Grants leases.
    GetReplicaListByRegex: (String, String) => BTreeMap<String, Vec<ReplicaDescriptor>>;
    /// (key, also if leased, tenant).
    Remove: (String, bool, String) => ();
    /// (ECMAScript pattern, also if leased, tenant). Returns the number of removed objects.
    RemoveByRegex: (String, bool, String) => i64;
    /// (keys, client that put them, segment name or empty for all). Returns the keys that were cleared.
    BatchReplicaClear: (Vec<String>, Uuid, String) => Vec<String>;
    /// (clients). Returns the addresses of those that hold segments.
    BatchQueryIp: Vec<Uuid> => BTreeMap<Uuid, Vec<String>>;
    /// Returns the folder of the SSD tier, empty without one.
    GetFsdir: () => String;

    MountNoFSegment: (NofSegment, Uuid) => ();
    ReMountNoFSegment: (Vec<NofSegment>, Uuid) => ();
    UnmountNoFSegment: (Uuid, Uuid) => ();
    GetAllNoFSegments: () => Vec<NofSegment>;
    GetNoFSegmentsByName: String => Vec<NofOwner>;
    /// (client, whether offloading is enabled).
    MountLocalDiskSegment: (Uuid, bool) => ();
    UnmountLocalDiskSegment: Uuid => ();
    /// (client, whether offloading is enabled).
    OffloadObjectHeartbeat: (Uuid, bool) => Vec<OffloadTask>;
    /// (client, bytes).
    ReportSsdCapacity: (Uuid, i64) => ();
    NotifyOffloadSuccess: (Uuid, Vec<OffloadTask>, Vec<StorageObjectMetadata>) => ();
    PromotionObjectHeartbeat: Uuid => Vec<OffloadTask>;
    /// (client, key, tenant, bytes, preferred segment names).
    PromotionAllocStart: (Uuid, String, String, u64, Vec<String>) => PromotionAllocStartResponse;
    /// (client, key, tenant).
    NotifyPromotionSuccess: (Uuid, String, String) => ();
    /// (client, key, tenant).
    NotifyPromotionFailure: (Uuid, String, String) => ();
    /// (client, key, tenant, replicas).
    EvictDiskReplica: (Uuid, String, String, ReplicaType) => ();
    PollRemoveAll: Uuid => bool;
}

macro_rules! bare_rpcs {
    ($($(#[$meta:meta])* $name:ident: $arguments:ty => $answer:ty;)*) => {
        fn visit_bare_rpcs(visitor: &mut impl Visitor) {
            $(visitor.bare::<$name>();)*
        }
        $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;

        impl BareRpc for $name {
            const METHOD: &'static str = stringify!($name);
            type Arguments = $arguments;
            type Answer = $answer;
        }
    )*};
}

bare_rpcs! {
    /// (keys, tenant). Grants leases.
    BatchExistKey: (Vec<String>, String) => Vec<Result<bool, ErrorCode>>;
    /// (keys, tenant). Grants leases.
    BatchGetReplicaList: (Vec<String>, String) => Vec<Result<GetReplicaListResponse, ErrorCode>>;
    /// (client, keys, bytes of each, placement, tenant).
    BatchPutStart: (Uuid, Vec<String>, Vec<u64>, ReplicateConfig, String)
        => Vec<Result<Vec<ReplicaDescriptor>, ErrorCode>>;
    /// (client, objects, replicas, tenant).
    BatchPutEnd: (Uuid, Vec<ObjectMeta>, ReplicaType, String) => Vec<Result<(), ErrorCode>>;
    /// (client, keys, replicas, tenant).
    BatchPutRevoke: (Uuid, Vec<String>, ReplicaType, String) => Vec<Result<(), ErrorCode>>;
    /// Like [`BatchPutStart`]; objects with these keys are replaced.
    BatchUpsertStart: (Uuid, Vec<String>, Vec<u64>, ReplicateConfig, String)
        => Vec<Result<Vec<ReplicaDescriptor>, ErrorCode>>;
    /// (client, objects, tenant).
    BatchUpsertEnd: (Uuid, Vec<ObjectMeta>, String) => Vec<Result<(), ErrorCode>>;
    /// (client, keys, tenant).
    BatchUpsertRevoke: (Uuid, Vec<String>, String) => Vec<Result<(), ErrorCode>>;
    /// (keys, also if leased, tenant).
    BatchRemove: (Vec<String>, bool, String) => Vec<Result<(), ErrorCode>>;
    /// (also if leased, tenant). Returns the number of removed objects.
    RemoveAll: (bool, String) => i64;
    /// (client, keys, tenant, replicas).
    BatchEvictDiskReplica: (Uuid, Vec<String>, String, ReplicaType) => Vec<Result<(), ErrorCode>>;
}

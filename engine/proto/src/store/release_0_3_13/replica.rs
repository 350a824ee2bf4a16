//! Replicas of objects and their locations.

use alloc::string::String;
use alloc::vec::Vec;

use crate::store::Uuid;
use crate::struct_pack::{DecodeError, Node, Packed, Reader, Writer, packed_enum, packed_struct};

packed_struct! {
    /// Bytes in a mounted segment, or (as [`Location::Nof`]) behind NVMe over fabrics.
    pub struct MemoryReplica {
        /// Number of bytes.
        pub size: u64,
        /// Wire address inside the segment.
        pub address: u64,
        /// "tcp" unless CXL; not the segment's transport.
        pub protocol: String,
        /// The owner's P2P server name, `ip:port`.
        pub endpoint: String,
    }
}

packed_struct! {
    pub struct DiskReplica {
        pub path: String,
        pub size: u64,
    }
}

packed_struct! {
    pub struct LocalDiskReplica {
        pub client_id: Uuid,
        pub size: u64,
        pub endpoint: String,
    }
}

packed_struct! {
    pub struct DfsReplica {
        pub path: String,
        pub offset: u64,
        pub size: u64,
        pub aligned: u64,
        pub shard: i32,
    }
}

/// The location of a replica, in the order of the index on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Memory(MemoryReplica),
    Nof(MemoryReplica),
    Disk(DiskReplica),
    LocalDisk(LocalDiskReplica),
    Dfs(DfsReplica),
}

/// Upstream wraps the buffer in a struct of one member, which affects only the literal.
const IN_ONE_MEMBER_STRUCT: &Node = &Node::Struct(&[MemoryReplica::NODE]);

impl Packed for Location {
    const NODE: &'static Node = &Node::Variant(&[
        IN_ONE_MEMBER_STRUCT,
        IN_ONE_MEMBER_STRUCT,
        DiskReplica::NODE,
        LocalDiskReplica::NODE,
        DfsReplica::NODE,
    ]);
    const LEAST_BYTES: usize = 1 + DiskReplica::LEAST_BYTES;

    fn longest(&self) -> usize {
        match self {
            Self::Memory(replica) | Self::Nof(replica) => replica.longest(),
            Self::Disk(replica) => replica.longest(),
            Self::LocalDisk(replica) => replica.longest(),
            Self::Dfs(replica) => replica.longest(),
        }
    }

    fn pack(&self, out: &mut Writer) {
        let mut alternative = |index: u8, replica: &dyn Fn(&mut Writer)| {
            index.pack(out);
            replica(out);
        };
        match self {
            Self::Memory(replica) => alternative(0, &|out| replica.pack(out)),
            Self::Nof(replica) => alternative(1, &|out| replica.pack(out)),
            Self::Disk(replica) => alternative(2, &|out| replica.pack(out)),
            Self::LocalDisk(replica) => alternative(3, &|out| replica.pack(out)),
            Self::Dfs(replica) => alternative(4, &|out| replica.pack(out)),
        }
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::unpack(from)? {
            0 => MemoryReplica::unpack(from).map(Self::Memory),
            1 => MemoryReplica::unpack(from).map(Self::Nof),
            2 => DiskReplica::unpack(from).map(Self::Disk),
            3 => LocalDiskReplica::unpack(from).map(Self::LocalDisk),
            4 => DfsReplica::unpack(from).map(Self::Dfs),
            value => Err(DecodeError::OutOfRange {
                part: "replica variant",
                value,
            }),
        }
    }
}

packed_enum! {
    pub enum ReplicaStatus: i32 {
        Undefined = 0,
        Initialized = 1,
        /// Allocated; the bytes are being written.
        Processing = 2,
        Complete = 3,
        Removed = 4,
        Failed = 5,
    }
}

packed_struct! {
    pub struct ReplicaDescriptor {
        pub id: u64,
        pub location: Location,
        pub status: ReplicaStatus,
    }
}

packed_struct! {
    pub struct GetReplicaListResponse {
        pub replicas: Vec<ReplicaDescriptor>,
        /// Milliseconds in which the replicas are not evicted.
        pub lease_ttl_ms: u64,
        pub object_checksum: Option<u64>,
    }
}

packed_struct! {
    pub struct CopyStartResponse {
        pub source: ReplicaDescriptor,
        /// Empty if every target already has a replica.
        pub targets: Vec<ReplicaDescriptor>,
    }
}

packed_struct! {
    pub struct MoveStartResponse {
        pub source: ReplicaDescriptor,
        /// `None` if the target already has a replica.
        pub target: Option<ReplicaDescriptor>,
    }
}

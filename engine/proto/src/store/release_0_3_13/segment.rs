//! Segments, and the states of clients and segments.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::store::Uuid;
use crate::struct_pack::{packed_enum, packed_struct};

packed_struct! {
    /// Memory that its owner offers to the master's allocator.
    #[derive(Serialize, Deserialize)]
    pub struct Segment {
        pub id: Uuid,
        /// Unique among all segments: the master uses it for drains, placement and metrics.
        pub name: String,
        /// First wire address. Not zero; not necessarily an address of a process.
        pub base: u64,
        /// Number of bytes. Not zero.
        pub size: u64,
        /// The owner's handshake listener, `ip:port`, from which peers fetch its descriptor.
        pub te_endpoint: String,
        /// The owner's transport: `tcp`, `rdma`.
        pub protocol: String,
        /// Used for placement near the writer; may be empty.
        pub host_id: String,
    }
}

packed_enum! {
    /// The master's state of a client.
    pub enum ClientStatus: i32 {
        Undefined = 0,
        Ok = 1,
        /// The master has no segments of this client.
        NeedRemount = 2,
    }
}

packed_struct! {
    pub struct PingResponse {
        /// 0 without high availability.
        pub view_version: i64,
        pub client_status: ClientStatus,
    }
}

packed_enum! {
    pub enum SegmentStatus: i32 {
        Undefined = 0,
        Ok = 1,
        Draining = 2,
        Drained = 3,
        /// Accepts no new objects; readable until the grace period ends.
        GracefullyUnmounting = 4,
        Unmounting = 5,
    }
}

packed_struct! {
    /// The master's SSD tier.
    pub struct StorageConfig {
        pub fsdir: String,
        pub enable_disk_eviction: bool,
        pub quota_bytes: u64,
    }
}

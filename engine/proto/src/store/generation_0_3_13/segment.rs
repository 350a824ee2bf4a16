//! Segments, and how a client and the master see each other's life.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::store::Uuid;
use crate::struct_pack::{packed_enum, packed_struct};

packed_struct! {
    /// A run of memory that its owner offers to the master's allocator.
    #[derive(Serialize, Deserialize)]
    pub struct Segment {
        pub id: Uuid,
        /// Unique among all segments: the master keys drains, placement and metrics by it.
        pub name: String,
        /// First wire address. Not zero; need not be an address of any process.
        pub base: u64,
        /// Bytes. Not zero.
        pub size: u64,
        /// Where peers ask for the owner's descriptor: `ip:port` of its handshake listener.
        pub te_endpoint: String,
        /// The owner's transport: `tcp`, `rdma`.
        pub protocol: String,
        /// For placement near the writer; may be empty.
        pub host_id: String,
    }
}

packed_enum! {
    /// What the master thinks of a client.
    pub enum ClientStatus: i32 {
        Undefined = 0,
        Ok = 1,
        /// The master has no segments of this client (any more).
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
        /// No new objects; readable until its grace period ends.
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

//! Messages of the tiers below memory: NVMe over fabrics, local disks, promotion. Our master refuses their functions.

use alloc::string::String;

use super::ReplicaDescriptor;
use crate::store::Uuid;
use crate::struct_pack::packed_struct;

packed_struct! {
    pub struct NofSegment {
        pub id: Uuid,
        pub name: String,
        pub base: u64,
        pub size: u64,
        pub te_endpoint: String,
    }
}

packed_struct! {
    pub struct NofOwner {
        pub segment_id: Uuid,
        pub client_id: Uuid,
    }
}

packed_struct! {
    /// An object to write to, or to read from, a local disk.
    pub struct OffloadTask {
        pub tenant_id: String,
        pub key: String,
        pub size: i64,
    }
}

packed_struct! {
    pub struct StorageObjectMetadata {
        pub bucket_id: i64,
        pub offset: i64,
        pub key_size: i64,
        pub data_size: i64,
        pub transport_endpoint: String,
    }
}

packed_struct! {
    pub struct PromotionAllocStartResponse {
        pub descriptor: ReplicaDescriptor,
    }
}

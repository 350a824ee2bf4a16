//! Objects, and how a writer places them.

use alloc::string::String;
use alloc::vec::Vec;

use crate::struct_pack::{packed_enum, packed_struct};

packed_enum! {
    pub enum SoftPinAction: u8 {
        Preserve = 0,
        Enable = 1,
        Disable = 2,
    }
}

packed_enum! {
    /// Selects replicas of an object.
    pub enum ReplicaType: i32 {
        Memory = 0,
        Disk = 1,
        LocalDisk = 2,
        NofSsd = 3,
        All = 4,
        Dfs = 100,
    }
}

packed_struct! {
    /// The placement of an object.
    pub struct ReplicateConfig {
        pub replica_num: u64,
        pub nof_replica_num: u64,
        pub dfs_replica_num: u64,
        pub soft_pin_action: SoftPinAction,
        pub soft_pin_ttl_ms: Option<u64>,
        pub with_hard_pin: bool,
        /// Names of preferred segments.
        pub preferred_segments: Vec<String>,
        /// Deprecated upstream.
        pub preferred_segment: String,
        pub preferred_nof_segments: Vec<String>,
        pub prefer_alloc_in_same_node: bool,
        /// 0 means unknown; other values only label metrics.
        pub data_type: u8,
        pub host_id: String,
        pub group_ids: Option<Vec<String>>,
    }
}

impl Default for ReplicateConfig {
    /// The default of the stock client: one memory replica.
    fn default() -> Self {
        Self {
            replica_num: 1,
            nof_replica_num: 0,
            dfs_replica_num: 0,
            soft_pin_action: SoftPinAction::Preserve,
            soft_pin_ttl_ms: None,
            with_hard_pin: false,
            preferred_segments: Vec::new(),
            preferred_segment: String::new(),
            preferred_nof_segments: Vec::new(),
            prefer_alloc_in_same_node: false,
            data_type: 0,
            host_id: String::new(),
            group_ids: None,
        }
    }
}

packed_struct! {
    pub struct ObjectMeta {
        pub key: String,
        pub object_checksum: Option<u64>,
    }
}

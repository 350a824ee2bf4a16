//! Tasks of the master for the owner of a segment.

use alloc::string::String;

use crate::store::Uuid;
use crate::struct_pack::{Blob, packed_enum, packed_struct};

packed_enum! {
    pub enum TaskKind: i32 {
        Copy = 0,
        Move = 1,
    }
}

packed_enum! {
    pub enum TaskStatus: i32 {
        Pending = 0,
        Processing = 1,
        Failed = 2,
        Success = 3,
    }
}

packed_struct! {
    pub struct TaskAssignment {
        pub id: Uuid,
        pub kind: TaskKind,
        /// JSON for [`super::TaskPayload::parse`]. Kept as bytes, so that one malformed payload does not
        /// affect the other tasks of the answer.
        pub payload: Blob,
        /// Milliseconds since 1970.
        pub created_at_ms: i64,
        pub max_retry: u32,
    }
}

packed_struct! {
    pub struct TaskCompleteRequest {
        pub id: Uuid,
        pub status: TaskStatus,
        pub message: String,
    }
}

packed_struct! {
    pub struct QueryTaskResponse {
        pub id: Uuid,
        pub kind: TaskKind,
        pub status: TaskStatus,
        /// Milliseconds since 1970.
        pub created_ms: i64,
        /// Milliseconds since 1970.
        pub updated_ms: i64,
        pub assigned_client: Uuid,
        pub message: String,
    }
}

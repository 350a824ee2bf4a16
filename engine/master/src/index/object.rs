//! One object and its replicas.

use proto::store::Uuid;
use proto::store::ledger::Version;
use proto::store::release_0_3_13::ReplicaStatus;
use slotmap::new_key_type;

use super::Moment;
use super::accounts::AccountId;
use super::allocator::Block;
use super::objects::Replicas;
use super::segments::{SegmentId, Segments};

new_key_type! {
    /// An object in the index. An ID is never used for another object.
    pub(crate) struct ObjectId;
}

/// A range of a segment that contains the object's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replica {
    pub(crate) id: u64,
    pub(crate) offset: u64,
    pub(crate) segment: SegmentId,
    pub(crate) block: Block,
    pub(crate) complete: bool,
}

impl Replica {
    pub(crate) fn is_readable(&self, segments: &Segments) -> bool {
        self.complete && segments.is_mounted(self.segment)
    }

    pub(crate) fn status(&self) -> ReplicaStatus {
        if self.complete {
            ReplicaStatus::Complete
        } else {
            ReplicaStatus::Processing
        }
    }
}

#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: Box<str>,
    /// Bytes of each replica.
    pub(crate) size: u64,
    pub(crate) version: Version,
    /// The last writer.
    pub(crate) client: Uuid,
    pub(crate) put_start: Moment,
    /// End of the lease that the object has without its group. [`super::objects::Objects::lease`] knows both.
    pub(crate) own_lease: Moment,
    /// The object is soft-pinned before this time.
    pub(crate) soft_pin: Moment,
    pub(crate) checksum: Option<u64>,
    pub(crate) replicas: Replicas,
    /// Of its tenant. The table of objects sets it.
    pub(crate) account: AccountId,
    pub(crate) hard_pin: bool,
    /// A put has begun and has not ended.
    pub(crate) in_put: bool,
    pub(crate) has_group: bool,
    /// The object has an entry in the order of eviction.
    pub(crate) queued: bool,
}

impl Object {
    pub(crate) fn is_soft_pinned(&self, now: Moment) -> bool {
        now < self.soft_pin
    }

    /// Returns whether all replicas are complete, apart from those whose segment was unmounted.
    pub(crate) fn is_complete(&self, segments: &Segments) -> bool {
        self.replicas
            .iter()
            .all(|replica| replica.complete || !segments.is_mounted(replica.segment))
    }

    pub(crate) fn has_complete_replica(&self) -> bool {
        self.replicas.iter().any(|replica| replica.complete)
    }

    pub(crate) fn is_readable(&self, segments: &Segments) -> bool {
        self.replicas
            .iter()
            .any(|replica| replica.is_readable(segments))
    }

    /// Extends the lease; it never becomes shorter.
    pub(crate) fn grant(&mut self, until: Moment) {
        self.own_lease = self.own_lease.max(until);
    }
}

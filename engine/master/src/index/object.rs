//! One object and its replicas.

use proto::store::ledger::Version;
use proto::store::release_0_3_13::ReplicaStatus;

use super::Moment;
use super::accounts::AccountId;
use super::allocator::{Block, Owner};
use super::objects::Replicas;
use super::segments::{SegmentId, Segments};
use super::writers::WriterId;

/// Identifies an object in the index. An ID is never used for another object. The default is that of none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId {
    pub(super) at: u32,
    pub(super) generation: u32,
}

impl Default for ObjectId {
    fn default() -> Self {
        Self {
            at: u32::MAX,
            generation: 0,
        }
    }
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

impl Owner for ObjectId {
    fn bits(self) -> u64 {
        u64::from(self.at) << 32 | u64::from(self.generation)
    }

    #[expect(clippy::cast_possible_truncation, reason = "two halves of 64 bits")]
    fn of(bits: u64) -> Self {
        Self {
            at: (bits >> 32) as u32,
            generation: bits as u32,
        }
    }
}

/// What is true or not of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flag {
    HardPin = 1,
    /// A put has begun and has not ended.
    InPut = 2,
    HasGroup = 4,
    /// The object has an entry in the order of eviction.
    Queued = 8,
    HasChecksum = 16,
    /// The table of objects has the end of its soft pin.
    HasSoftPin = 32,
}

/// What is kept of a key. Each field costs its bytes for each key.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: Box<str>,
    /// Bytes of each replica.
    pub(crate) size: u64,
    pub(crate) version: Version,
    /// End of the lease that the object has without its group. [`super::objects::Objects::lease`] knows both.
    pub(crate) own_lease: Moment,
    /// Valid with [`Flag::HasChecksum`].
    checksum: u64,
    pub(crate) replicas: Replicas,
    /// Of its tenant. The table of objects sets it, as the two next ones.
    pub(crate) account: AccountId,
    pub(super) writer: WriterId,
    pub(super) generation: u32,
    flags: u8,
}

impl Object {
    /// An object without pins, lease, checksum and group that is in no put.
    pub(crate) fn new(key: Box<str>, size: u64, version: Version, replicas: Replicas) -> Self {
        Self {
            key,
            size,
            version,
            own_lease: Moment::default(),
            checksum: 0,
            replicas,
            account: AccountId::default(),
            writer: WriterId::default(),
            generation: 0,
            flags: 0,
        }
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }

    pub(crate) fn set(&mut self, flag: Flag, value: bool) {
        if value {
            self.flags |= flag as u8;
        } else {
            self.flags &= !(flag as u8);
        }
    }

    pub(crate) fn checksum(&self) -> Option<u64> {
        self.has(Flag::HasChecksum).then_some(self.checksum)
    }

    pub(crate) fn set_checksum(&mut self, checksum: Option<u64>) {
        self.checksum = checksum.unwrap_or_default();
        self.set(Flag::HasChecksum, checksum.is_some());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_as_owner_of_a_range() {
        let id = ObjectId {
            at: 7,
            generation: u32::MAX,
        };
        for id in [id, ObjectId::default()] {
            assert_eq!(<ObjectId as Owner>::of(id.bits()), id);
        }
    }
}

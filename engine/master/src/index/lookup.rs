//! Lookups. Each one by a client that finds readable replicas grants a read lease.

use proto::store::ErrorCode;
use proto::store::release_0_3_13 as wire;

use super::object::{Object, ObjectId, Replica};
use super::segments::Segments;
use super::{Index, Moment};

/// A replica as a peer sees it, without allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<'a> {
    pub id: u64,
    pub size: u64,
    /// Wire address.
    pub address: u64,
    pub endpoint: &'a str,
    pub status: wire::ReplicaStatus,
}

impl<'a> View<'a> {
    /// What the stock master writes for memory, whatever the transport of the segment is.
    pub const PROTOCOL: &'static str = "tcp";

    pub(super) fn of(segments: &'a Segments, object: &Object, replica: &Replica) -> Self {
        let segment = segments.get(replica.segment);
        Self {
            id: replica.id,
            size: object.size,
            address: segment.map_or(0, |mounted| mounted.segment.base + replica.offset),
            endpoint: segment.map_or("", |mounted| &mounted.endpoint),
            status: replica.status(),
        }
    }
}

/// An object that was looked up.
#[derive(Debug)]
pub struct Found<'a> {
    object: &'a Object,
    segments: &'a Segments,
}

impl<'a> Found<'a> {
    /// Returns the readable replicas.
    pub fn replicas(&self) -> impl Iterator<Item = View<'a>> + use<'a> {
        let (object, segments) = (self.object, self.segments);
        object
            .replicas
            .iter()
            .filter(|replica| replica.is_readable(segments))
            .map(|replica| View::of(segments, object, replica))
    }

    #[must_use]
    pub fn checksum(&self) -> Option<u64> {
        self.object.checksum()
    }
}

impl Index {
    /// Returns whether an object with readable replicas exists.
    pub fn exist_key(&mut self, key: &str, now: Moment) -> bool {
        let until = now.after(self.settings.lease_ttl);
        let Some(id) = self.objects.find(key) else {
            return false;
        };
        let readable = self.objects[id].is_readable(&self.segments);
        if readable {
            self.objects.grant(id, until);
        }
        readable
    }

    /// Finds the readable replicas of an object.
    ///
    /// # Errors
    /// `ObjectNotFound`; `ReplicaIsNotReady` if none is complete.
    pub fn get_replica_list(&mut self, key: &str, now: Moment) -> Result<Found<'_>, ErrorCode> {
        self.counters.gets += 1;
        let until = now.after(self.settings.lease_ttl);
        let id = self.readable(key)?;
        self.objects.grant(id, until);
        self.counters.hits += 1;
        let bytes = &mut self.counters.hit_bytes;
        *bytes = bytes.saturating_add(self.objects[id].size);
        Ok(self.found(id))
    }

    /// Finds the readable replicas of an object for display: grants no lease and counts nothing.
    ///
    /// # Errors
    /// As of [`Self::get_replica_list`].
    pub fn peek(&mut self, key: &str) -> Result<Found<'_>, ErrorCode> {
        let id = self.readable(key)?;
        Ok(self.found(id))
    }

    fn readable(&mut self, key: &str) -> Result<ObjectId, ErrorCode> {
        let id = self.find(key).ok_or(ErrorCode::ObjectNotFound)?;
        if self.objects[id].is_readable(&self.segments) {
            Ok(id)
        } else {
            Err(ErrorCode::ReplicaIsNotReady)
        }
    }

    fn found(&self, id: ObjectId) -> Found<'_> {
        Found {
            object: &self.objects[id],
            segments: &self.segments,
        }
    }

    /// Returns whether an object exists, complete or not. Grants no lease.
    pub fn contains(&mut self, key: &str) -> bool {
        self.find(key).is_some()
    }
}

//! Removal by request. What readers may still read rests until their lease has ended.

use proto::store::{ErrorCode, Uuid};

use super::object::{ObjectId, Replica};
use super::{Index, Moment, range};

impl Index {
    /// Removes an object.
    ///
    /// # Errors
    /// `ObjectNotFound`; `ObjectHasLease` unless `force`; `ReplicaIsNotReady` while a put or a copy is in progress;
    /// `ObjectHasReplicationTask` while a copy is that has nothing to write.
    pub fn remove(&mut self, key: &str, force: bool, now: Moment) -> Result<(), ErrorCode> {
        // A removal waits for the earlier ones of its key, also if it finds nothing: the end of an upsert may be in progress.
        self.wait_for_removal(key);
        let Some(id) = self.find(key) else {
            self.remember_removed(key);
            self.entomb_unknown(key);
            return Err(ErrorCode::ObjectNotFound);
        };
        let object = &self.objects[id];
        if !force && self.objects.is_leased(id, now) {
            return Err(ErrorCode::ObjectHasLease);
        }
        if !object.is_complete(&self.segments) || self.copies.writes(id) {
            return Err(ErrorCode::ReplicaIsNotReady);
        }
        if self.copies.contains(id) {
            return Err(ErrorCode::ObjectHasReplicationTask);
        }
        self.take_out(id, now);
        self.wait_for_removal(key);
        Ok(())
    }

    pub(super) fn may_be_removed(&self, id: ObjectId, force: bool, now: Moment) -> bool {
        let object = &self.objects[id];
        (force || !self.objects.is_leased(id, now))
            && object.is_complete(&self.segments)
            && object.is_readable(&self.segments)
            && !self.copies.contains(id)
    }

    pub(super) fn take_out(&mut self, id: ObjectId, now: Moment) {
        let rest = self.objects.readers_until(id, now);
        self.entomb_removed(id);
        self.erase(id, rest);
    }

    /// Removes the replicas of a client's objects in one segment, or all with an empty name. Leased and unfinished
    /// objects stay, and without replicas those that are being copied, until the copy ends. Returns the keys of which something was removed.
    pub fn clear_replicas(
        &mut self,
        keys: Vec<String>,
        client: Uuid,
        segment: &str,
        now: Moment,
    ) -> Vec<String> {
        let cleared: Vec<_> = keys
            .into_iter()
            .filter(|key| self.clear(key, client, segment, now))
            .collect();
        for key in &cleared {
            self.wait_for_removal(key);
        }
        cleared
    }

    fn clear(&mut self, key: &str, client: Uuid, segment: &str, now: Moment) -> bool {
        let Some(id) = self.find(key) else {
            return false;
        };
        let object = &self.objects[id];
        if self.objects.client(id) != client || self.objects.is_leased(id, now) {
            return false;
        }
        if segment.is_empty() {
            let complete = object.is_complete(&self.segments) && !self.copies.writes(id);
            if complete {
                self.take_out(id, now);
            }
            return complete;
        }
        let segments = &self.segments;
        let is_there =
            |replica: &Replica| replica.complete && segments.name(replica.segment) == Some(segment);
        let cleared = self.objects.take_replicas(id, is_there);
        if cleared.is_empty() {
            return false;
        }
        let object = &self.objects[id];
        let (empty, version) = (object.replicas.is_empty(), object.version);
        let ranges: Vec<_> = cleared
            .iter()
            .map(|replica| range(replica, object, Moment::default()))
            .collect();
        for (replica, range) in cleared.iter().zip(ranges) {
            if self.is_recorded(replica) && empty {
                self.leave(range);
            } else if self.is_recorded(replica) {
                // The other replicas of this version stay, also those that their owners bring again.
                self.vacate(range, &[], None);
            } else {
                self.segments.free(replica.segment, replica.block);
            }
        }
        if empty {
            if self.removed.insert(key, self.age(version)) {
                self.leaving.mark();
            }
            self.entomb_removed(id);
            if self.copies.writes(id) {
                // The stock master keeps the key until the copy ends. Records of the removed value are older than the object now.
                self.objects[id].version = self.next_version();
            } else {
                self.erase(id, Moment::default());
            }
        }
        true
    }
}

//! Copies and moves of objects to segments by name, which clients carry out: those of tasks and their own. An object has its new
//! replica when the client reports the end; before, only its range is allocated.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use proto::store::release_0_3_13::{CopyStartResponse, MoveStartResponse, ReplicaDescriptor};
use proto::store::{ErrorCode, Uuid};
use smallvec::SmallVec;

use super::accounts::AccountId;
use super::ledger::Successor;
use super::object::{Flag, ObjectId, Replica};
use super::quota::Demand;
use super::segments::{MOST_REPLICAS, Place};
use super::{Index, Moment, range};

/// Copies whose time has ended that one call looks at.
const STEPS: usize = 64;
/// Copies at a time. The stock master has no such limit.
const MOST_COPIES: usize = 16_384;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Copy,
    Move,
}

#[derive(Debug)]
struct Copying {
    client: Uuid,
    kind: Kind,
    /// The ID of the replica that is read.
    source: u64,
    /// Not yet replicas of the object.
    targets: SmallVec<[Replica; 1]>,
    /// The ID of the replica that the first target has already.
    present: Option<u64>,
    /// Bytes of each replica.
    size: u64,
    account: AccountId,
    begun: Moment,
}

/// A range that a copy has written, or the replica that has come below the same name meanwhile.
enum Written {
    New(Replica),
    Present(Replica),
}

/// The copies in progress, at most one of each object.
#[derive(Debug, Default)]
pub(super) struct Copies {
    of: HashMap<ObjectId, Copying, foldhash::fast::RandomState>,
    /// In the order of their start, those that have ended too.
    begun: VecDeque<(Moment, ObjectId)>,
}

impl Copies {
    /// Returns the number of times that are kept.
    #[cfg(test)]
    pub(super) fn times(&self) -> usize {
        self.begun.len()
    }

    /// Returns whether an object is being copied or moved.
    pub(super) fn contains(&self, id: ObjectId) -> bool {
        !self.of.is_empty() && self.of.contains_key(&id)
    }

    /// Returns the replicas of an object that are being written.
    pub(super) fn targets(&self, id: ObjectId) -> &[Replica] {
        self.of.get(&id).map_or(&[], |of| &of.targets)
    }

    /// Returns whether replicas of an object are being written.
    pub(super) fn writes(&self, id: ObjectId) -> bool {
        !self.of.is_empty() && !self.targets(id).is_empty()
    }

    /// Returns when the copy of an object began that has not ended.
    pub(super) fn begun(&self, id: ObjectId) -> Option<Moment> {
        self.of.get(&id).map(|of| of.begun)
    }

    fn insert(&mut self, id: ObjectId, copying: Copying) {
        self.begun.push_back((copying.begun, id));
        self.of.insert(id, copying);
    }

    fn remove(&mut self, id: ObjectId) -> Option<Copying> {
        let copying = self.of.remove(&id)?;
        if self.begun.len() > 2 * self.of.len() + STEPS {
            let of = &self.of;
            let is_open = |&(begun, id): &_| of.get(&id).is_some_and(|of| of.begun == begun);
            self.begun.retain(is_open);
        }
        Some(copying)
    }

    /// Returns the next object whose copy should have ended before `now`, and has not.
    fn overdue(&mut self, most: Duration, now: Moment) -> Option<ObjectId> {
        while let Some(&(begun, id)) = self.begun.front()
            && begun.after(most) <= now
        {
            self.begun.pop_front();
            if self.of.get(&id).is_some_and(|of| of.begun == begun) {
                return Some(id);
            }
        }
        None
    }
}

impl Index {
    /// Allocates a range below each of these names that has no replica of the object, for a client that copies it there.
    ///
    /// # Errors
    /// `ObjectNotFound`; `ObjectHasReplicationTask` if a copy is in progress; `ReplicaNotFound` without a readable replica in
    /// the source; `SegmentNotFound` for a target that is not mounted; `NoAvailableHandle` for one without space; `InvalidParams`
    /// for more than 64 replicas; `UnavailableInCurrentStatus` if too many copies are in progress; `TenantNotRegistered` and
    /// `TenantQuotaExceeded`.
    pub fn copy_start(
        &mut self,
        client: Uuid,
        key: &str,
        source: &str,
        targets: &[String],
        now: Moment,
    ) -> Result<CopyStartResponse, ErrorCode> {
        let (source, targets) = self.begin_copy(client, key, Kind::Copy, source, targets, now)?;
        Ok(CopyStartResponse { source, targets })
    }

    /// Adds the replicas that the client has written.
    ///
    /// # Errors
    /// `ObjectNotFound`; `ObjectNoReplicationTask`; `IllegalClient` if another client has begun the copy; `InvalidParams` for a
    /// move; `ReplicaIsGone` if the source, or one of the targets, exists no more.
    pub fn copy_end(&mut self, client: Uuid, key: &str, now: Moment) -> Result<(), ErrorCode> {
        let (id, copying) = self.take_copy(client, key, Kind::Copy)?;
        if !self.has_readable(id, copying.source) {
            self.free_targets(&copying.targets);
            self.drop_cleared(id);
            return Err(ErrorCode::ReplicaIsGone);
        }
        let mut end = Ok(());
        for target in copying.targets {
            match self.accept(id, target) {
                Ok(Written::New(target)) => {
                    self.objects.add_replica(id, target);
                    self.record_copy(id, &target, now);
                }
                Ok(Written::Present(_)) => {}
                Err(code) => end = Err(code),
            }
        }
        end
    }

    /// Takes what a copy has allocated away from it. Bytes that its client has sent may still arrive: the ranges rest.
    ///
    /// # Errors
    /// `ObjectNotFound`; `ObjectNoReplicationTask`; `IllegalClient` if another client has begun the copy; `InvalidParams` for a
    /// move.
    pub fn copy_revoke(&mut self, client: Uuid, key: &str, now: Moment) -> Result<(), ErrorCode> {
        let (id, copying) = self.take_copy(client, key, Kind::Copy)?;
        self.rest_targets(&copying, now.after(self.settings.put_release));
        self.drop_cleared(id);
        Ok(())
    }

    /// Like [`Self::copy_start`] with one target, to which the source is to move.
    ///
    /// # Errors
    /// Those of [`Self::copy_start`]; `InvalidParams` if source and target are the same.
    pub fn move_start(
        &mut self,
        client: Uuid,
        key: &str,
        source: &str,
        target: &str,
        now: Moment,
    ) -> Result<MoveStartResponse, ErrorCode> {
        if source == target {
            return Err(ErrorCode::InvalidParams);
        }
        let names = [target.to_owned()];
        let (source, targets) = self.begin_copy(client, key, Kind::Move, source, &names, now)?;
        let target = targets.into_iter().next();
        Ok(MoveStartResponse { source, target })
    }

    /// Replaces the source by what the client has written, or by the replica that the target had before. The source leaves its
    /// ledger after the other one is recorded.
    ///
    /// # Errors
    /// `ObjectNotFound`; `ObjectNoReplicationTask`; `IllegalClient` if another client has begun the move; `InvalidParams` for a
    /// copy; `ReplicaIsGone` if source or target exists no more. Without a target the source stays.
    pub fn move_end(&mut self, client: Uuid, key: &str, now: Moment) -> Result<(), ErrorCode> {
        let (id, copying) = self.take_copy(client, key, Kind::Move)?;
        if !self.has_readable(id, copying.source) {
            self.free_targets(&copying.targets);
            self.drop_cleared(id);
            return Err(ErrorCode::ReplicaIsGone);
        }
        let written = match copying.targets.first() {
            Some(target) => self.accept(id, *target)?,
            None => {
                let mut replicas = self.objects[id].replicas.iter();
                let is_it = |of: &&Replica| Some(of.id) == copying.present;
                Written::Present(*replicas.find(is_it).ok_or(ErrorCode::ReplicaIsGone)?)
            }
        };
        let (successor, record) = match written {
            Written::New(target) => {
                self.objects.add_replica(id, target);
                (target, self.record_copy(id, &target, now))
            }
            Written::Present(other) if other.is_readable(&self.segments) => {
                (other, self.wait_for_stream(other.segment))
            }
            Written::Present(_) => return Err(ErrorCode::ReplicaIsGone),
        };
        let successor = Successor {
            object: id,
            replica: successor.id,
        };
        let taken = self
            .objects
            .take_replicas(id, |replica| replica.id == copying.source);
        let rest = self.objects.readers_until(id, now);
        for source in taken {
            let object = &self.objects[id];
            let (size, leaves) = (object.size, range(&source, object, rest));
            if self.is_recorded(&source) {
                let leaving = self.vacate(leaves, record.as_slice(), Some(successor));
                self.evacuations.note_leaving(source.segment, leaving, rest);
            } else {
                self.release(&source, size, rest);
            }
        }
        Ok(())
    }

    /// Like [`Self::copy_revoke`] for a move.
    ///
    /// # Errors
    /// Those of [`Self::copy_revoke`], with `InvalidParams` for a copy.
    pub fn move_revoke(&mut self, client: Uuid, key: &str, now: Moment) -> Result<(), ErrorCode> {
        let (id, copying) = self.take_copy(client, key, Kind::Move)?;
        self.rest_targets(&copying, now.after(self.settings.put_release));
        self.drop_cleared(id);
        Ok(())
    }

    /// Ends the copies of clients that report no end. By now nothing of them arrives any more, as with puts.
    pub(super) fn end_overdue_copies(&mut self, now: Moment) {
        for _ in 0..STEPS {
            let Some(id) = self.copies.overdue(self.settings.put_release, now) else {
                return;
            };
            if let Some(copying) = self.end_copy(id) {
                self.free_targets(&copying.targets);
                self.drop_cleared(id);
            }
        }
    }

    /// Ends the copy of an object that is removed: its client may still write.
    pub(super) fn abandon_copy(&mut self, id: ObjectId) {
        if let Some(copying) = self.end_copy(id) {
            let rest = copying.begun.after(self.settings.put_release);
            self.rest_targets(&copying, rest);
        }
    }

    /// Begins a copy. Returns what is to be read and written.
    fn begin_copy(
        &mut self,
        client: Uuid,
        key: &str,
        kind: Kind,
        source: &str,
        targets: &[String],
        now: Moment,
    ) -> Result<(ReplicaDescriptor, Vec<ReplicaDescriptor>), ErrorCode> {
        // The stock master checks the tenant of copies only.
        if kind == Kind::Copy {
            self.writer(key)?;
        }
        if targets.len() > MOST_REPLICAS {
            return Err(ErrorCode::InvalidParams);
        }
        if self.copies.of.len() >= MOST_COPIES {
            return Err(ErrorCode::UnavailableInCurrentStatus);
        }
        if targets
            .iter()
            .any(|name| self.segments.named(name).is_empty())
        {
            return Err(ErrorCode::SegmentNotFound);
        }
        let (id, source) = self.source_of(key, source)?;
        let present = targets.first().and_then(|name| {
            let mut replicas = self.objects[id].replicas.iter();
            let is_there = |of: &&Replica| self.segments.name(of.segment) == Some(name);
            replicas.find(is_there).map(|of| of.id)
        });
        let targets = self.targets_of(id, targets)?;
        let object = &self.objects[id];
        if object.replicas.len() + targets.len() > MOST_REPLICAS {
            self.free_targets(&targets);
            return Err(ErrorCode::InvalidParams);
        }
        let (account, size) = (object.account, object.size);
        let demand = Demand {
            account,
            bytes: u128::from(size) * targets.len() as u128,
            replaced: 0,
            keep: Some(id),
        };
        if let Err(code) = self.admit(demand, now) {
            self.free_targets(&targets);
            return Err(code);
        }
        let object = &self.objects[id];
        let written = targets.iter();
        let written = written
            .map(|target| self.descriptor(object, target))
            .collect();
        let read = self.descriptor(object, &source);
        self.objects.charge(account, size, targets.len());
        let copying = Copying {
            client,
            kind,
            source: source.id,
            targets,
            present,
            size,
            account,
            begun: now,
        };
        self.copies.insert(id, copying);
        Ok((read, written))
    }

    /// Takes a copy out of those in progress.
    fn end_copy(&mut self, id: ObjectId) -> Option<Copying> {
        let copying = self.copies.remove(id)?;
        let count = copying.targets.len();
        self.objects.discharge(copying.account, copying.size, count);
        Some(copying)
    }

    /// Finds the replica that a copy is to read.
    fn source_of(&mut self, key: &str, name: &str) -> Result<(ObjectId, Replica), ErrorCode> {
        let id = self.find(key).ok_or(ErrorCode::ObjectNotFound)?;
        if self.copies.contains(id) {
            return Err(ErrorCode::ObjectHasReplicationTask);
        }
        let object = &self.objects[id];
        let is_source = |replica: &&Replica| {
            replica.is_readable(&self.segments) && self.segments.name(replica.segment) == Some(name)
        };
        // A put that has not ended may still complete replicas.
        let source = object.replicas.iter().find(is_source);
        match source.filter(|_| !object.has(Flag::InPut)) {
            Some(source) => Ok((id, *source)),
            None => Err(ErrorCode::ReplicaNotFound),
        }
    }

    /// Allocates a range below each of these names that has no replica of the object, or none at all.
    fn targets_of(
        &mut self,
        id: ObjectId,
        names: &[String],
    ) -> Result<SmallVec<[Replica; 1]>, ErrorCode> {
        let mut targets: SmallVec<[Replica; 1]> = SmallVec::new();
        for name in names {
            let object = &self.objects[id];
            let segments = &self.segments;
            let is_there = |replica: &Replica| segments.name(replica.segment) == Some(name);
            if object.replicas.iter().chain(&targets).any(is_there) {
                continue;
            }
            match self.segments.place_at(name, object.size) {
                Ok(place) => targets.push(self.new_replica(place)),
                Err(code) => {
                    self.free_targets(&targets);
                    return Err(code);
                }
            }
        }
        Ok(targets)
    }

    /// Ends the copy of an object for the client that has begun it.
    fn take_copy(
        &mut self,
        client: Uuid,
        key: &str,
        kind: Kind,
    ) -> Result<(ObjectId, Copying), ErrorCode> {
        let id = self.find(key).ok_or(ErrorCode::ObjectNotFound)?;
        let of = self.copies.of.get(&id);
        let of = of.ok_or(ErrorCode::ObjectNoReplicationTask)?;
        if of.client != client {
            return Err(ErrorCode::IllegalClient);
        }
        if of.kind != kind {
            return Err(ErrorCode::InvalidParams);
        }
        let copying = self.end_copy(id);
        Ok((id, copying.ok_or(ErrorCode::ObjectNoReplicationTask)?))
    }

    /// Removes an object whose replicas were all cleared during its copy.
    fn drop_cleared(&mut self, id: ObjectId) {
        let object = self.objects.get(id);
        if object.is_some_and(|object| object.replicas.is_empty()) {
            self.drop_object(id, Moment::default());
        }
    }

    fn has_readable(&self, id: ObjectId, replica: u64) -> bool {
        let mut replicas = self.objects[id].replicas.iter();
        replicas.any(|of| of.id == replica && of.is_readable(&self.segments))
    }

    /// Makes a written range a replica of the object. A segment that ends takes none: its objects have been counted.
    fn accept(&mut self, id: ObjectId, target: Replica) -> Result<Written, ErrorCode> {
        let segments = &mut self.segments;
        let mounted = segments.get(target.segment);
        let mounted = mounted.ok_or(ErrorCode::ReplicaIsGone)?;
        let name = mounted.segment.name.as_str();
        let is_there = |replica: &&Replica| segments.name(replica.segment) == Some(name);
        let present = self.objects[id].replicas.iter().find(is_there).copied();
        if present.is_some() || mounted.leaves() {
            segments.free(target.segment, target.block);
            return present
                .map(Written::Present)
                .ok_or(ErrorCode::ReplicaIsGone);
        }
        let place = Place {
            segment: target.segment,
            block: target.block,
            offset: target.offset,
        };
        segments.give(place, id);
        Ok(Written::New(Replica {
            complete: true,
            ..target
        }))
    }

    fn free_targets(&mut self, targets: &[Replica]) {
        for target in targets {
            self.segments.free(target.segment, target.block);
        }
    }

    fn rest_targets(&mut self, copying: &Copying, until: Moment) {
        for target in &copying.targets {
            self.retire(target.segment, target.block, copying.size, until);
        }
    }
}

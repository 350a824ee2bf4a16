//! All objects, found by key, and their groups. Whatever changes the number of replicas is here, so that each tenant is charged
//! for all that it has.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut, Index, IndexMut};

use hashbrown::HashTable;
use proto::store::Uuid;
use smallvec::SmallVec;

use super::Moment;
use super::accounts::{AccountId, Accounts};
use super::groups::Groups;
use super::object::{Flag, Object, ObjectId, Replica};
use super::scope;
use super::slots::Slots;
use super::writers::Writers;

/// The replicas of an object. Nothing outside this module changes their number.
#[derive(Debug)]
pub(crate) struct Replicas(SmallVec<[Replica; 1]>);

impl Replicas {
    /// The replicas of a new object.
    pub(crate) fn new(replicas: SmallVec<[Replica; 1]>) -> Self {
        Self(replicas)
    }

    /// Removes the replicas for which `leaves` is true, and returns them. The order of the others is that of the stock
    /// master: the last one that stays takes the place of the first one that leaves.
    fn take(&mut self, leaves: impl Fn(&Replica) -> bool) -> SmallVec<[Replica; 1]> {
        let replicas = &mut self.0;
        let (mut first, mut end) = (0, replicas.len());
        while first < end {
            if !leaves(&replicas[first]) {
                first += 1;
            } else if leaves(&replicas[end - 1]) {
                end -= 1;
            } else {
                replicas.swap(first, end - 1);
            }
        }
        replicas.drain(first..).collect()
    }
}

impl Deref for Replicas {
    type Target = [Replica];

    fn deref(&self) -> &[Replica] {
        &self.0
    }
}

impl DerefMut for Replicas {
    fn deref_mut(&mut self) -> &mut [Replica] {
        &mut self.0
    }
}

impl<'a> IntoIterator for &'a Replicas {
    type Item = &'a Replica;
    type IntoIter = std::slice::Iter<'a, Replica>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// An entry of the table: 32 bits of the key's hash, so that a lookup reads the object of another key almost
/// never, and growth of the table reads no object at all.
#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u32,
    /// Position of the object.
    at: u32,
}

/// Spreads the kept bits over those that the table uses.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Bytes of memory that an object takes beside its key, with all lists that may have it. docs/master.md has the measured ones.
pub(super) const OBJECT_BYTES: u64 = 256;

/// Why an ID is that of an object.
const PRESENT: &str = "the caller has found the object in this call";

#[derive(Debug, Default)]
pub(crate) struct Objects {
    slots: Slots,
    table: HashTable<Entry>,
    hasher: foldhash::fast::RandomState,
    key_bytes: u64,
    writers: Writers,
    /// Ends of soft pins, also of those that have ended. Most objects have none.
    soft_pins: HashMap<ObjectId, Moment, foldhash::fast::RandomState>,
    pub(crate) groups: Groups,
    /// Set and read by others, charged only here.
    pub(crate) accounts: Accounts,
}

impl Index<ObjectId> for Objects {
    type Output = Object;

    fn index(&self, id: ObjectId) -> &Object {
        self.slots.get(id).expect(PRESENT)
    }
}

impl IndexMut<ObjectId> for Objects {
    fn index_mut(&mut self, id: ObjectId) -> &mut Object {
        self.slots.get_mut(id).expect(PRESENT)
    }
}

impl Objects {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of memory that all objects take.
    pub(crate) fn bytes(&self) -> u64 {
        self.key_bytes + OBJECT_BYTES * self.slots.len() as u64
    }

    fn hash(&self, key: &str) -> u32 {
        u32::try_from(self.hasher.hash_one(key) >> 32).unwrap_or_default()
    }

    pub(crate) fn find(&self, key: &str) -> Option<ObjectId> {
        let hash = self.hash(key);
        let object = |entry: &Entry| self.slots.at(entry.at);
        let is_it = |entry: &Entry| {
            entry.hash == hash && object(entry).is_some_and(|object| *object.key == *key)
        };
        let entry = self.table.find(spread(hash), is_it)?;
        let (at, generation) = (entry.at, object(entry)?.generation);
        Some(ObjectId { at, generation })
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<&Object> {
        self.slots.get(id)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ObjectId, &Object)> {
        self.walk(0, usize::MAX).0
    }

    /// Returns the objects at `count` positions from one on, and the next position; `None` at the end. Where objects are
    /// inserted and removed between two calls, all others are visited once.
    pub(crate) fn walk(
        &self,
        from: u32,
        count: usize,
    ) -> (impl Iterator<Item = (ObjectId, &Object)>, Option<u32>) {
        self.slots.walk(from, count)
    }

    /// Returns the position after the last object.
    pub(crate) fn end(&self) -> u32 {
        self.slots.end()
    }

    /// Makes room for this many more objects: otherwise the insertion of one of them would move all others.
    pub(crate) fn reserve(&mut self, objects: usize) {
        self.slots.reserve(objects);
        self.table.reserve(objects, |entry| spread(entry.hash));
    }

    /// Inserts an object whose key is not in the index, and which a client has written.
    pub(crate) fn insert(
        &mut self,
        mut object: Object,
        client: Uuid,
        group: Option<&str>,
    ) -> ObjectId {
        let hash = self.hash(&object.key);
        let (tenant, _) = scope::split(&object.key);
        object.account = self.accounts.open(tenant);
        self.accounts.add_object(object.account);
        object.writer = self.writers.add_object(client);
        self.key_bytes += object.key.len() as u64;
        self.accounts
            .charge(object.account, object.size, object.replicas.len());
        let id = self.slots.insert(object);
        self.table
            .insert_unique(spread(hash), Entry { hash, at: id.at }, |entry| {
                spread(entry.hash)
            });
        if let Some(group) = group {
            self.groups.insert(id, group);
            self[id].set(Flag::HasGroup, true);
        }
        id
    }

    /// Removes an object, which must be in the index.
    pub(crate) fn remove(&mut self, id: ObjectId) -> Option<Object> {
        let object = self.slots.remove(id)?;
        self.accounts
            .release(object.account, object.size, object.replicas.len());
        self.accounts.remove_object(object.account);
        self.writers.remove_object(object.writer);
        self.key_bytes -= object.key.len() as u64;
        if object.has(Flag::HasSoftPin) {
            self.soft_pins.remove(&id);
        }
        let hash = self.hash(&object.key);
        if let Ok(entry) = self
            .table
            .find_entry(spread(hash), |entry: &Entry| entry.at == id.at)
        {
            entry.remove();
        }
        if object.has(Flag::HasGroup) {
            self.groups.remove(id);
        }
        Some(object)
    }

    /// Removes the replicas of an object for which `leaves` is true, and returns them.
    pub(crate) fn take_replicas(
        &mut self,
        id: ObjectId,
        leaves: impl Fn(&Replica) -> bool,
    ) -> SmallVec<[Replica; 1]> {
        let object = self.slots.get_mut(id).expect(PRESENT);
        let taken = object.replicas.take(leaves);
        self.accounts
            .release(object.account, object.size, taken.len());
        taken
    }

    pub(crate) fn add_replica(&mut self, id: ObjectId, replica: Replica) {
        let object = self.slots.get_mut(id).expect(PRESENT);
        object.replicas.0.push(replica);
        self.accounts.charge(object.account, object.size, 1);
    }

    /// Charges an account for replicas of this size that a client is about to write.
    pub(crate) fn charge(&mut self, account: AccountId, size: u64, replicas: usize) {
        self.accounts.charge(account, size, replicas);
    }

    /// Ends a charge: what was written is charged with its object.
    pub(crate) fn discharge(&mut self, account: AccountId, size: u64, replicas: usize) {
        self.accounts.release(account, size, replicas);
    }

    /// Extends the lease of an object and of all others of its group.
    pub(crate) fn grant(&mut self, id: ObjectId, until: Moment) {
        let object = &mut self[id];
        if object.has(Flag::HasGroup) {
            self.groups.grant(id, until);
        } else {
            object.grant(until);
        }
    }

    /// Returns who has written an object.
    pub(crate) fn client(&self, id: ObjectId) -> Uuid {
        self.writers.client(self[id].writer)
    }

    /// Returns the time before which the object is soft-pinned.
    pub(crate) fn soft_pin(&self, id: ObjectId) -> Moment {
        let pin = self[id]
            .has(Flag::HasSoftPin)
            .then(|| self.soft_pins.get(&id));
        pin.flatten().copied().unwrap_or_default()
    }

    pub(crate) fn is_soft_pinned(&self, id: ObjectId, now: Moment) -> bool {
        now < self.soft_pin(id)
    }

    /// The default ends the soft pin.
    pub(crate) fn set_soft_pin(&mut self, id: ObjectId, until: Moment) {
        let pins = until != Moment::default();
        if pins {
            self.soft_pins.insert(id, until);
        } else if self[id].has(Flag::HasSoftPin) {
            self.soft_pins.remove(&id);
        }
        self[id].set(Flag::HasSoftPin, pins);
    }

    /// Returns the time before which the object is neither evicted nor removed.
    pub(crate) fn lease(&self, id: ObjectId) -> Moment {
        let object = &self[id];
        if object.has(Flag::HasGroup) {
            object.own_lease.max(self.groups.lease(id))
        } else {
            object.own_lease
        }
    }

    /// Returns until when the ranges of an object that goes rest for its readers; the default if none may read them.
    pub(crate) fn readers_until(&self, id: ObjectId, now: Moment) -> Moment {
        let lease = self.lease(id);
        if now < lease {
            lease
        } else {
            Moment::default()
        }
    }

    pub(crate) fn is_leased(&self, id: ObjectId, now: Moment) -> bool {
        now < self.lease(id)
    }

    pub(crate) fn group(&self, id: ObjectId) -> Option<&str> {
        self.groups.name(id)
    }
}

//! The store's index: segments, clients, objects. It has no socket, clock or thread; time is an argument.
//! Results, error codes and leases are those of the stock master 0.3.13; docs/master.md lists the differences.

mod accounts;
mod allocator;
mod clients;
mod copies;
mod counters;
mod evacuation;
mod eviction;
mod groups;
mod ledger;
mod lookup;
mod moment;
mod mount;
mod object;
mod objects;
mod patterns;
mod put;
mod queue;
mod quota;
mod random;
mod remove;
mod retired;
mod scope;
mod search;
mod segments;
mod settings;
mod slots;
mod tasks;
mod upkeep;
mod writers;

use std::collections::{HashMap, HashSet, VecDeque};

use proto::store::release_0_3_13 as wire;

pub use accounts::{TenantDetail, Tenants};
pub use counters::{Cause, Counters, Idle, Shortage, Totals};
pub use evacuation::EvacuationTotals;
pub use ledger::{
    Arranged, Arrangement, Due, LedgerDetail, LedgerState, LedgerTotals, Signals, Wait,
};
pub use lookup::{Found, View};
pub use moment::Moment;
pub use mount::SegmentDetail;
pub use patterns::{Listing, Removal};
pub use scope::{DEFAULT_TENANT, Scope, is_tenant_name};
pub use search::{Match, Search, SearchedSegment};
pub use settings::{Commit, Placement, Settings};

use allocator::Block;
use clients::Clients;
use copies::Copies;
use evacuation::Evacuations;
use eviction::Order;
use ledger::{Age, Bulks, Epochs, Installs, Leaving, Members, Notes, Range, Removed};
use object::{Object, ObjectId, Replica};
use objects::Objects;
use put::Begun;
use retired::Retired;
use segments::{Place, SegmentId, Segments};
use tasks::Tasks;
use upkeep::Unmounted;

/// The index. All calls take the present time, which must not go back.
#[derive(Debug)]
pub struct Index {
    settings: Settings,
    objects: Objects,
    segments: Segments,
    clients: Clients,
    order: Order,
    retired: Retired,
    /// Puts in progress.
    begun: HashMap<ObjectId, Begun, foldhash::fast::RandomState>,
    /// Puts in the order of their start, to discard unfinished ones.
    puts: VecDeque<(Moment, ObjectId)>,
    /// Puts that did not end in time.
    overdue: VecDeque<ObjectId>,
    /// Unmounted segments whose objects are still to be removed.
    unmounted: VecDeque<Unmounted>,
    next_replica: u64,
    copies: Copies,
    tasks: Tasks,
    /// Of this run, and the number of its last object.
    epochs: Epochs,
    last_number: u64,
    leaving: Leaving,
    /// Ranges of the value that a put in progress replaces. They stay in the ledger until the put ends.
    superseded: HashMap<ObjectId, Vec<Range>>,
    removed: Removed,
    /// The first put of this run whose former values got no tombstone for owners that are away.
    unnoted: Option<Age>,
    bulks: Bulks,
    installs: Installs,
    /// Ledgers that were installed, and segments with one that were unmounted.
    turnover: u64,
    members: Members,
    notes: Notes,
    /// Owners that kept pace at the last look.
    paces: usize,
    /// Segments that were unmounted with unacknowledged changes because their client was silent.
    silent: HashSet<SegmentId>,
    evacuations: Evacuations,
    signals: Signals,
    /// When clients and segments are looked at again.
    next_look: Moment,
    counters: Counters,
}

impl Index {
    /// `seed` decides where objects are placed, and the IDs of tasks.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            objects: Objects::default(),
            segments: Segments::new(seed),
            clients: Clients::default(),
            order: Order::default(),
            retired: Retired::default(),
            begun: HashMap::default(),
            puts: VecDeque::new(),
            overdue: VecDeque::new(),
            unmounted: VecDeque::new(),
            next_replica: 1,
            copies: Copies::default(),
            tasks: Tasks::new(seed),
            epochs: Epochs::default(),
            last_number: 0,
            leaving: Leaving::default(),
            superseded: HashMap::new(),
            removed: Removed::default(),
            unnoted: None,
            bulks: Bulks::default(),
            installs: Installs::default(),
            turnover: 0,
            members: Members::default(),
            notes: Notes::default(),
            paces: 0,
            silent: HashSet::new(),
            evacuations: Evacuations::default(),
            signals: Signals::default(),
            next_look: Moment::default(),
            counters: Counters::default(),
        }
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    #[must_use]
    pub fn totals(&self) -> Totals {
        let bytes = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        Totals {
            keys: self.objects.len() as u64,
            index_bytes: self.objects.bytes(),
            capacity: bytes(self.segments.capacity()),
            used: bytes(self.segments.used()),
            resting: bytes(self.retired.bytes()),
            clients: self.clients.confirmed() as u64,
        }
    }

    /// Returns the object with this key. Replicas in segments that were unmounted are removed on this occasion, and with
    /// the last one the object.
    fn find(&mut self, key: &str) -> Option<ObjectId> {
        let id = self.objects.find(key)?;
        self.prune(id).then_some(id)
    }

    /// Removes replicas in segments that were unmounted. Returns whether the object still exists.
    fn prune(&mut self, id: ObjectId) -> bool {
        let segments = &self.segments;
        let is_gone = |replica: &Replica| !segments.is_mounted(replica.segment);
        let object = &self.objects[id];
        let stays = if object.replicas.is_empty() {
            // All were cleared while others are being written.
            !self.copies.targets(id).iter().all(is_gone)
        } else {
            !object.replicas.iter().any(is_gone)
        };
        if stays {
            return true;
        }
        self.objects.take_replicas(id, is_gone);
        let exists = !self.objects[id].replicas.is_empty();
        if !exists {
            self.drop_object(id, Moment::default());
        }
        exists
    }

    /// Removes an object and remembers that. Its ranges rest until `rest`, or are free at once if that has passed (`rest`
    /// not after the default).
    fn erase(&mut self, id: ObjectId, rest: Moment) {
        if let Some(object) = self.objects.get(id)
            && object.has_complete_replica()
        {
            // Whatever was begun before the removal, also what its owner has not brought yet.
            let latest = self.age(self.latest());
            if self.removed.insert(&object.key, latest) {
                self.leaving.mark();
            }
        }
        self.drop_object(id, rest);
    }

    /// Removes an object. Another ledger may still bring it back.
    fn drop_object(&mut self, id: ObjectId, rest: Moment) {
        self.drop_with(id, rest, Self::leave);
    }

    fn drop_with(&mut self, id: ObjectId, rest: Moment, leave: impl Fn(&mut Self, Range)) {
        // While the account of its tenant exists.
        self.abandon_copy(id);
        if let Some(object) = self.objects.remove(id) {
            self.begun.remove(&id);
            for replica in &object.replicas {
                if self.is_recorded(replica) {
                    leave(self, range(replica, &object, rest));
                } else {
                    self.release(replica, object.size, rest);
                }
            }
            for range in self.superseded.remove(&id).into_iter().flatten() {
                leave(self, range);
            }
        }
    }

    /// Returns a replica in a new range, which is not complete.
    fn new_replica(&mut self, place: Place) -> Replica {
        let id = self.next_replica;
        self.next_replica += 1;
        Replica {
            id,
            offset: place.offset,
            segment: place.segment,
            block: place.block,
            complete: false,
        }
    }

    /// Gives up a range that is in no ledger: at once, or after `rest` if that is not the default.
    fn release(&mut self, replica: &Replica, size: u64, rest: Moment) {
        if rest == Moment::default() {
            self.segments.free(replica.segment, replica.block);
        } else {
            self.retire(replica.segment, replica.block, size, rest);
        }
    }

    /// Lets a range rest before it is used again.
    fn retire(&mut self, segment: SegmentId, block: Block, size: u64, until: Moment) {
        self.segments.rest(segment, size);
        self.retired.push(segment, block, size, until);
    }

    fn descriptor(&self, object: &Object, replica: &Replica) -> wire::ReplicaDescriptor {
        let view = View::of(&self.segments, object, replica);
        wire::ReplicaDescriptor {
            id: view.id,
            location: wire::Location::Memory(wire::MemoryReplica {
                size: view.size,
                address: view.address,
                protocol: View::PROTOCOL.into(),
                endpoint: view.endpoint.into(),
            }),
            status: view.status,
        }
    }

    fn descriptors(&self, id: ObjectId) -> Vec<wire::ReplicaDescriptor> {
        let object = &self.objects[id];
        let replicas = object.replicas.iter();
        replicas
            .map(|replica| self.descriptor(object, replica))
            .collect()
    }
}

fn range(replica: &Replica, object: &Object, rest: Moment) -> Range {
    Range {
        key: object.key.clone(),
        segment: replica.segment,
        block: replica.block,
        offset: replica.offset,
        size: object.size,
        version: object.version,
        rest,
    }
}

#[cfg(test)]
mod tests;

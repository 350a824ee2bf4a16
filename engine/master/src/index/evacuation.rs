//! Moves the objects of an owner that ends to segments of other owners: those used last first, a limited number at a time.
//! The owner copies the bytes. docs/decisions/evacuation.md has the rules.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use proto::store::ledger::{Ended, Evacuation as Answer, Relocation, Version};
use proto::store::{ErrorCode, Uuid};

use super::ledger::{LeaveId, Stream, Successor};
use super::object::{Flag, Object, ObjectId, Replica};
use super::objects::Objects;
use super::segments::{Place, SegmentId, Targets};
use super::{Cause, Index, Moment, range};

/// Copies of one owner at a time, and their bytes if they are more than one.
const MOST_MOVES: usize = 64;
const MOST_BYTES: u64 = 64 << 20;
/// Ranges or objects that one call looks at. One costs about a microsecond.
const STEPS: usize = 1024;
/// Copies of one object that may fail, and the time before the next one for each that has.
const MOST_TRIES: u8 = 8;
const RETRY: Duration = Duration::from_millis(500);
/// Time between two evictions for want of space, and between two scans for puts that have ended.
const AGAIN: Duration = Duration::from_millis(100);
/// An unfinished put is waited for this long after its start.
const PUT_PATIENCE: Duration = Duration::from_secs(5);
/// The other owners mount their segments in this time after the first one of a run.
const MOUNT_PATIENCE: Duration = Duration::from_secs(10);
/// In this time after the end of an owner another one in its place mounts a segment.
const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);

/// The owners that end.
#[derive(Debug, Default)]
pub(super) struct Evacuations {
    of: HashMap<Uuid, Evacuation>,
    last: u64,
    /// When the first segment with a ledger was mounted.
    first_mount: Option<Moment>,
    /// Until when a segment in place of that of an owner that has ended is waited for.
    successor: Option<Moment>,
}

impl Evacuations {
    /// Notes that a segment with a ledger is mounted now, which is new or another one of the same memory.
    pub(super) fn note_mount(&mut self, is_new: bool, now: Moment) {
        self.first_mount.get_or_insert(now);
        self.successor = self.successor.filter(|_| !is_new);
    }

    /// Whether an owner that ends, and to whose objects no segment is open, waits for another one. Of several that end together the
    /// one with the fewest bytes does not: the pod in its place is the target of the others.
    fn awaits_mount(&self, evacuation: &Evacuation, now: Moment) -> bool {
        let first = self.first_mount.unwrap_or(now).after(MOUNT_PATIENCE);
        let mut others = self.of.values();
        now < first
            || self.successor.is_some_and(|until| now < until)
            || others.any(|other| !other.counted || other.weight() < evacuation.weight())
    }

    /// Notes a range that a client has moved away from a segment: its owner ends after it has left the ledger and its readers are
    /// done.
    pub(super) fn note_leaving(&mut self, segment: SegmentId, leaving: LeaveId, readers: Moment) {
        let mut ending = self.of.values_mut();
        if let Some(of) = ending.find(|of| of.segments.contains(&segment)) {
            of.leaving.push(leaving);
            of.readers_until = of.readers_until.max(readers);
        }
    }
}

/// The owners that end now, and what is still in their segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvacuationTotals {
    pub owners: u64,
    /// Those of them whose objects have all been counted, which takes several calls.
    pub counted_owners: u64,
    /// Objects that are still to be copied, their bytes, and objects that no segment takes.
    pub left_objects: u64,
    pub left_bytes: u64,
    pub unmovable_objects: u64,
    /// The part of the bytes for which the segments that take moved objects have no free space.
    pub excess_bytes: u64,
}

/// Objects with pins first, then those that were used last.
type Rank = (bool, bool, Moment);

#[derive(Debug)]
struct Evacuation {
    attempt: Uuid,
    segments: Vec<SegmentId>,
    called: Moment,
    /// The number of a segment and a position there, until all objects are in the queue.
    scan: Option<(usize, usize)>,
    scanned: Moment,
    /// The scan has met unfinished puts.
    unfinished: bool,
    queue: BinaryHeap<(Rank, ObjectId, u64)>,
    /// Objects whose copy has failed, by the time of the next one.
    failed: BinaryHeap<Reverse<(Moment, ObjectId, u64)>>,
    /// Bytes of the objects in `queue` and `failed`, which have them as their last part.
    waiting_bytes: u64,
    /// All objects were in the queue.
    counted: bool,
    tries: HashMap<ObjectId, u8>,
    moves: BTreeMap<Version, Move>,
    bytes: u64,
    /// Objects that no segment takes, or that could not be copied.
    unmovable: u64,
    /// Ranges of objects that have moved, until they have left the ledger.
    leaving: Vec<LeaveId>,
    /// A reader may use a former range before this time.
    readers_until: Moment,
    evicted: Moment,
}

#[derive(Debug, Clone, Copy)]
struct Move {
    object: ObjectId,
    /// The ID of the replica that leaves.
    replica: u64,
    source: u64,
    place: Place,
    size: u64,
}

/// What happens to the first object of the queue.
enum Next {
    Move(Replica, Place),
    /// Nothing has to be done for it.
    Skip,
    Unmovable,
    /// Others wait with it.
    Wait,
}

impl Evacuation {
    fn new(attempt: Uuid, segments: Vec<SegmentId>) -> Self {
        Self {
            attempt,
            segments,
            called: Moment::default(),
            scan: Some((0, 0)),
            scanned: Moment::default(),
            unfinished: false,
            queue: BinaryHeap::new(),
            failed: BinaryHeap::new(),
            waiting_bytes: 0,
            counted: false,
            tries: HashMap::new(),
            moves: BTreeMap::new(),
            bytes: 0,
            unmovable: 0,
            leaving: Vec::new(),
            readers_until: Moment::default(),
            evicted: Moment::default(),
        }
    }

    /// Bytes that are left; the attempt makes it unique.
    fn weight(&self) -> (u64, Uuid) {
        (self.bytes.saturating_add(self.waiting_bytes), self.attempt)
    }

    fn left(&self) -> u64 {
        (self.queue.len() + self.failed.len() + self.moves.len()) as u64
    }

    /// Returns the replica that must leave.
    fn replica(&self, object: &Object) -> Option<Replica> {
        let mut replicas = object.replicas.iter();
        let leaves =
            |replica: &&Replica| replica.complete && self.segments.contains(&replica.segment);
        replicas.find(leaves).copied()
    }

    fn push(&mut self, id: ObjectId, objects: &Objects, now: Moment) {
        let object = &objects[id];
        let lease = objects.lease(id);
        let rank = (
            object.has(Flag::HardPin),
            objects.is_soft_pinned(id, now),
            lease,
        );
        self.waiting_bytes = self.waiting_bytes.saturating_add(object.size);
        self.queue.push((rank, id, object.size));
    }

    /// Removes the first object of the queue.
    fn pop(&mut self) {
        if let Some((_, _, size)) = self.queue.pop() {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(size);
        }
    }
}

impl Index {
    /// Returns what the owners that end still have, and how much of it has no free space elsewhere.
    #[must_use]
    pub fn evacuation_totals(&self) -> EvacuationTotals {
        let mut totals = EvacuationTotals::default();
        if self.evacuations.of.is_empty() {
            return totals;
        }
        let mut waiting = 0_u64;
        for evacuation in self.evacuations.of.values() {
            totals.owners += 1;
            totals.counted_owners += u64::from(evacuation.counted);
            totals.left_objects += evacuation.left();
            totals.unmovable_objects += evacuation.unmovable;
            // The copies in progress have their space.
            waiting = waiting.saturating_add(evacuation.waiting_bytes);
            totals.left_bytes = totals.left_bytes.saturating_add(evacuation.bytes);
        }
        totals.left_bytes = totals.left_bytes.saturating_add(waiting);
        let segments = self.segments.iter().map(|(_, mounted)| mounted);
        let targets = segments.filter(|mounted| mounted.takes_moved_objects());
        let free = targets.fold(0_u64, |free, mounted| {
            let space = &mounted.space;
            free.saturating_add(space.size().saturating_sub(space.used()))
        });
        totals.excess_bytes = waiting.saturating_sub(free);
        totals
    }

    /// Continues the evacuation of an owner, or begins it: nothing new is placed in its segments. Takes the results of
    /// copies; results of unknown copies have no effect. Returns the copies that the owner is to make.
    ///
    /// # Errors
    /// `SegmentNotFound` if the client has no segment with a ledger; `UnavailableInCurrentStatus` while a ledger is not
    /// loaded.
    pub fn evacuate(
        &mut self,
        client: Uuid,
        attempt: Uuid,
        ended: &Ended,
        now: Moment,
    ) -> Result<Answer, ErrorCode> {
        let segments = self.segments_of(client)?;
        let known = self.evacuations.of.remove(&client);
        let mut evacuation = match known {
            Some(known) if known.attempt == attempt && known.segments == segments => known,
            other => {
                other.into_iter().for_each(|other| self.abandon(&other));
                Evacuation::new(attempt, segments)
            }
        };
        evacuation.called = now;
        for &id in &evacuation.segments {
            if let Some(mounted) = self.segments.get_mut(id) {
                mounted.ends = true;
            }
        }
        self.settle(&mut evacuation, ended, now);
        let mut steps = STEPS;
        self.scan(&mut evacuation, &mut steps, now);
        if evacuation.scan.is_none() {
            evacuation.counted = true;
            self.assign(&mut evacuation, &mut steps, now);
        }
        let leaving = &self.leaving;
        evacuation.leaving.retain(|id| leaving.contains(*id));
        let idle = evacuation.scan.is_none() && evacuation.left() == 0;
        let finished = idle
            && !evacuation.unfinished
            && evacuation.leaving.is_empty()
            && evacuation.readers_until <= now;
        if idle && evacuation.unfinished && evacuation.scanned.after(AGAIN) <= now {
            evacuation.scan = Some((0, 0));
        }
        let relocations = evacuation.moves.iter();
        let answer = Answer {
            relocations: relocations
                .filter_map(|(&id, of)| self.relocation(id, of))
                .collect(),
            left: evacuation.left(),
            unmovable: evacuation.unmovable,
            more: steps == 0,
            finished,
        };
        self.evacuations.of.insert(client, evacuation);
        Ok(answer)
    }

    fn segments_of(&self, client: Uuid) -> Result<Vec<SegmentId>, ErrorCode> {
        let mut segments = Vec::new();
        for (id, mounted) in self.segments.iter() {
            match &mounted.stream {
                Some(stream) if mounted.client == client => {
                    if !Stream::is_loaded(stream) {
                        return Err(ErrorCode::UnavailableInCurrentStatus);
                    }
                    segments.push(id);
                }
                _ => {}
            }
        }
        if segments.is_empty() {
            return Err(ErrorCode::SegmentNotFound);
        }
        Ok(segments)
    }

    fn relocation(&self, id: Version, of: &Move) -> Option<Relocation> {
        let target = self.segments.get(of.place.segment)?;
        Some(Relocation {
            id,
            source: of.source,
            endpoint: target.endpoint.as_ref().into(),
            target: target.segment.base + of.place.offset,
            length: of.size,
        })
    }

    /// Puts the objects of the segments into the queue.
    fn scan(&mut self, evacuation: &mut Evacuation, steps: &mut usize, now: Moment) {
        while let Some((number, at)) = evacuation.scan {
            if *steps == 0 {
                return;
            }
            if (number, at) == (0, 0) {
                (evacuation.scanned, evacuation.unfinished) = (now, false);
            }
            let segment = evacuation.segments.get(number);
            let Some(mounted) = segment.and_then(|id| self.segments.get(*id)) else {
                evacuation.scan = None;
                return;
            };
            let (owners, next) = mounted.space.owners(at, *steps);
            *steps = next.map_or(*steps - 1, |_| 0);
            evacuation.scan = Some(next.map_or((number + 1, 0), |next| (number, next)));
            for id in owners.collect::<Vec<_>>() {
                let Some(object) = self.objects.get(id) else {
                    continue;
                };
                if object.has(Flag::InPut) {
                    evacuation.unfinished |= now < self.begun(id).after(PUT_PATIENCE);
                } else if evacuation
                    .tries
                    .get(&id)
                    .is_none_or(|tries| *tries < MOST_TRIES)
                {
                    evacuation.push(id, &self.objects, now);
                }
            }
        }
    }

    /// Chooses the next copies.
    fn assign(&mut self, evacuation: &mut Evacuation, steps: &mut usize, now: Moment) {
        while let Some(&Reverse((when, id, size))) = evacuation.failed.peek() {
            if now < when {
                break;
            }
            evacuation.failed.pop();
            evacuation.waiting_bytes = evacuation.waiting_bytes.saturating_sub(size);
            if self.objects.get(id).is_some() {
                evacuation.push(id, &self.objects, now);
            }
        }
        while evacuation.moves.len() < MOST_MOVES
            && *steps > 0
            && let Some(&(_, id, _)) = evacuation.queue.peek()
        {
            *steps -= 1;
            match self.next(evacuation, id, now) {
                Next::Wait => return,
                Next::Skip => {
                    evacuation.pop();
                }
                Next::Unmovable => {
                    evacuation.pop();
                    evacuation.tries.insert(id, MOST_TRIES);
                    evacuation.unmovable += 1;
                }
                Next::Move(replica, place) => {
                    evacuation.pop();
                    self.begin(evacuation, id, &replica, place);
                }
            }
        }
    }

    fn next(&mut self, evacuation: &mut Evacuation, id: ObjectId, now: Moment) -> Next {
        let Some(object) = self.objects.get(id) else {
            return Next::Skip;
        };
        if object.has(Flag::InPut) {
            evacuation.unfinished = true;
            return Next::Skip;
        }
        let Some(replica) = evacuation.replica(object) else {
            return Next::Skip;
        };
        let size = object.size;
        if !evacuation.moves.is_empty() && evacuation.bytes.saturating_add(size) > MOST_BYTES {
            return Next::Wait;
        }
        // Also where a client copies it to.
        let replicas = object.replicas.iter().chain(self.copies.targets(id));
        let replicas: Vec<_> = replicas.map(|replica| replica.segment).collect();
        if let Some(place) = self.segments.place_elsewhere(size, &replicas) {
            return Next::Move(replica, place);
        }
        let object = &self.objects[id];
        let stays = |other: &Replica| {
            let mounted = self.segments.get(other.segment);
            other.complete && mounted.is_some_and(|mounted| !mounted.ends)
        };
        match self.segments.targets(size, &replicas) {
            // The others keep the key.
            _ if object.replicas.iter().any(stays) => Next::Skip,
            Targets::Open => {
                // What was used longest ago makes room, in the ordinary order.
                if evacuation.evicted.after(AGAIN) <= now && !self.order.is_active() {
                    evacuation.evicted = now;
                    self.order.request(Cause::Drain);
                }
                Next::Wait
            }
            Targets::Closed => Next::Wait,
            Targets::None if self.evacuations.awaits_mount(evacuation, now) => Next::Wait,
            Targets::None => Next::Unmovable,
        }
    }

    fn begin(&mut self, evacuation: &mut Evacuation, id: ObjectId, from: &Replica, place: Place) {
        self.evacuations.last += 1;
        let number = Version {
            epoch: self.epochs.current(),
            number: self.evacuations.last,
        };
        let mounted = self.segments.get(from.segment);
        let base = mounted.map_or(0, |mounted| mounted.segment.base);
        let size = self.objects[id].size;
        evacuation.bytes = evacuation.bytes.saturating_add(size);
        let of = Move {
            object: id,
            replica: from.id,
            source: base + from.offset,
            place,
            size,
        };
        evacuation.moves.insert(number, of);
    }

    /// Takes the results of copies.
    fn settle(&mut self, evacuation: &mut Evacuation, ended: &Ended, now: Moment) {
        for id in &ended.written {
            if let Some(of) = take(evacuation, *id) {
                self.complete(evacuation, &of, now);
            }
        }
        for id in &ended.failed {
            if let Some(of) = take(evacuation, *id) {
                self.segments.free(of.place.segment, of.place.block);
                self.fail(evacuation, &of, now);
            }
        }
        for id in &ended.unknown {
            if let Some(of) = take(evacuation, *id) {
                let rest = now.after(self.settings.put_release);
                self.rest(&of, rest);
                self.fail(evacuation, &of, now);
            }
        }
    }

    /// The target has the bytes: it replaces the former range. What was removed or replaced meanwhile stays so.
    fn complete(&mut self, evacuation: &mut Evacuation, of: &Move, now: Moment) {
        let Place { segment, block, .. } = of.place;
        let at = self.objects.get(of.object).and_then(|object| {
            let mut replicas = object.replicas.iter();
            replicas.position(|replica| replica.id == of.replica)
        });
        let Some(at) = at else {
            return self.segments.free(segment, block);
        };
        let Some(target) = self.segments.get(segment) else {
            return self.fail(evacuation, of, now);
        };
        if target.ends {
            // What its owner has to move may have been counted.
            self.segments.free(segment, block);
            return self.fail(evacuation, of, now);
        }
        let name = self.segments.name(segment);
        let mut others = self.objects[of.object].replicas.iter().enumerate();
        if others.any(|(other, of)| other != at && self.segments.name(of.segment) == name) {
            // A client has copied it there meanwhile.
            self.segments.free(segment, block);
            return self.fail(evacuation, of, now);
        }
        let replica = Replica {
            complete: true,
            ..self.new_replica(of.place)
        };
        self.segments.give(of.place, of.object);
        let rest = self.objects.readers_until(of.object, now);
        let object = &mut self.objects[of.object];
        let former = std::mem::replace(&mut object.replicas[at], replica);
        evacuation.readers_until = evacuation.readers_until.max(rest);
        let leaves = range(&former, object, rest);
        let record = self.send_record(of.object, &replica, now);
        let successor = Successor {
            object: of.object,
            replica: replica.id,
        };
        let leaving = self.vacate(leaves, record.as_slice(), Some(successor));
        evacuation.leaving.push(leaving);
        self.counters.moved_replicas += 1;
        self.counters.moved_bytes = self.counters.moved_bytes.saturating_add(of.size);
        let object = &self.objects[of.object];
        if evacuation.replica(object).is_some() {
            evacuation.push(of.object, &self.objects, now);
        }
    }

    /// Gives objects their former ranges back whose new segment is unmounted before its owner has their records.
    pub(super) fn take_back(&mut self, unmounted: SegmentId) {
        for (id, of) in self.leaving.take_stranded(unmounted) {
            let Some(former) = self.leaving.get(id) else {
                continue;
            };
            let object = self.objects.get(of.object);
            let Some(object) = object.filter(|object| object.version == former.version) else {
                self.take_back_replaced(id);
                continue;
            };
            let mut replicas = object.replicas.iter();
            let mut at = replicas.position(|replica| replica.id == of.replica);
            if at.is_none() {
                // It has moved on, or was removed there. Now its other replica must be recorded.
                let is_there = |replica: &&Replica| self.segments.is_mounted(replica.segment);
                let other = object.replicas.iter().find(is_there).copied();
                if let Some(other) = other {
                    self.vacate_after(id, of, &other);
                    continue;
                }
                at = (!object.replicas.is_empty()).then_some(0);
            }
            let Some(at) = at else {
                self.send_leave(id);
                continue;
            };
            let place = Place {
                segment: former.segment,
                block: former.block,
                offset: former.offset,
            };
            let replica = Replica {
                complete: true,
                ..self.new_replica(place)
            };
            self.objects[of.object].replicas[at] = replica;
            self.leaving.remove(id);
            self.move_again(of.object, &replica);
        }
    }

    /// A former range leaves after all changes of the segment of another replica.
    fn vacate_after(&mut self, id: LeaveId, of: Successor, other: &Replica) {
        let Some((_, stream)) = self.segments.stream_of(other.segment) else {
            return self.send_leave(id);
        };
        let records = [(other.segment, stream.last())].into_iter().collect();
        let replica = other.id;
        self.leaving
            .defer(id, records, Some(Successor { replica, ..of }));
    }

    /// The same for a range whose object was replaced or removed: it leaves, but while a put replaces it only when that ends.
    fn take_back_replaced(&mut self, id: LeaveId) {
        let put = self.leaving.get(id).and_then(|range| {
            let put = self.objects.find(&range.key)?;
            let is_dead = self.removed.contains(&range.key, self.age(range.version));
            (self.objects[put].has(Flag::InPut) && !is_dead).then_some(put)
        });
        match put {
            Some(put) => {
                let range = self.leaving.remove(id);
                self.superseded.entry(put).or_default().extend(range);
            }
            None => self.send_leave(id),
        }
    }

    /// The owner of a replica that came back moves it again if it still ends.
    fn move_again(&mut self, id: ObjectId, replica: &Replica) {
        let size = self.objects[id].size;
        let mut ending = self.evacuations.of.values_mut();
        if let Some(of) = ending.find(|of| of.segments.contains(&replica.segment)) {
            of.failed.push(Reverse((of.called, id, size)));
            of.waiting_bytes = of.waiting_bytes.saturating_add(size);
        }
    }

    fn fail(&mut self, evacuation: &mut Evacuation, of: &Move, now: Moment) {
        self.counters.failed_moves += 1;
        let tries = evacuation.tries.entry(of.object).or_default();
        *tries += 1;
        if *tries < MOST_TRIES {
            let next = now.after(RETRY * u32::from(*tries));
            evacuation.failed.push(Reverse((next, of.object, of.size)));
            evacuation.waiting_bytes = evacuation.waiting_bytes.saturating_add(of.size);
        } else {
            evacuation.unmovable += 1;
        }
    }

    /// The target of a copy with an unknown end rests.
    fn rest(&mut self, of: &Move, until: Moment) {
        self.retire(of.place.segment, of.place.block, of.size, until);
    }

    /// Nobody reports the ends of the copies any more.
    fn abandon(&mut self, evacuation: &Evacuation) {
        let rest = evacuation.called.after(self.settings.put_release);
        for of in evacuation.moves.values() {
            self.rest(of, rest);
        }
    }

    /// Stops an evacuation that begins again with other segments.
    pub(super) fn stop_evacuation(&mut self, client: Uuid) {
        if let Some(evacuation) = self.evacuations.of.remove(&client) {
            self.abandon(&evacuation);
        }
    }

    /// Ends the evacuation of an owner one of whose segments was unmounted.
    pub(super) fn end_evacuation(&mut self, client: Uuid, segment: SegmentId) {
        let of = self.evacuations.of.get(&client);
        if of.is_some_and(|of| of.segments.contains(&segment))
            && let Some(evacuation) = self.evacuations.of.remove(&client)
        {
            self.counters.unmoved_objects += evacuation.left() + evacuation.unmovable;
            self.evacuations.successor = Some(evacuation.called.after(SUCCESSOR_PATIENCE));
            self.abandon(&evacuation);
        }
    }
}

/// Removes a copy that has ended.
fn take(evacuation: &mut Evacuation, id: Version) -> Option<Move> {
    let of = evacuation.moves.remove(&id)?;
    evacuation.bytes = evacuation.bytes.saturating_sub(of.size);
    Some(of)
}

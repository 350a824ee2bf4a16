//! Loads the ledger of a segment: its records become objects, unless another value of their key is newer or was removed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proto::store::ledger::{Entry, Stored, Version};
use proto::store::{ErrorCode, Uuid};
use smallvec::smallvec;

use super::Then;
use super::bulk::Missed;
use super::leaving::Range;
use super::removed::{Source, Verdict};
use crate::index::allocator::{Allocator, Block};
use crate::index::object::{Flag, Object, ObjectId, Replica};
use crate::index::objects::Replicas;
use crate::index::segments::{Place, SegmentId};
use crate::index::{Index, Moment};

/// Most records of one segment.
const MOST_RECORDS: usize = 1 << 24;

/// Spreads the records of a ledger over the first time of a run, so that those of all ledgers are evicted in the order of their age,
/// and before what is read in this run. When they were read is not known.
#[derive(Debug, Clone, Copy)]
struct Ages {
    records: u64,
    end: Moment,
}

impl Ages {
    fn of(records: usize, end: Moment) -> Self {
        Self {
            records: records as u64,
            end,
        }
    }

    /// Returns the time for the record that this many younger ones precede.
    fn used(self, younger: usize) -> Moment {
        let older = u128::from(self.records).saturating_sub(younger as u128);
        let time = u128::from(self.end.0) * older / u128::from(self.records.max(1));
        Moment(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

impl Index {
    /// Takes a part of a ledger. `sent` is the number of entries before it; a load begins again with 0. With the last part
    /// the objects can be found, and new ones are placed in the segment.
    ///
    /// # Errors
    /// `SegmentNotFound` if the segment is not mounted with a ledger by this client; `InvalidParams` if a part is
    /// missing, or there are too many records. A ledger that is loaded already is not an error.
    pub fn load_ledger(
        &mut self,
        client: Uuid,
        segment: Uuid,
        sent: u64,
        entries: Vec<Entry>,
        last: bool,
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let (id, stream) = self
            .ledgered(client, segment)
            .ok_or(ErrorCode::SegmentNotFound)?;
        let Some(loading) = stream.loading.as_mut().filter(|_| !stream.arrived) else {
            return Ok(());
        };
        if sent == 0 {
            loading.clear();
        }
        if loading.len() as u64 != sent || loading.len() + entries.len() > MOST_RECORDS {
            return Err(ErrorCode::InvalidParams);
        }
        loading.extend(entries);
        if last && let Some(entries) = stream.loading.take() {
            self.arrive(id, entries, now);
        } else {
            self.advance(id);
        }
        Ok(())
    }

    /// Replaces the empty space of a segment by the ranges of its records.
    pub(super) fn install(&mut self, segment: SegmentId, mut entries: Vec<Entry>, now: Moment) {
        let Some(mounted) = self.segments.get(segment) else {
            return;
        };
        let (size, client) = (mounted.segment.size, mounted.client);
        // Of two records of one range the newer one is right.
        entries.sort_unstable_by_key(|entry| Reverse(self.age(entry.version)));
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        let mut placed = Vec::with_capacity(entries.len());
        let ages = Ages::of(
            entries.len(),
            now.min(Moment::default().after(self.settings.lease_ttl)),
        );
        let mut wrong = Vec::new();
        for Entry {
            offset,
            version,
            stored,
        } in entries
        {
            let end = stored.as_ref().and_then(|stored| {
                let end = offset.checked_add(stored.length)?;
                let before = ends.range(..=offset).next_back();
                let is_free = before.is_none_or(|(_, &end)| end <= offset)
                    && ends.range(offset..end).next().is_none();
                let fits = !stored.key.is_empty() && stored.length > 0 && end <= size;
                (is_free && fits).then_some(end)
            });
            match (end, stored) {
                (Some(end), Some(stored)) => {
                    ends.insert(offset, end);
                    let used = ages.used(placed.len());
                    placed.push((offset, version, stored, used));
                }
                _ => wrong.push((offset, version)),
            }
        }
        placed.sort_unstable_by_key(|(offset, ..)| *offset);
        let no_object = ObjectId::default();
        let ranges: Vec<_> = placed
            .iter()
            .map(|(offset, _, stored, _)| (*offset, stored.length, no_object))
            .collect();
        let (space, blocks) = Allocator::with_used(size, &ranges);
        self.segments.install(segment, space);
        let missed = self.missed_removals(segment);
        let source = self.source(segment);
        for ((offset, version, stored, used), block) in placed.into_iter().zip(blocks) {
            let place = Place {
                segment,
                block,
                offset,
            };
            self.adopt(place, (version, used), stored, (&missed, source), now);
        }
        for (offset, version) in wrong {
            let entry = Entry {
                offset,
                version,
                stored: None,
            };
            if let Some((_, stream)) = self.segments.stream_of(segment) {
                stream.push(entry, Then::Nothing);
            }
        }
        self.turnover += 1;
        self.signals.owners.push(client);
    }

    /// Makes a record an object or one more replica, or lets it leave the ledger.
    fn adopt(
        &mut self,
        place: Place,
        (version, used): (Version, Moment),
        stored: Stored,
        (missed, source): (&Missed, Source),
        now: Moment,
    ) {
        let age = self.age(version);
        let replica = Replica {
            id: self.next_replica,
            offset: place.offset,
            segment: place.segment,
            block: place.block,
            complete: true,
        };
        self.next_replica += 1;
        let range = |stored: Stored, block: Block| Range {
            key: stored.key.into(),
            segment: place.segment,
            block,
            offset: place.offset,
            size: stored.length,
            version,
            rest: Moment::default(),
        };
        if self.notes.covers(&stored.key, age) {
            return self.leave(range(stored, place.block));
        }
        match self.find(&stored.key) {
            Some(id) if self.objects[id].version == version => {
                let name = self.segments.name(place.segment);
                let object = &self.objects[id];
                let elsewhere = object
                    .replicas
                    .iter()
                    .all(|other| self.segments.name(other.segment) != name);
                if object.size != stored.length || !elsewhere {
                    return self.leave(range(stored, place.block));
                }
                self.objects.add_replica(id, replica);
                self.segments.give(place, id);
                return;
            }
            _ if missed.contain(&stored.key, age) => return self.leave(range(stored, place.block)),
            Some(id) if self.age(self.objects[id].version) > age => {
                let range = range(stored, place.block);
                let verdict = self.removed.of(&range.key, age, source);
                if self.objects[id].has(Flag::InPut) && verdict == Verdict::Lives {
                    // It leaves when the put ends.
                    self.superseded.entry(id).or_default().push(range);
                } else {
                    self.leave(range);
                }
                return;
            }
            Some(id) => {
                let lease = self.objects.lease(id);
                let rest = if now < lease {
                    lease
                } else {
                    Moment::default()
                };
                self.drop_object(id, rest);
            }
            None => {
                let verdict = self.removed.of(&stored.key, age, source);
                self.counters.discarded_records += u64::from(verdict == Verdict::Lost);
                if verdict != Verdict::Lives {
                    return self.leave(range(stored, place.block));
                }
            }
        }
        let pin = std::time::Duration::from_millis(stored.soft_pin_ms)
            .min(self.settings.max_soft_pin_ttl);
        let replicas = Replicas::new(smallvec![replica]);
        let key = stored.key.into();
        let mut object = Object::new(key, stored.length, version, replicas);
        object.set_checksum(stored.checksum);
        object.set(Flag::HardPin, stored.hard_pin);
        let group = stored.group.as_deref().filter(|group| !group.is_empty());
        let id = self.objects.insert(object, stored.client, group);
        if !pin.is_zero() {
            self.objects.set_soft_pin(id, now.after(pin));
        }
        self.segments.give(place, id);
        self.enqueue_as_of(id, used);
    }
}

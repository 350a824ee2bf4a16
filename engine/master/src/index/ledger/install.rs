//! Installs ledgers that have arrived: their records become objects, unless another value of their key is newer or was removed. A
//! large one is arranged beside the index, and then adopted in steps. Until the last one it counts as being loaded: nothing is
//! placed in its segment, and calls that concern its other keys act as before it came.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use proto::store::ledger::{Entry, Stored, Version};
use smallvec::smallvec;

use super::bulk::Missed;
use super::leaving::Range;
use super::load::{Loading, Part, Stage};
use super::removed::{Source, Verdict};
use super::{Epochs, Then};
use crate::index::allocator::{Allocator, Block};
use crate::index::object::{Flag, Object, ObjectId, Replica};
use crate::index::objects::{OBJECT_BYTES, Replicas};
use crate::index::segments::{Place, SegmentId};
use crate::index::{Index, Moment};

/// Records of one step, or notes. One costs about a microsecond.
const STEP: usize = 256;

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

/// A record that becomes an object.
#[derive(Debug)]
struct Placed {
    block: Block,
    stored: Stored,
    used: Moment,
}

#[derive(Debug)]
struct Record {
    offset: u64,
    version: Version,
    /// Missing if it describes no range of its own.
    placed: Option<Placed>,
}

/// A ledger whose records are to be arranged, which needs no index.
#[derive(Debug)]
pub struct Arrangement {
    segment: SegmentId,
    size: u64,
    epochs: Epochs,
    /// The time over which the records are spread.
    end: Moment,
    step: usize,
    parts: Vec<Part>,
}

/// A ledger with the place of each record.
#[derive(Debug)]
pub struct Arranged {
    segment: SegmentId,
    space: Allocator<ObjectId>,
    /// The newest records are in the last step, so that an older one of the same key is never found.
    steps: Vec<Vec<Record>>,
}

impl Arrangement {
    /// Finds the place of each record. That takes long if there are many.
    #[must_use]
    pub fn arrange(self) -> Arranged {
        let mut entries: Vec<Entry> = self.parts.into_iter().flatten().collect();
        // Of two records of one range the newer one is right.
        entries.sort_unstable_by_key(|entry| Reverse(self.epochs.age(entry.version)));
        let ages = Ages::of(entries.len(), self.end);
        // The end of each range, and its number by age.
        let mut ends: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        let mut placed = Vec::with_capacity(entries.len());
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
                let is_free = before.is_none_or(|(_, &(end, _))| end <= offset)
                    && ends.range(offset..end).next().is_none();
                let fits = !stored.key.is_empty() && stored.length > 0 && end <= self.size;
                (is_free && fits).then_some(end)
            });
            if let (Some(end), Some(stored)) = (end, stored) {
                ends.insert(offset, (end, placed.len()));
                let used = ages.used(placed.len());
                placed.push((offset, version, stored, used));
            } else {
                wrong.push(Record {
                    offset,
                    version,
                    placed: None,
                });
            }
        }
        let no_object = ObjectId::default();
        let ranges = ends.iter();
        let ranges: Vec<_> = ranges
            .map(|(&offset, &(end, _))| (offset, end - offset, no_object))
            .collect();
        let (space, blocks) = Allocator::with_used(self.size, &ranges);
        let numbers = ends.values().map(|(_, number)| *number);
        let mut blocks: Vec<_> = numbers.zip(blocks).collect();
        blocks.sort_unstable_by_key(|(number, _)| *number);
        let placed = placed.into_iter().zip(blocks);
        let placed = placed.map(|((offset, version, stored, used), (_, block))| Record {
            offset,
            version,
            placed: Some(Placed {
                block,
                stored,
                used,
            }),
        });
        let mut records = placed.chain(wrong);
        let next = || {
            let step: Vec<_> = records.by_ref().take(self.step).collect();
            (!step.is_empty()).then_some(step)
        };
        let mut steps: Vec<_> = std::iter::from_fn(next).collect();
        steps.reverse();
        Arranged {
            segment: self.segment,
            space,
            steps,
        }
    }
}

/// A ledger of which some records are objects already.
#[derive(Debug)]
struct Adopting {
    segment: SegmentId,
    steps: Vec<Vec<Record>>,
}

/// The ledgers that have arrived.
#[derive(Debug)]
pub(crate) struct Installs {
    step: usize,
    /// Those whose notes are taken.
    noting: VecDeque<SegmentId>,
    /// The one that is arranged beside the index.
    arranging: Option<SegmentId>,
    adopting: VecDeque<Adopting>,
    /// What is not needed any more: it takes time to free many entries.
    discarded: Vec<Part>,
}

impl Default for Installs {
    fn default() -> Self {
        Self {
            step: STEP,
            noting: VecDeque::new(),
            arranging: None,
            adopting: VecDeque::new(),
            discarded: Vec::new(),
        }
    }
}

impl Installs {
    pub(super) fn step(&self) -> usize {
        self.step
    }

    pub(super) fn note(&mut self, segment: SegmentId) {
        self.noting.push_back(segment);
    }

    /// The ledger whose notes are taken now.
    pub(super) fn noted(&self) -> Option<SegmentId> {
        self.noting.front().copied()
    }

    /// Returns whether notes of ledgers that have arrived are not taken yet.
    pub(crate) fn is_noting(&self) -> bool {
        !self.noting.is_empty()
    }

    pub(super) fn end_notes(&mut self) {
        self.noting.pop_front();
    }

    /// Returns whether a part of a ledger is installed.
    pub(crate) fn is_adopting(&self) -> bool {
        !self.adopting.is_empty()
    }

    fn has_work(&self) -> bool {
        self.is_noting() || self.is_adopting() || !self.discarded.is_empty()
    }

    pub(super) fn discard(&mut self, loading: Option<Loading>) {
        let parts = loading.into_iter().flat_map(Loading::into_parts);
        self.discarded.extend(parts);
    }

    fn free_some(&mut self) {
        if let Some(part) = self.discarded.last_mut() {
            part.take(self.step).for_each(drop);
        }
        self.discarded.pop_if(|part| part.len() == 0);
    }
}

impl Index {
    /// Sets how many records of a ledger are installed in one step. Tests take few.
    #[must_use]
    pub fn with_installed_in_step(mut self, records: usize) -> Self {
        self.installs.step = records.max(1);
        self
    }

    /// Installs some records of ledgers that have arrived and wait for no other one. Returns whether more work waits, apart from
    /// [`Self::next_arrangement`].
    pub(in crate::index) fn install_some(&mut self, now: Moment) -> bool {
        self.installs.free_some();
        self.take_notes(now);
        if !self.installs.is_adopting()
            && let Some(small) = self.due_ledger(self.installs.step)
            && let Some(arrangement) = self.arrangement(small, now)
        {
            self.install(arrangement.arrange());
        }
        self.adopt_some(now);
        self.installs.has_work() || self.due_ledger(self.installs.step).is_some()
    }

    /// Returns the next large ledger, to be arranged without the index; [`Self::install`] takes the result. The one after it is
    /// arranged while it is adopted.
    pub fn next_arrangement(&mut self, now: Moment) -> Option<Arrangement> {
        if self.installs.arranging.is_some() || self.installs.adopting.len() > 1 {
            return None;
        }
        let segment = self.due_ledger(usize::MAX)?;
        let arrangement = self.arrangement(segment, now)?;
        self.installs.arranging = Some(segment);
        Some(arrangement)
    }

    /// Returns a ledger of at most this many entries that waits for no other one. It waits for the notes of those that have arrived.
    fn due_ledger(&self, most: usize) -> Option<SegmentId> {
        if self.installs.is_noting() {
            return None;
        }
        let waits = |segment: &SegmentId| {
            let mounted = self.segments.get(*segment);
            let stream = mounted.and_then(|mounted| mounted.stream.as_ref());
            let loading = stream.and_then(|stream| stream.loading.as_ref());
            loading.is_some_and(|of| of.stage == Stage::Waiting && of.entries <= most)
        };
        self.members.due().into_iter().find(waits)
    }

    fn arrangement(&mut self, segment: SegmentId, now: Moment) -> Option<Arrangement> {
        let memory = self.memory_of(segment)?;
        let unread = self.members.unread(&memory);
        let mounted = self.segments.get_mut(segment)?;
        let size = mounted.segment.size;
        let stream = mounted.stream.as_mut()?;
        stream.unread = stream.unread.or(unread);
        let loading = stream.loading.as_mut()?;
        loading.stage = Stage::Installing;
        Some(Arrangement {
            segment,
            size,
            epochs: self.epochs.clone(),
            end: now.min(Moment::default().after(self.settings.lease_ttl)),
            step: self.installs.step,
            parts: std::mem::take(&mut loading.records),
        })
    }

    /// Replaces the empty space of a segment by the ranges of its records, which [`Self::step`] makes objects.
    pub fn install(&mut self, arranged: Arranged) {
        let Arranged {
            segment,
            space,
            steps,
        } = arranged;
        self.installs.arranging.take_if(|of| *of == segment);
        // Before there are many objects, which would all be moved.
        let streams = self.segments.iter();
        let loading = streams.filter_map(|(_, of)| of.stream.as_ref()?.loading.as_ref());
        let coming = loading.fold(0_usize, |sum, of| sum.saturating_add(of.entries));
        let most = usize::try_from(self.settings.index_bytes / OBJECT_BYTES);
        let room = most
            .unwrap_or(usize::MAX)
            .saturating_sub(self.objects.len());
        self.objects.reserve(coming.min(room));
        self.segments.install(segment, space);
        self.installs
            .adopting
            .push_back(Adopting { segment, steps });
    }

    /// Makes the next records objects. Those of a segment that was unmounted meanwhile are freed.
    fn adopt_some(&mut self, now: Moment) {
        let Some(Adopting { segment, steps }) = self.installs.adopting.front_mut() else {
            return;
        };
        let (segment, records) = (*segment, steps.pop().unwrap_or_default());
        let is_last = steps.is_empty();
        if is_last {
            self.installs.adopting.pop_front();
        }
        if !self.segments.is_mounted(segment) {
            return;
        }
        let stream = self.segments.stream_of(segment);
        if let Some(loading) = stream.and_then(|(_, stream)| stream.loading.as_mut()) {
            loading.entries = loading.entries.saturating_sub(records.len());
        }
        // Other ledgers and calls have changed this since the last step.
        let missed = self.missed_removals(segment);
        let source = self.source(segment);
        for Record {
            offset,
            version,
            placed,
        } in records
        {
            if let Some(Placed {
                block,
                stored,
                used,
            }) = placed
            {
                let place = Place {
                    segment,
                    block,
                    offset,
                };
                self.adopt(place, (version, used), stored, (&missed, source), now);
            } else if let Some((_, stream)) = self.segments.stream_of(segment) {
                let entry = Entry {
                    offset,
                    version,
                    stored: None,
                };
                stream.push(entry, Then::Nothing);
            }
        }
        if is_last {
            self.installed(segment);
        }
    }

    /// Opens a segment: all records of its ledger are objects, or leave.
    pub(super) fn installed(&mut self, segment: SegmentId) {
        let Some(memory) = self.memory_of(segment) else {
            return;
        };
        self.members.install(&memory, segment);
        self.note_read(&memory);
        if let Some((client, stream)) = self.segments.stream_of(segment) {
            stream.loading = None;
            self.signals.owners.push(client);
        }
        self.segments.each_stream(|stream| stream.named = false);
        // First: the record of a new object is acknowledged after the names of the other members.
        self.name_members(segment);
        self.turnover += 1;
        self.notes.scan_again();
        self.mark();
        self.look_at_awaited();
        self.signals.progress = true;
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
                let rest = self.objects.readers_until(id, now);
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

//! Ranges that no object has any more, and that are still in the ledger of their segment. They are not used again before:
//! after a restart the record would describe bytes of another object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use proto::store::ledger::Version;
use smallvec::SmallVec;

use crate::index::Moment;
use crate::index::allocator::Block;
use crate::index::object::ObjectId;
use crate::index::segments::SegmentId;

/// Identifies a leaving range. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct LeaveId(u64);

/// A range that leaves its ledger.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) key: Box<str>,
    pub(crate) segment: SegmentId,
    pub(crate) block: Block,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) version: Version,
    /// A peer may read the range before this time.
    pub(crate) rest: Moment,
}

/// Records that must be acknowledged before a range leaves.
type Records = SmallVec<[(SegmentId, u64); 1]>;

/// A replica that takes the place of a range of the same object, which has moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Successor {
    pub(crate) object: ObjectId,
    pub(crate) replica: u64,
}

#[derive(Debug)]
struct Deferred {
    id: LeaveId,
    records: Records,
    successor: Option<Successor>,
}

#[derive(Debug, Default)]
pub(crate) struct Leaving {
    last: u64,
    ranges: BTreeMap<LeaveId, Range>,
    /// The same by segment; none is empty.
    of_segments: HashMap<SegmentId, BTreeSet<LeaveId>>,
    /// Of all ranges.
    bytes: u128,
    keys: HashMap<Box<str>, SmallVec<[LeaveId; 2]>>,
    deferred: Vec<Deferred>,
    /// Ranges that leave since before the mark, and the last of them.
    marked: usize,
    mark: LeaveId,
}

impl Leaving {
    pub(crate) fn insert(&mut self, range: Range) -> LeaveId {
        self.last += 1;
        let id = LeaveId(self.last);
        self.keys.entry(range.key.clone()).or_default().push(id);
        self.bytes += u128::from(range.size);
        self.of_segments
            .entry(range.segment)
            .or_default()
            .insert(id);
        self.ranges.insert(id, range);
        id
    }

    /// Marks all ranges that leave now.
    pub(crate) fn mark(&mut self) {
        self.mark = LeaveId(self.last);
        self.marked = self.ranges.len();
    }

    /// Returns whether none of the marked ranges leaves any more.
    pub(crate) fn has_mark_passed(&self) -> bool {
        self.marked == 0
    }

    pub(crate) fn bytes(&self) -> u128 {
        self.bytes
    }

    pub(crate) fn contains(&self, id: LeaveId) -> bool {
        self.ranges.contains_key(&id)
    }

    pub(crate) fn get(&self, id: LeaveId) -> Option<&Range> {
        self.ranges.get(&id)
    }

    pub(crate) fn remove(&mut self, id: LeaveId) -> Option<Range> {
        let range = self.ranges.remove(&id)?;
        self.marked -= usize::from(id <= self.mark);
        self.bytes -= u128::from(range.size);
        if let Some(ids) = self.of_segments.get_mut(&range.segment) {
            ids.remove(&id);
            if ids.is_empty() {
                self.of_segments.remove(&range.segment);
            }
        }
        if let Some(ids) = self.keys.get_mut(&range.key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.keys.remove(&range.key);
            }
        }
        Some(range)
    }

    pub(crate) fn remove_segment(&mut self, segment: SegmentId) {
        for id in self.of_segments.remove(&segment).unwrap_or_default() {
            self.remove(id);
        }
    }

    /// Lets a range wait for records.
    pub(crate) fn defer(&mut self, id: LeaveId, records: Records, successor: Option<Successor>) {
        self.deferred.push(Deferred {
            id,
            records,
            successor,
        });
    }

    /// Returns the ranges whose object has moved to a segment that was unmounted before it had the record.
    pub(crate) fn take_stranded(&mut self, segment: SegmentId) -> Vec<(LeaveId, Successor)> {
        let is_stranded =
            |one: &mut Deferred| one.records.iter().any(|(record, _)| *record == segment);
        let stranded = self
            .deferred
            .extract_if(.., |one| one.successor.is_some() && is_stranded(one));
        stranded
            .filter_map(|one| Some((one.id, one.successor?)))
            .collect()
    }

    /// Returns the ranges whose records all satisfy `is_past`.
    pub(crate) fn take_due(&mut self, is_past: impl Fn((SegmentId, u64)) -> bool) -> Vec<LeaveId> {
        let due = self
            .deferred
            .extract_if(.., |one| one.records.iter().all(|&record| is_past(record)));
        due.map(|one| one.id).collect()
    }

    /// Returns the leaving ranges of a key, and their segments.
    pub(crate) fn of_key(&self, key: &str) -> impl Iterator<Item = (SegmentId, LeaveId)> {
        let ids = self.keys.get(key).map_or(&[][..], |ids| ids.as_slice());
        ids.iter()
            .filter_map(|id| Some((self.ranges.get(id)?.segment, *id)))
    }

    /// The last range that has begun to leave.
    pub(crate) fn last(&self) -> LeaveId {
        LeaveId(self.last)
    }

    /// Returns the ranges that have begun to leave after one and not after another one.
    pub(crate) fn between(
        &self,
        after: LeaveId,
        last: LeaveId,
    ) -> impl Iterator<Item = (LeaveId, &Range)> {
        let bounds = (Bound::Excluded(after), Bound::Included(last));
        // Such bounds must not be equal.
        let between = (after < last).then(|| self.ranges.range(bounds));
        between
            .into_iter()
            .flatten()
            .map(|(id, range)| (*id, range))
    }

    /// Returns the segments that ranges leave, with the last of each.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (SegmentId, LeaveId)> {
        let segments = self.of_segments.iter();
        segments.filter_map(|(segment, ids)| Some((*segment, *ids.last()?)))
    }

    /// Returns whether ranges leave a segment, of those up to one.
    pub(crate) fn leaves(&self, segment: SegmentId, last: LeaveId) -> bool {
        let first = self.of_segments.get(&segment).and_then(BTreeSet::first);
        first.is_some_and(|first| *first <= last)
    }
}

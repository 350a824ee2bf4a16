//! Ranges that no object has any more, and that are still in the ledger of their segment. They are not used again before:
//! after a restart the record would describe bytes of another object.

use std::collections::HashMap;

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
    ranges: HashMap<LeaveId, Range>,
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
        if let Some(ids) = self.keys.get_mut(&range.key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.keys.remove(&range.key);
            }
        }
        Some(range)
    }

    pub(crate) fn remove_segment(&mut self, segment: SegmentId) {
        let there = self.ranges.iter();
        let there = there.filter(|(_, range)| range.segment == segment);
        let there: Vec<_> = there.map(|(&id, _)| id).collect();
        for id in there {
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

    pub(crate) fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.ranges.values()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (SegmentId, LeaveId)> {
        self.ranges.iter().map(|(&id, range)| (range.segment, id))
    }
}

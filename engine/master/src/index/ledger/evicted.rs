//! Evicted values may come back with the ledger of an owner that falls silent before it has acknowledged that their records
//! are gone: until then their bytes are there. What is removed or replaced later does not, nor do earlier values of the keys.

use proto::store::ledger::Version;

use super::LeaveId;
use super::removed::Source;
use crate::index::object::ObjectId;
use crate::index::segments::SegmentId;
use crate::index::{Index, Moment};

impl Index {
    /// Removes an object that is evicted.
    pub(in crate::index) fn erase_evicted(&mut self, id: ObjectId, rest: Moment) {
        self.remember_former(id);
        self.drop_with(id, rest, |index, range| {
            index.vacate(range, &[], None);
        });
    }

    /// The values before an evicted one are dead, and the object does not show it any more.
    fn remember_former(&mut self, id: ObjectId) {
        let Some(object) = self.objects.get(id) else {
            return;
        };
        let Version { epoch, number } = object.version;
        let former = self.age(Version {
            epoch,
            number: number.saturating_sub(1),
        });
        self.removed.forget(former);
        // Otherwise its put has made all owners drop them, or has left a tombstone.
        let is_unread = self.members.may_bring_before(self.age(object.version));
        let is_unnoted = self.unnoted.is_some_and(|first| first <= former);
        if !(is_unread || is_unnoted) || self.notes.covers(&object.key, former) {
            return;
        }
        if is_unread {
            self.removed.insert_unread(&object.key, former);
        }
        if is_unnoted && self.removed.insert(&object.key, former) {
            self.leaving.mark();
        }
    }

    /// Values of the next `most` ranges that leave their ledgers, by stored key, and the last of these ranges.
    pub(in crate::index) fn leaving_values(
        &self,
        (after, last): (LeaveId, LeaveId),
        most: usize,
    ) -> (Vec<(Box<str>, Version)>, Option<LeaveId>) {
        let mut reached = None;
        let leaving = self.leaving.between(after, last).take(most);
        let values = leaving.map(|(id, range)| {
            reached = Some(id);
            (range.key.clone(), range.version)
        });
        (values.collect(), reached)
    }

    /// Notes that a removal has met these values, which leave: they do not come back from now on. A value that an object still
    /// has is none of them: the removal has left it.
    pub(in crate::index) fn remember_dead(&mut self, values: Vec<(Box<str>, Version)>) {
        for (key, version) in values {
            let live = self.objects.find(&key);
            let is_live = live.is_some_and(|id| self.objects[id].version == version);
            if !is_live && self.removed.insert(&key, self.age(version)) {
                self.leaving.mark();
            }
        }
    }

    /// Notes that an object has replaced the values that leave.
    pub(super) fn remember_replaced(&mut self, id: ObjectId) {
        let Some(object) = self.objects.get(id) else {
            return;
        };
        let (key, latest) = (object.key.clone(), self.age(object.version));
        self.remember_key(&key, |age| age < latest);
    }

    /// Notes that a removal has not found a key whose former values leave.
    pub(in crate::index) fn remember_removed(&mut self, key: &str) {
        self.remember_key(key, |_| true);
    }

    fn remember_key(&mut self, key: &str, is_dead: impl Fn(super::Age) -> bool) {
        let leaving = self.leaving.of_key(key);
        let ranges = leaving.filter_map(|(_, id)| self.leaving.get(id));
        let ages = ranges.map(|range| self.age(range.version));
        let latest = ages.filter(|age| is_dead(*age)).max();
        if let Some(latest) = latest
            && self.removed.insert(key, latest)
        {
            self.leaving.mark();
        }
    }

    /// Returns whether this run has read the ledger of a segment before.
    pub(super) fn source(&self, segment: SegmentId) -> Source {
        let mounted = self.segments.get(segment);
        let stream = mounted.and_then(|mounted| mounted.stream.as_ref());
        let unread = stream.and_then(|stream| stream.unread);
        unread.map_or(Source::Read, Source::Unread)
    }

    /// Forgets the dead values that no known owner has any more.
    pub(super) fn look_at_removed(&mut self) {
        if self.members.are_read() {
            self.removed.all_read();
        }
        if self.is_ledger_awaited() {
            return;
        }
        self.unnoted = None;
        if self.removed.has_earlier() && self.leaving.has_mark_passed() {
            self.removed.forget_earlier();
        }
    }
}

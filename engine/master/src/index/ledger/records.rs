//! The records of objects, and when the end of a put is answered: after its owners have acknowledged its records or, where the
//! settings allow it, before.

use std::collections::VecDeque;
use std::time::Duration;

use proto::store::ledger::{Entry, Stored};
use smallvec::SmallVec;

use super::{Kind, Stream, Then, Wait};
use crate::index::object::{Flag, ObjectId, Replica};
use crate::index::objects::Objects;
use crate::index::segments::SegmentId;
use crate::index::{Commit, Index, Moment};

/// Longest key with its group that is recorded.
pub(super) const MOST_KEY_BYTES: usize = 8 << 10;
/// Time for which a record may wait for its owner while later puts are answered before theirs are acknowledged.
const LONGEST: Duration = Duration::from_millis(10);

/// When the owner of a segment is to get the changes that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// There are none.
    Never,
    /// No call waits for them: with those that follow at once.
    Soon,
    Now,
}

/// The records of one segment that its owner has not acknowledged, with [`Commit::Async`].
#[derive(Debug, Default)]
pub(super) struct Early {
    records: VecDeque<Record>,
    /// Those whose puts were answered.
    answered: usize,
}

#[derive(Debug)]
struct Record {
    number: u64,
    sent: Moment,
    answered: bool,
}

impl Early {
    fn push(&mut self, record: Record) {
        self.answered += usize::from(record.answered);
        self.records.push_back(record);
    }

    /// Forgets the records up to this number.
    pub(super) fn acknowledge(&mut self, number: u64) {
        while let Some(record) = self.records.front()
            && record.number <= number
        {
            self.answered -= usize::from(record.answered);
            self.records.pop_front();
        }
    }

    /// Returns the number of records whose puts were answered.
    pub(super) fn count(&self) -> u64 {
        self.answered as u64
    }

    fn is_late(&self, now: Moment) -> bool {
        let first = self.records.front();
        first.is_some_and(|first| first.sent.after(LONGEST) < now)
    }
}

impl Stream {
    pub(super) fn due(&self) -> Due {
        match self.waiting.len() {
            0 => Due::Never,
            waiting if waiting == self.early.answered => Due::Soon,
            _ => Due::Now,
        }
    }
}

impl Index {
    /// Sends the records of replicas that a put has completed. What the object replaces leaves the ledger after them.
    pub(in crate::index) fn record(&mut self, id: ObjectId, completed: &[Replica], now: Moment) {
        let mut records: SmallVec<[(SegmentId, u64); 1]> = SmallVec::new();
        for replica in completed {
            if let Some((segment, number)) = self.append_record(id, replica, now) {
                records.push((segment, number));
                self.wait_for_name(segment);
            }
        }
        let replaced = self.superseded.remove(&id).unwrap_or_default();
        self.await_records(&records, !replaced.is_empty(), now);
        for range in replaced {
            self.leave_after(range, &records);
        }
        self.wait_for_key(id);
    }

    /// The present call, the end of a put, is answered when the owners have these records. With [`Commit::Async`] it is answered
    /// before, unless one of the owners is late, or the put replaces a value, also one that an owner may have that is away: that one
    /// would return if the record is lost.
    fn await_records(&mut self, records: &[(SegmentId, u64)], replaces: bool, now: Moment) {
        let may_be_early = self.settings.commit == Commit::Async;
        let mut answered = may_be_early && !replaces && !self.has_absent_owner();
        for (segment, _) in records {
            let stream = self.segments.stream_of(*segment);
            answered &= stream.is_some_and(|(_, stream)| !stream.early.is_late(now));
        }
        self.counters.early_puts += u64::from(answered && !records.is_empty());
        for &(segment, number) in records {
            let Some((owner, stream)) = self.segments.stream_of(segment) else {
                continue;
            };
            // Its owner knows of the first one, and gets the others with it.
            if !answered || stream.early.answered == 0 {
                self.signals.owners.push(owner);
            }
            if may_be_early {
                stream.early.push(Record {
                    number,
                    sent: now,
                    answered,
                });
            }
            if !answered {
                let wait = Wait(Kind::Acknowledged(segment, number));
                self.signals.waits.push(wait);
            }
        }
    }

    /// Sends the record of a replica. Returns its number; `None` if it has none.
    pub(in crate::index) fn send_record(
        &mut self,
        id: ObjectId,
        replica: &Replica,
        now: Moment,
    ) -> Option<(SegmentId, u64)> {
        let record = self.append_record(id, replica, now)?;
        let owner = self.segments.stream_of(record.0).map(|(owner, _)| owner);
        self.signals.owners.extend(owner);
        Some(record)
    }

    /// Sends the record of a replica that was copied. The present call is answered when its owner has it, whatever the setting.
    pub(in crate::index) fn record_copy(
        &mut self,
        id: ObjectId,
        replica: &Replica,
        now: Moment,
    ) -> Option<(SegmentId, u64)> {
        let (segment, number) = self.send_record(id, replica, now)?;
        self.wait_for_name(segment);
        let wait = Wait(Kind::Acknowledged(segment, number));
        self.signals.waits.push(wait);
        Some((segment, number))
    }

    /// The present call is answered when the owner of a segment has all its records up to now. Returns the last one if the owner
    /// does not have it yet.
    pub(in crate::index) fn wait_for_stream(
        &mut self,
        segment: SegmentId,
    ) -> Option<(SegmentId, u64)> {
        let (_, stream) = self.segments.stream_of(segment)?;
        let last = stream.last();
        if stream.waiting.is_empty() {
            return None;
        }
        let wait = Wait(Kind::Acknowledged(segment, last));
        self.signals.waits.push(wait);
        Some((segment, last))
    }

    /// Appends the record of a replica to the changes. Returns its number; `None` if it has none.
    fn append_record(
        &mut self,
        id: ObjectId,
        replica: &Replica,
        now: Moment,
    ) -> Option<(SegmentId, u64)> {
        let object = &self.objects[id];
        let group = self.objects.group(id);
        let length = object.key.len() + group.map_or(0, str::len);
        let mounted = self.segments.get_mut(replica.segment)?;
        let stream = mounted.stream.as_mut()?;
        if length > MOST_KEY_BYTES {
            stream.too_long += 1;
            return None;
        }
        let entry = Entry {
            offset: replica.offset,
            version: object.version,
            stored: Some(stored(&self.objects, id, now)),
        };
        Some((replica.segment, stream.push(entry, Then::Nothing)))
    }

    /// The present call is answered when the records of an object are acknowledged.
    pub(in crate::index) fn wait_for_records(&mut self, id: ObjectId) {
        for replica in &self.objects[id].replicas {
            let mounted = self.segments.get(replica.segment);
            if let Some(stream) = mounted.and_then(|mounted| mounted.stream.as_ref()) {
                let wait = Kind::Acknowledged(replica.segment, stream.last());
                self.signals.waits.push(Wait(wait));
            }
        }
        self.wait_for_key(id);
    }

    /// Returns whether a replica may be in the ledger of its segment.
    pub(in crate::index) fn is_recorded(&self, replica: &Replica) -> bool {
        replica.complete
            && self
                .segments
                .get(replica.segment)
                .is_some_and(|mounted| mounted.stream.is_some())
    }
}

fn stored(objects: &Objects, id: ObjectId, now: Moment) -> Stored {
    let (object, group) = (&objects[id], objects.group(id));
    let pin = objects.soft_pin(id).0.saturating_sub(now.0) / 1000;
    Stored {
        key: object.key.to_string(),
        length: object.size,
        client: objects.client(id),
        group: group.map(Into::into),
        checksum: object.checksum(),
        soft_pin_ms: pin,
        hard_pin: object.has(Flag::HardPin),
    }
}

//! The ledger of keys, which the owner of a segment keeps beside the bytes: changes are numbered for each segment, sent in
//! order, and acknowledged. docs/decisions/ledger.md has the rules.

mod bulk;
mod epochs;
mod evicted;
mod install;
mod leaving;
mod load;
mod members;
mod notes;
mod records;
mod removed;
mod tombstones;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proto::store::ledger::{Changes, ENOUGH_BYTES, Entry, MOST_ENTRIES, Position, Version};
use proto::store::release_0_3_13::Segment;
use proto::store::{ErrorCode, Uuid};
use smallvec::SmallVec;

use super::object::ObjectId;
use super::segments::{Mounted, SegmentId};
use super::upkeep::LOOK;
use super::{Index, Moment};
pub(super) use bulk::{Bulks, Keys};
pub(super) use epochs::{Age, Epochs};
pub(super) use install::Installs;
pub use install::{Arranged, Arrangement};
pub(super) use leaving::{LeaveId, Leaving, Range, Successor};
use load::{Loading, Stage};
pub(super) use members::Members;
use notes::NoteId;
pub(super) use notes::Notes;
pub use records::Due;
use records::Early;
pub(super) use removed::Removed;

/// Looks without progress after which nothing is allocated in a segment. There are ten in a second.
const MOST_IDLE_LOOKS: u32 = 10;
/// Looks without a poll after which an owner is silent.
const SILENT_LOOKS: u32 = 20;
/// Looks in which an owner gets no notes after its ledger was full.
const FULL_LOOKS: u32 = 100;
/// Looks that are remembered: ten minutes.
const MOST_LAG: usize = 6000;
/// Waiting changes above which nothing is allocated in a segment.
const MOST_WAITING: usize = 1 << 18;

/// The changes of one segment that its owner has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// What the owner has sent, until its whole ledger is installed.
    loading: Option<Loading>,
    acknowledged: u64,
    waiting: VecDeque<Waiting>,
    early: Early,
    /// Objects that the owner could not record, and those whose key is too long.
    unrecorded: u64,
    too_long: u64,
    /// The acknowledged number at the last look, and looks since it has changed.
    looked_at: u64,
    idle_looks: u32,
    /// The last number at each look since the acknowledged one was the last.
    looked_at_last: VecDeque<u64>,
    /// Looks since the last poll.
    unpolled_looks: u32,
    /// Enough other ledgers name this one.
    named: bool,
    /// It names all members, and itself after them, unless one has become known that it had no space for.
    names_all: bool,
    is_signed: bool,
    /// This run has not read the ledger before, and what was forgotten before it knew the owner.
    unread: Option<Option<Age>>,
    /// Number of the last change that tombstones wait for.
    mark: u64,
    /// Bytes of notes in the ledger, and looks that are left without a new one.
    note_bytes: u64,
    full: u32,
}

#[derive(Debug)]
struct Waiting {
    entry: Entry,
    then: Then,
}

/// What happens when a change is acknowledged.
#[derive(Debug, Clone, Copy)]
enum Then {
    Nothing,
    /// The range is free.
    Leaves(LeaveId),
    /// The ledger has the note.
    Holds(NoteId),
}

impl Stream {
    fn loading() -> Self {
        Self {
            loading: Some(Loading::default()),
            ..Self::default()
        }
    }

    /// Returns whether the whole ledger is installed.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loading.is_none()
    }

    /// Returns whether the owner has sent its whole ledger.
    fn has_arrived(&self) -> bool {
        let loading = self.loading.as_ref();
        loading.is_none_or(|of| of.stage != Stage::Arriving)
    }

    /// Returns whether objects may be placed in the segment: its ledger is loaded, and its owner keeps pace.
    pub(crate) fn is_open(&self) -> bool {
        self.loading.is_none()
            && self.idle_looks < MOST_IDLE_LOOKS
            && self.waiting.len() < MOST_WAITING
    }

    /// Appends a change and returns its number.
    fn push(&mut self, entry: Entry, then: Then) -> u64 {
        self.waiting.push_back(Waiting { entry, then });
        self.last()
    }

    pub(super) fn last(&self) -> u64 {
        self.acknowledged + self.waiting.len() as u64
    }

    /// Removes the changes up to `number`, and returns those that have a consequence, with their versions.
    fn acknowledge(&mut self, number: u64) -> Vec<(Then, Version)> {
        let mut done = Vec::new();
        while self.acknowledged < number
            && let Some(change) = self.waiting.pop_front()
        {
            self.acknowledged += 1;
            if !matches!(change.then, Then::Nothing) {
                done.push((change.then, change.entry.version));
            }
        }
        self.early.acknowledge(self.acknowledged);
        done
    }

    /// Adds up to `most` of the next changes, unless there are enough bytes.
    fn hand_out(&self, entries: &mut Vec<Entry>, most: usize, bytes: &mut usize) {
        for waiting in self.waiting.iter().skip(entries.len()).take(most) {
            if *bytes > ENOUGH_BYTES {
                return;
            }
            let stored = waiting.entry.stored.as_ref();
            *bytes += stored.map_or(0, |stored| stored.key.len());
            entries.push(waiting.entry.clone());
        }
    }

    /// Returns for how many looks the earliest of the waiting changes has waited at least.
    fn lag(&self) -> u32 {
        let looks = u32::try_from(self.looked_at_last.len()).unwrap_or(u32::MAX);
        looks.saturating_sub(1)
    }

    /// Returns whether the owner has polled of late.
    fn is_polled(&self) -> bool {
        self.unpolled_looks < SILENT_LOOKS
    }

    /// Looks whether the owner has acknowledged anything since the last look.
    pub(super) fn look(&mut self) {
        if self.waiting.is_empty() || self.acknowledged != self.looked_at {
            self.idle_looks = 0;
        } else {
            self.idle_looks = self.idle_looks.saturating_add(1);
        }
        self.looked_at = self.acknowledged;
        let (last, acknowledged) = (self.last(), self.acknowledged);
        while let Some(&first) = self.looked_at_last.front()
            && first <= acknowledged
        {
            self.looked_at_last.pop_front();
        }
        // A client without a poll expires long before.
        if last > acknowledged && self.looked_at_last.len() < MOST_LAG {
            self.looked_at_last.push_back(last);
        }
        if !self.is_open() {
            (self.names_all, self.is_signed) = (false, false);
        }
        self.unpolled_looks = self.unpolled_looks.saturating_add(1);
        self.full = self.full.saturating_sub(1);
    }
}

/// What must happen before a call may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The owner of the segment acknowledges its changes up to this number.
    Acknowledged(SegmentId, u64),
    /// A range of the segment is no longer in the ledger.
    Left(SegmentId, LeaveId),
    /// No range of the segment is in the ledger any more of those up to this one.
    AllLeft(SegmentId, LeaveId),
    /// Enough ledgers have the note, or nothing needs it any more.
    Noted(NoteId),
    /// No ledger can come that this run has not read.
    AllRead,
}

/// What the server does after a call.
#[derive(Debug, Default)]
pub struct Signals {
    /// The call may be answered after these.
    pub waits: Vec<Wait>,
    /// Owners for which there are changes.
    pub owners: Vec<Uuid>,
    /// Changes were acknowledged, or have no owner any more.
    pub progress: bool,
}

/// The state of all ledgers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerTotals {
    /// Segments whose ledger is loaded, and all others that have one.
    pub loaded: u64,
    pub loading: u64,
    /// Changes that no owner has acknowledged yet.
    pub waiting: u64,
    /// Time for which the earliest of them has waited at least.
    pub lag: Duration,
    /// Segments in which nothing is allocated because their owner does not acknowledge changes.
    pub late: u64,
    /// Objects that a restart loses, because the ledger is full or their key is too long.
    pub unrecorded: u64,
    /// Tombstones, and owners that are away or whose ledger waits for those of others.
    pub tombstones: u64,
    pub away: u64,
}

/// How far the ledger of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerState {
    /// Its owner keeps none: a restart loses the keys of the segment.
    None,
    Loading,
    /// Nothing is allocated in the segment, because its owner does not acknowledge changes.
    Late,
    Loaded,
}

/// The ledger of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerDetail {
    pub name: String,
    pub endpoint: String,
    pub state: LedgerState,
    /// Objects that a restart loses. Owners report one number for all their segments; it is in one of them.
    pub unrecorded: u64,
}

impl Index {
    /// Sets the epoch of this run, which must exceed those of earlier runs. Owners that report a higher one raise it.
    #[must_use]
    pub fn in_epoch(mut self, epoch: u64) -> Self {
        self.epochs = Epochs::begin(epoch);
        self
    }

    pub(super) fn next_version(&mut self) -> Version {
        self.last_number += 1;
        self.latest()
    }

    /// Returns the last version of this run.
    pub(super) fn latest(&self) -> Version {
        Version {
            epoch: self.epochs.current(),
            number: self.last_number,
        }
    }

    pub(super) fn age(&self, version: Version) -> Age {
        self.epochs.age(version)
    }

    /// Returns whether an owner can have got this epoch from a master. Others do not raise the epoch of this run.
    #[must_use]
    pub fn is_plausible_epoch(&self, epoch: u64) -> bool {
        self.epochs.is_plausible(epoch)
    }

    /// Returns what the calls since the last one have caused.
    pub fn take_signals(&mut self) -> Signals {
        std::mem::take(&mut self.signals)
    }

    /// Removes what has happened, and returns whether nothing remains.
    pub fn have_happened(&self, waits: &mut Vec<Wait>) -> bool {
        while let Some(&Wait(kind)) = waits.last() {
            let pending = match kind {
                Kind::Left(segment, id) => {
                    self.leaving.contains(id) || self.silent.contains(&segment)
                }
                Kind::AllLeft(segment, last) => {
                    self.leaving.leaves(segment, last) || self.silent.contains(&segment)
                }
                Kind::Acknowledged(segment, number) => self.is_unacknowledged(segment, number),
                Kind::Noted(id) => !self.is_held(id),
                Kind::AllRead => self.is_ledger_awaited(),
            };
            if pending {
                return false;
            }
            waits.pop();
        }
        true
    }

    fn is_unacknowledged(&self, segment: SegmentId, number: u64) -> bool {
        let stream = self
            .segments
            .get(segment)
            .and_then(|mounted| mounted.stream.as_ref());
        match stream {
            Some(stream) => stream.acknowledged < number,
            None => self.silent.contains(&segment),
        }
    }

    #[must_use]
    pub fn ledger_totals(&self) -> LedgerTotals {
        let mut totals = LedgerTotals {
            tombstones: self.notes.removed() as u64,
            away: self.members.away() as u64,
            ..LedgerTotals::default()
        };
        for stream in self
            .segments
            .iter()
            .filter_map(|(_, mounted)| mounted.stream.as_ref())
        {
            totals.loaded += u64::from(stream.loading.is_none());
            totals.loading += u64::from(stream.loading.is_some());
            totals.waiting += stream.waiting.len() as u64;
            totals.lag = totals.lag.max(LOOK.saturating_mul(stream.lag()));
            totals.late += u64::from(stream.loading.is_none() && !stream.is_open());
            totals.unrecorded = totals
                .unrecorded
                .saturating_add(stream.unrecorded)
                .saturating_add(stream.too_long);
        }
        totals
    }

    /// Returns the ledgers of all mounted segments in the order of names, and the names of segments whose owner has a ledger and is
    /// away.
    #[must_use]
    pub fn ledger_details(&self) -> (Vec<LedgerDetail>, Vec<String>) {
        let detail = |mounted: &Mounted| {
            let stream = mounted.stream.as_ref();
            let state = match stream {
                None => LedgerState::None,
                Some(stream) if stream.loading.is_some() => LedgerState::Loading,
                Some(stream) if !stream.is_open() => LedgerState::Late,
                Some(_) => LedgerState::Loaded,
            };
            LedgerDetail {
                name: mounted.segment.name.clone(),
                endpoint: mounted.segment.te_endpoint.clone(),
                state,
                unrecorded: stream.map_or(0, |stream| {
                    stream.unrecorded.saturating_add(stream.too_long)
                }),
            }
        };
        let mounted = self.segments.iter().map(|(_, mounted)| mounted);
        let mut details: Vec<LedgerDetail> = mounted.map(detail).collect();
        details.sort_by(|a, b| (&a.name, &a.endpoint).cmp(&(&b.name, &b.endpoint)));
        // One whose ledger is being loaded is not read yet, but has come.
        let absent = self.members.absent();
        let absent = absent.filter(|name| self.segments.named(name).is_empty());
        let mut absent: Vec<String> = absent.map(Into::into).collect();
        absent.sort();
        (details, absent)
    }

    /// Returns the segments that a mount of this one unmounts: those of the same memory with a ledger.
    pub(crate) fn earlier_segments(&self, client: Uuid, segment: &Segment) -> Vec<Uuid> {
        let named = self.segments.named(&segment.name).iter();
        named
            .filter_map(|id| self.segments.get(*id))
            .filter(|mounted| mounted.client == client && mounted.stream.is_some())
            .map(|mounted| mounted.segment.id)
            .filter(|earlier| *earlier != segment.id)
            .collect()
    }

    /// Mounts a segment whose owner keeps a ledger. Nothing is allocated there before the ledger is loaded. An earlier
    /// segment of the same memory is unmounted: its addresses are rejected by the owner. Returns whether the ledger of
    /// this segment is loaded already.
    ///
    /// # Errors
    /// As for [`Self::mount_segment`]; `SegmentAlreadyExists` if it is mounted without a ledger or by another client.
    pub fn mount_ledger(
        &mut self,
        client: Uuid,
        segment: Segment,
        highest: u64,
        now: Moment,
    ) -> Result<bool, ErrorCode> {
        let known = self.segments.find(segment.id);
        if let Some(mounted) = known.and_then(|id| self.segments.get(id)) {
            let stream = mounted
                .stream
                .as_ref()
                .filter(|_| mounted.client == client && mounted.segment == segment);
            let stream = stream.ok_or(ErrorCode::SegmentAlreadyExists)?;
            return Ok(stream.has_arrived());
        }
        let uuid = segment.id;
        let earlier = self.earlier_segments(client, &segment);
        if !earlier.is_empty() {
            // It begins again with the new segments.
            self.stop_evacuation(client);
        }
        self.mount_segment(segment, client, now)?;
        self.evacuations.note_mount(earlier.is_empty(), now);
        for segment in earlier {
            // The ledger lives and may lack changes, so calls that wait for them are never answered.
            self.expire_segment(segment);
        }
        if let Some(id) = self.segments.find(uuid)
            && let Some(mounted) = self.segments.get_mut(id)
        {
            mounted.stream = Some(Stream::loading());
            self.join(id);
        }
        // An owner that comes back within a run reports the epoch of this run.
        self.epochs.exceed(highest);
        Ok(false)
    }

    /// Returns the segments with a ledger of a client.
    pub(crate) fn ledgered_segments(&self, client: Uuid) -> Vec<Uuid> {
        let mounted = self.segments.iter().map(|(_, mounted)| mounted);
        mounted
            .filter(|mounted| mounted.client == client && mounted.stream.is_some())
            .map(|mounted| mounted.segment.id)
            .collect()
    }

    /// Finds a segment with a ledger.
    fn ledgered(&mut self, client: Uuid, segment: Uuid) -> Option<(SegmentId, &mut Stream)> {
        let id = self.segments.find(segment)?;
        let mounted = self.segments.get_mut(id)?;
        if mounted.client != client {
            return None;
        }
        Some((id, mounted.stream.as_mut()?))
    }

    /// Acknowledges changes, and returns when the owner is to get the next ones.
    ///
    /// # Errors
    /// Those of [`Self::poll_ledger`].
    pub fn has_changes(
        &mut self,
        client: Uuid,
        positions: &[Position],
        now: Moment,
    ) -> Result<Due, ErrorCode> {
        self.acknowledge(client, positions, now)?;
        let streams = positions.iter().filter_map(|of| {
            self.segments
                .get(self.segments.find(of.segment)?)?
                .stream
                .as_ref()
        });
        Ok(streams.map(Stream::due).max().unwrap_or(Due::Never))
    }

    /// Acknowledges changes, and returns the next ones of each segment.
    ///
    /// # Errors
    /// `SegmentNotFound` if a segment is not mounted with a ledger by this client; `UnavailableInCurrentStatus` if its
    /// ledger is not loaded.
    pub fn poll_ledger(
        &mut self,
        client: Uuid,
        positions: &[Position],
        now: Moment,
    ) -> Result<Vec<Changes>, ErrorCode> {
        self.acknowledge(client, positions, now)?;
        let each = (MOST_ENTRIES / positions.len().max(1)).max(1);
        let (mut bytes, mut left) = (0, MOST_ENTRIES);
        let mut changes = Vec::with_capacity(positions.len());
        // First what each segment has a right to, then what others leave.
        for position in positions {
            let Some((_, stream)) = self.ledgered(client, position.segment) else {
                continue;
            };
            let mut entries = Vec::new();
            stream.hand_out(&mut entries, each, &mut bytes);
            left = left.saturating_sub(entries.len());
            changes.push(Changes {
                segment: position.segment,
                first: stream.acknowledged + 1,
                entries,
            });
        }
        for Changes {
            segment, entries, ..
        } in &mut changes
        {
            let before = entries.len();
            if left > 0
                && before >= each
                && let Some((_, stream)) = self.ledgered(client, *segment)
            {
                stream.hand_out(entries, left, &mut bytes);
                left -= entries.len() - before;
            }
        }
        Ok(changes)
    }

    fn acknowledge(
        &mut self,
        client: Uuid,
        positions: &[Position],
        now: Moment,
    ) -> Result<(), ErrorCode> {
        let mut done = Vec::new();
        // The first position counts the objects of all.
        let mut full = false;
        for position in positions {
            let (id, stream) = self
                .ledgered(client, position.segment)
                .ok_or(ErrorCode::SegmentNotFound)?;
            if !stream.has_arrived() {
                return Err(ErrorCode::UnavailableInCurrentStatus);
            }
            full |= position.unrecorded > stream.unrecorded;
            stream.unrecorded = position.unrecorded;
            stream.unpolled_looks = 0;
            if full {
                stream.full = FULL_LOOKS;
            }
            let before = stream.acknowledged;
            let then = stream.acknowledge(position.applied).into_iter();
            done.extend(then.map(|(then, version)| (id, then, version)));
            let progress = stream.acknowledged != before;
            self.signals.progress |= progress;
        }
        for (segment, then, version) in done {
            match then {
                Then::Nothing => {}
                Then::Leaves(id) => self.left(id, now),
                Then::Holds(id) => self.note_held(id, segment, version, full),
            }
        }
        if self.signals.progress {
            self.send_deferred();
        }
        Ok(())
    }

    /// Lets a range leave the ledger of its segment. It is free when the owner has confirmed that.
    pub(super) fn leave(&mut self, range: Range) {
        self.remember(&range);
        let id = self.leaving.insert(range);
        self.send_leave(id);
    }

    fn remember(&mut self, range: &Range) {
        let age = self.age(range.version);
        if self.removed.insert(&range.key, age) {
            self.leaving.mark();
        }
    }

    /// The same, but not before the records of what replaces it are acknowledged. Changes of one segment are in order.
    fn leave_after(&mut self, range: Range, records: &[(SegmentId, u64)]) {
        self.remember(&range);
        self.vacate(range, records, None);
    }

    /// The same for a range whose object lives on elsewhere: another ledger may bring this version of it. If a segment with a
    /// record is unmounted before, the range becomes the object's again in place of its `successor`.
    pub(super) fn vacate(
        &mut self,
        range: Range,
        records: &[(SegmentId, u64)],
        successor: Option<Successor>,
    ) -> LeaveId {
        let segment = range.segment;
        let id = self.leaving.insert(range);
        let elsewhere = records.iter().filter(|(other, _)| *other != segment);
        let elsewhere: SmallVec<_> = elsewhere.copied().collect();
        if elsewhere.is_empty() {
            self.send_leave(id);
        } else {
            self.leaving.defer(id, elsewhere, successor);
        }
        id
    }

    pub(super) fn send_leave(&mut self, id: LeaveId) {
        let Some(range) = self.leaving.get(id) else {
            return;
        };
        let entry = Entry {
            offset: range.offset,
            version: range.version,
            stored: None,
        };
        match self.segments.stream_of(range.segment) {
            Some((client, stream)) => {
                stream.push(entry, Then::Leaves(id));
                self.signals.owners.push(client);
            }
            // The segment was unmounted: nothing is allocated there.
            None => {
                self.leaving.remove(id);
                self.signals.progress = true;
            }
        }
    }

    /// Sends the removals that waited for records which are acknowledged now, or whose segment was unmounted.
    fn send_deferred(&mut self) {
        let (segments, leaving) = (&self.segments, &mut self.leaving);
        let due = leaving.take_due(|(segment, number)| {
            let stream = segments
                .get(segment)
                .and_then(|mounted| mounted.stream.as_ref());
            stream.is_none_or(|stream| stream.acknowledged >= number)
        });
        for id in due {
            self.send_leave(id);
        }
    }

    /// Frees a range that is no longer in the ledger.
    fn left(&mut self, id: LeaveId, now: Moment) {
        let Some(range) = self.leaving.remove(id) else {
            return;
        };
        if now < range.rest {
            self.retire(range.segment, range.block, range.size, range.rest);
        } else {
            self.segments.free(range.segment, range.block);
        }
    }

    /// Forgets the changes of a segment that was unmounted. Its memory is gone, or the segment is replaced.
    pub(super) fn drop_stream(&mut self, segment: SegmentId, stream: Stream) {
        self.installs.discard(stream.loading);
        self.counters.lost_records += stream.early.count();
        self.turnover += 1;
        self.leaving.remove_segment(segment);
        self.signals.progress = true;
        self.take_back(segment);
        self.send_deferred();
    }

    /// Notes a segment whose owner is silent before it is unmounted. Its owner may live, so calls that wait for changes there
    /// are never answered.
    pub(super) fn note_silent(&mut self, segment: SegmentId) {
        let stream = self.segments.stream_of(segment);
        let waits = stream.is_some_and(|(_, stream)| !stream.waiting.is_empty());
        if waits || self.leaving.leaves(segment, self.leaving.last()) {
            self.silent.insert(segment);
        }
    }

    /// The present call is answered when no range of an earlier value of the key is in a ledger.
    pub(super) fn wait_for_key(&mut self, id: ObjectId) {
        let Some(object) = self.objects.get(id) else {
            return;
        };
        let leaving = self.leaving.of_key(&object.key);
        let waits = leaving.map(|(segment, id)| Wait(Kind::Left(segment, id)));
        self.signals.waits.extend(waits);
        self.remember_replaced(id);
        self.entomb_replaced(id);
    }

    /// The same for a key that may have no object.
    pub(super) fn wait_for_removal(&mut self, key: &str) {
        let leaving = self.leaving.of_key(key);
        let waits = leaving.map(|(segment, id)| Wait(Kind::Left(segment, id)));
        self.signals.waits.extend(waits);
    }

    /// The same for all keys, in steps: notes what leaves now, also where its segment is unmounted before the last step.
    pub(super) fn note_removals(&self, noted: &mut BTreeMap<SegmentId, LeaveId>) {
        noted.extend(self.leaving.segments());
    }

    /// The present call is answered when no range that was noted is in a ledger.
    pub(super) fn wait_for_removals(&mut self, noted: BTreeMap<SegmentId, LeaveId>) {
        let waits = noted.into_iter();
        let waits = waits.map(|(segment, last)| Wait(Kind::AllLeft(segment, last)));
        self.signals.waits.extend(waits);
    }

    /// Looks whether owners keep pace.
    pub(super) fn look_at_ledgers(&mut self) {
        self.segments.each_stream(Stream::look);
        self.look_at_members();
        self.look_at_removed();
    }
}

//! Tombstones: while an owner is away, what a call removes or replaces is noted in two other ledgers before it is answered.
//! A run reads the notes of all members before it adopts records. docs/decisions/ledger.md has the rules.

use proto::store::ledger::{Entry, Version};

use super::members::Memory;
use super::notes::{Holder, NoteId, Subject, subject_of};
use super::records::MOST_KEY_BYTES;
use super::{Kind, Stream, Then, Wait};
use crate::index::object::{Flag, ObjectId};
use crate::index::segments::{Mounted, SegmentId};
use crate::index::{Index, Moment};

/// Most tombstones. What is removed beyond them may return.
const MOST: usize = 1 << 17;
/// Tombstones above which the end of a put writes none. The others are for removals.
const MOST_OF_PUTS: usize = MOST / 2;
/// Ledgers that have a tombstone.
const COPIES: usize = 2;
/// The version of names.
const NAMED: Version = Version {
    epoch: 0,
    number: 0,
};
/// Notes that one step looks at, and segments that it looks at for them.
const STEPS: usize = 256;
const STEP_LOOKS: usize = 1 << 13;

fn is_memory(mounted: &Mounted, memory: &Memory) -> bool {
    mounted.client == memory.client && *mounted.segment.name == *memory.name
}

pub(super) fn memory(mounted: &Mounted) -> Memory {
    Memory {
        client: mounted.client,
        name: mounted.segment.name.as_str().into(),
    }
}

/// Returns the bytes of notes that the ledger of a segment takes. The ledger of a pool has a 64th of it up to 32 MiB, or a 2048th if that is more.
fn room(size: u64) -> u64 {
    (size / 256).clamp(64 << 10, 8 << 20)
}

fn keeps_pace(mounted: &Mounted) -> bool {
    mounted.stream.as_ref().is_some_and(Stream::is_open)
}

fn takes_notes(mounted: &Mounted) -> bool {
    let room = room(mounted.segment.size);
    mounted
        .stream
        .as_ref()
        .is_some_and(|stream| stream.is_open() && stream.full == 0 && stream.note_bytes < room)
}

impl Index {
    pub(super) fn memory_of(&self, segment: SegmentId) -> Option<Memory> {
        self.segments.get(segment).map(memory)
    }

    fn note(&mut self, subject: Subject, version: Version) -> NoteId {
        let age = self.age(version);
        self.notes.insert(subject, version, age)
    }

    /// Notes that the memory of a mounted segment may have records.
    pub(super) fn join(&mut self, segment: SegmentId) {
        let Some(memory) = self.memory_of(segment) else {
            return;
        };
        self.learn(&memory);
        self.members.advance(&memory);
        if !self.members.is_known(&memory) {
            // There is no place for it among the members.
            let forgotten = self.removed.forgotten();
            if let Some((_, stream)) = self.segments.stream_of(segment) {
                stream.unread = Some(forgotten);
            }
        } else {
            let id = self.note(Subject::Member(memory), NAMED);
            self.spread(id);
        }
    }

    /// Adds a member, and returns whether it was not known.
    fn learn(&mut self, memory: &Memory) -> bool {
        let (forgotten, latest) = (self.removed.forgotten(), self.age(self.latest()));
        self.members.learn(memory, forgotten, latest)
    }

    /// Notes that a part of a ledger has arrived.
    pub(super) fn advance(&mut self, segment: SegmentId) {
        if let Some(memory) = self.memory_of(segment) {
            self.members.advance(&memory);
        }
    }

    /// Takes notes of a ledger. What is none becomes a record.
    pub(super) fn note_all(&mut self, segment: SegmentId, notes: Vec<Entry>, now: Moment) {
        let Some(memory) = self.memory_of(segment) else {
            return;
        };
        self.members.advance(&memory);
        let (mut learned, mut others) = (Vec::new(), Vec::new());
        for entry in notes {
            if !self.take_note(segment, &memory, &entry, &mut learned, now) {
                others.push(entry);
            }
        }
        for id in learned {
            self.spread(id);
        }
        let stream = self.segments.stream_of(segment);
        if let Some(loading) = stream.and_then(|(_, stream)| stream.loading.as_mut()) {
            loading.keep(others);
        }
    }

    /// Lets the ledger of a segment that is open now name all members, and signs it after that. Members that become known later
    /// are named in all open segments then.
    pub(super) fn name_members(&mut self, segment: SegmentId) {
        let Some(mounted) = self.segments.get(segment).filter(|of| keeps_pace(of)) else {
            return;
        };
        let names_all = mounted.stream.as_ref().is_some_and(|of| of.names_all);
        if takes_notes(mounted) && !names_all {
            let members = self.members.iter();
            let others = members.filter(|of| !is_memory(mounted, of));
            let names = others.filter_map(|of| self.notes.find(&Subject::Member(of.clone())));
            let missing = names.filter(|&id| {
                let note = self.notes.get(id);
                note.is_some_and(|note| note.holder(segment).is_err())
            });
            let missing: Vec<_> = missing.collect();
            for id in missing {
                let offset = self.notes.next_offset();
                self.hold(id, segment, offset);
            }
        }
        let is_young = self.members.is_young();
        if !is_young {
            self.sign(segment);
        }
        if let Some((_, stream)) = self.segments.stream_of(segment) {
            // With a full ledger again later.
            stream.names_all = stream.full == 0;
            stream.is_signed = stream.full == 0 && !is_young;
        }
    }

    /// Lets the ledger of a segment name its own memory: all other members that are known are named there.
    fn sign(&mut self, segment: SegmentId) {
        let Some(mounted) = self.segments.get(segment) else {
            return;
        };
        let id = self.notes.find(&Subject::Member(memory(mounted)));
        let note = id.and_then(|id| Some((id, self.notes.get(id)?)));
        if let Some((id, note)) = note
            && note.holder(segment).is_err()
        {
            let offset = self.notes.next_offset();
            self.hold(id, segment, offset);
        }
    }

    /// Tombstones stay at least until all changes up to now are acknowledged.
    pub(super) fn mark(&mut self) {
        self.segments
            .each_stream(|stream| stream.mark = stream.last());
    }

    /// Takes a note of a ledger. Returns false for anything else, and for a second note of the same subject.
    fn take_note(
        &mut self,
        segment: SegmentId,
        own: &Memory,
        entry: &Entry,
        learned: &mut Vec<NoteId>,
        now: Moment,
    ) -> bool {
        let Some(subject) = subject_of(entry) else {
            return false;
        };
        self.notes.used_offset(entry.offset);
        let mut is_new = false;
        match &subject {
            Subject::Member(memory) => {
                if memory == own
                    && let Some((_, stream)) = self.segments.stream_of(segment)
                    && let Some(loading) = &mut stream.loading
                {
                    // Counts when all notes of the ledger are taken.
                    loading.is_signed = true;
                }
                is_new = self.learn(memory);
                if !self.members.is_known(memory) {
                    return false;
                }
            }
            Subject::Removed(key) => self.bury(key, entry.version, now),
        }
        let bytes = subject.bytes();
        let id = self.note(subject, entry.version);
        if is_new {
            learned.push(id);
        }
        let Some(note) = self.notes.get_mut(id) else {
            return false;
        };
        if note.holder(segment).is_ok() {
            return false;
        }
        note.add_holder(Holder {
            segment,
            offset: entry.offset,
            version: entry.version,
            held: true,
        });
        if let Some((_, stream)) = self.segments.stream_of(segment) {
            stream.note_bytes += bytes;
        }
        true
    }

    /// Removes what a tombstone covers and an earlier ledger has brought.
    fn bury(&mut self, key: &str, version: Version, now: Moment) {
        let Some(id) = self.find(key) else {
            return;
        };
        let (object, dead) = (&self.objects[id], self.age(version));
        if self.age(object.version) <= dead && !object.has(Flag::InPut) {
            let rest = self.objects.readers_until(id, now);
            self.drop_object(id, rest);
            self.mark();
        } else if let Some(ranges) = self.superseded.get_mut(&id) {
            let epochs = &self.epochs;
            let dead: Vec<_> = ranges
                .extract_if(.., |range| epochs.age(range.version) <= dead)
                .collect();
            for range in dead {
                self.leave(range);
            }
            self.mark();
        }
    }

    /// The present call is answered when the dead values of the key cannot return from an owner that is away.
    fn entomb(&mut self, key: &str, version: Version, most: usize) {
        if key.len() > MOST_KEY_BYTES {
            // It is in no ledger.
            return;
        }
        let subject = Subject::Removed(key.into());
        if self.notes.removed() >= most && self.notes.find(&subject).is_none() {
            self.counters.missing_tombstones += 1;
            let age = self.age(version);
            if most == MOST_OF_PUTS {
                self.unnoted.get_or_insert(age);
            } else if self.removed.insert(key, age) {
                self.leaving.mark();
            }
            return;
        }
        let id = self.note(subject, version);
        self.spread(id);
        let is_nowhere = self.notes.get(id).is_some_and(|of| of.holders.is_empty());
        if is_nowhere && self.is_held(id) {
            // The ledgers are full, or all owners have been away for long.
            self.counters.missing_tombstones += 1;
        }
        self.signals.waits.push(Wait(Kind::Noted(id)));
    }

    /// The same for an object that is removed now. Its ranges in the ledgers of present owners have their own waits.
    pub(in crate::index) fn entomb_removed(&mut self, id: ObjectId) {
        if self.has_absent_owner()
            && let Some(object) = self.objects.get(id)
        {
            let key = object.key.clone();
            self.entomb(&key, self.latest(), MOST);
        }
    }

    /// The same for a key that was not found. A run that has not read a ledger yet does not know who is away.
    pub(in crate::index) fn entomb_unknown(&mut self, key: &str) {
        if self.members.away() > 0 || self.members.is_young() {
            self.entomb(key, self.latest(), MOST);
        }
    }

    /// The same for the former values of an object.
    pub(super) fn entomb_replaced(&mut self, id: ObjectId) {
        if self.has_absent_owner()
            && let Some(object) = self.objects.get(id)
        {
            let Version { epoch, number } = object.version;
            let number = number.saturating_sub(1);
            let key = object.key.clone();
            self.entomb(&key, Version { epoch, number }, MOST_OF_PUTS);
        }
    }

    pub(super) fn has_absent_owner(&self) -> bool {
        self.members.away() > 0
            || self.members.is_young()
                && self.segments.iter().any(|(_, mounted)| keeps_pace(mounted))
    }

    /// Sends a note to the owners that are to have it and do not.
    fn spread(&mut self, id: NoteId) {
        let segments = &mut self.segments;
        let Some(note) = self.notes.get_mut(id) else {
            return;
        };
        note.holders
            .retain(|holder| segments.is_mounted(holder.segment));
        let own = match &note.subject {
            Subject::Removed(_) => None,
            Subject::Member(memory) => Some(memory),
        };
        let mut have = 0;
        let mut others = Vec::new();
        for (segment, mounted) in segments.iter() {
            if own.is_some_and(|own| is_memory(mounted, own)) {
                continue;
            }
            if note.holder(segment).is_ok() {
                have += usize::from(keeps_pace(mounted));
            } else if takes_notes(mounted) {
                others.push((mounted.ends, segment));
            }
        }
        let wanted = if own.is_some() { usize::MAX } else { COPIES };
        if !others.is_empty() {
            let first = self.notes.next_turn() % others.len();
            others.rotate_left(first);
            // An owner that ends soon is the last choice.
            others.sort_by_key(|(ends, _)| *ends);
        }
        others.truncate(wanted.saturating_sub(have));
        for (_, segment) in others {
            let offset = self.notes.next_offset();
            self.hold(id, segment, offset);
        }
        self.raise(id);
    }

    fn hold(&mut self, id: NoteId, segment: SegmentId, offset: u64) {
        let Some(note) = self.notes.get_mut(id) else {
            return;
        };
        note.add_holder(Holder {
            segment,
            offset,
            version: note.version,
            held: false,
        });
        let (entry, bytes) = (note.entry(offset), note.subject.bytes());
        if let Some((client, stream)) = self.segments.stream_of(segment) {
            stream.note_bytes += bytes;
            stream.push(entry, Then::Holds(id));
            self.signals.owners.push(client);
        }
    }

    /// Replaces the note of holders that have an earlier version.
    fn raise(&mut self, id: NoteId) {
        let Some(note) = self.notes.get_mut(id) else {
            return;
        };
        for at in 0..note.holders.len() {
            if note.holders[at].version >= note.version {
                continue;
            }
            let entry = note.entry(note.holders[at].offset);
            let holder = &mut note.holders[at];
            if let Some((client, stream)) = self.segments.stream_of(holder.segment) {
                holder.version = entry.version;
                holder.held = false;
                stream.push(entry, Then::Holds(id));
                self.signals.owners.push(client);
            }
        }
    }

    /// Notes that an owner has a note, or that its ledger has no space for it.
    pub(super) fn note_held(
        &mut self,
        id: NoteId,
        segment: SegmentId,
        version: Version,
        full: bool,
    ) {
        let Some(note) = self.notes.get_mut(id) else {
            return;
        };
        let at = note.holder(segment).ok();
        let Some(at) = at.filter(|at| note.holders[*at].version == version) else {
            return;
        };
        if !full {
            note.holders[at].held = true;
            return;
        }
        let holder = note.holders.remove(at);
        let bytes = note.subject.bytes();
        if let Some((_, stream)) = self.segments.stream_of(segment) {
            stream.names_all = false;
        }
        self.send_note_removal(&holder, bytes);
        self.spread(id);
    }

    fn send_note_removal(&mut self, holder: &Holder, bytes: u64) {
        if let Some((client, stream)) = self.segments.stream_of(holder.segment) {
            stream.note_bytes = stream.note_bytes.saturating_sub(bytes);
            let entry = Entry {
                offset: holder.offset,
                version: holder.version,
                stored: None,
            };
            stream.push(entry, Then::Nothing);
            self.signals.owners.push(client);
        }
    }

    fn drop_note(&mut self, id: NoteId) {
        if let Some(note) = self.notes.remove(id) {
            for holder in &note.holders {
                self.send_note_removal(holder, note.subject.bytes());
            }
            self.signals.progress = true;
        }
    }

    /// Returns whether enough owners have a note: two, or all if there are fewer.
    pub(super) fn is_held(&self, id: NoteId) -> bool {
        let Some(note) = self.notes.get(id) else {
            // No owner is away any more.
            return true;
        };
        let own = match &note.subject {
            Subject::Removed(_) => None,
            Subject::Member(memory) => Some(memory),
        };
        let is_own = |of: &Mounted| own.is_some_and(|own| is_memory(of, own));
        let held = note.holders.iter().filter(|holder| {
            let mounted = self.segments.get(holder.segment);
            let is_new = holder.held && holder.version == note.version;
            is_new && mounted.is_some_and(|of| of.stream.is_some() && !is_own(of))
        });
        let held = held.take(COPIES).count();
        if held >= COPIES {
            return true;
        }
        let (mut paces, mut takes) = (0, 0);
        for (segment, mounted) in self.segments.iter() {
            if !keeps_pace(mounted) || is_own(mounted) {
                continue;
            }
            paces += 1;
            let has = note.holder(segment).is_ok();
            takes += usize::from(has || takes_notes(mounted));
        }
        if paces == 0 && own.is_none() {
            return held > 0 || !self.members.may_come();
        }
        held >= takes.min(COPIES)
    }

    /// The present call, which has completed a replica in a segment, is answered when other ledgers name that segment.
    pub(super) fn wait_for_name(&mut self, segment: SegmentId) {
        let is_named = |mounted: &Mounted| mounted.stream.as_ref().is_none_or(|of| of.named);
        let Some(memory) = self
            .segments
            .get(segment)
            .filter(|mounted| !is_named(mounted))
            .map(memory)
        else {
            return;
        };
        match self.notes.find(&Subject::Member(memory)) {
            Some(id) if !self.is_held(id) => {
                self.signals.waits.push(Wait(Kind::Noted(id)));
            }
            _ => {
                if let Some((_, stream)) = self.segments.stream_of(segment) {
                    stream.named = true;
                }
            }
        }
    }

    /// Notes that a segment is about to be unmounted; `in_order` if its owner wants that, unless it is silent.
    pub(in crate::index) fn part(&mut self, segment: SegmentId, in_order: bool) {
        let Some(mounted) = self.segments.get(segment) else {
            return;
        };
        if let Some(stream) = &mounted.stream {
            let ended = in_order && stream.is_polled();
            self.members.leave(&memory(mounted), segment, ended);
            self.notes.scan_again();
        }
    }

    /// Looks for members that do not come back, and for ledgers that need not wait any longer.
    pub(super) fn look_at_members(&mut self) {
        let before = self.members.away() > 0 || self.members.is_young();
        for memory in self.members.look() {
            if let Some(id) = self.notes.find(&Subject::Member(memory)) {
                self.drop_note(id);
            }
        }
        let paces = self
            .segments
            .iter()
            .filter(|(_, of)| keeps_pace(of))
            .count();
        if std::mem::replace(&mut self.paces, paces) != paces {
            self.notes.scan_again();
            self.signals.progress = true;
        }
        let is_young = self.members.is_young();
        let misses_names = |mounted: &Mounted| {
            let stream = mounted.stream.as_ref();
            let stream = stream.filter(|of| of.is_open() && of.full == 0);
            stream.is_some_and(|of| !of.names_all || !of.is_signed && !is_young)
        };
        let open = self.segments.iter().filter(|(_, of)| misses_names(of));
        let open: Vec<_> = open.map(|(segment, _)| segment).collect();
        for segment in open {
            self.name_members(segment);
        }
        let after = self.members.away() > 0 || self.members.is_young();
        self.signals.progress |= before && !after;
        self.look_at_awaited();
    }

    /// Looks at some notes: those whose owner was unmounted get another one, and tombstones that nothing needs are removed.
    /// Returns whether more work waits.
    pub(in crate::index) fn tend_notes(&mut self) -> bool {
        if self.notes.removed() > 0 && self.is_settled() {
            for id in self.notes.some_removed(STEPS) {
                self.drop_note(id);
            }
            return self.notes.removed() > 0;
        }
        // Each is a look at all segments.
        let most = STEP_LOOKS / self.segments.len().max(1);
        for id in self.notes.next_scan(most.clamp(1, STEPS)) {
            self.spread(id);
        }
        !self.notes.is_scanned()
    }

    /// Returns whether no ledger can have a dead record: all are loaded, and what they lost by that is acknowledged.
    fn is_settled(&self) -> bool {
        let settled = |mounted: &Mounted| {
            let stream = mounted.stream.as_ref();
            stream.is_none_or(|stream| stream.is_loaded() && stream.acknowledged >= stream.mark)
        };
        self.members.away() == 0
            && !self.members.is_young()
            && self.segments.iter().all(|(_, mounted)| settled(mounted))
    }

    /// Returns whether all notes are in as many ledgers as they are to be, also those of ledgers that have arrived.
    #[must_use]
    pub fn are_notes_held(&self) -> bool {
        let are_read = !self.installs.is_noting() && self.notes.is_scanned();
        are_read && self.notes.ids().all(|id| self.is_held(id))
    }
}

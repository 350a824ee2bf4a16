//! What ledgers keep beside their own records: tombstones of keys, and the names of the other members. A note is a record of
//! no bytes at an offset that no segment has, so that owners of every release store and return it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proto::store::Uuid;
use proto::store::ledger::{Entry, Stored, Version};
use smallvec::SmallVec;

use super::Age;
use super::members::Memory;
use crate::index::segments::SegmentId;

/// First offset of notes.
pub(super) const BEGIN: u64 = 1 << 63;
const REMOVED: &str = "removed";
const MEMBER: &str = "member";
/// The client of a tombstone.
const NO_CLIENT: Uuid = Uuid {
    first: 0,
    second: 0,
};

/// Identifies a note in this run. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NoteId(u64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// All values of the key up to the version of the note are dead.
    Removed(Arc<str>),
    /// The memory may have records. In its own ledger: all other members that were known are named there.
    Member(Memory),
}

impl Subject {
    /// Bytes that a note takes in a ledger: cells of 64 bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let text = match self {
            Self::Removed(key) => key.len() + REMOVED.len(),
            Self::Member(memory) => memory.name.len() + MEMBER.len(),
        };
        64 * (1 + (20 + text as u64).div_ceil(63))
    }
}

/// An owner that has a note, or is to have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u64,
    pub(crate) version: Version,
    pub(crate) held: bool,
}

#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) subject: Subject,
    /// The highest one, for the ledgers, and the latest one, for this run.
    pub(crate) version: Version,
    pub(crate) age: Age,
    /// In the order of segments.
    pub(crate) holders: SmallVec<[Holder; 2]>,
}

impl Note {
    /// Returns the place of a segment among the holders: `Err` with where it belongs if it is none.
    pub(crate) fn holder(&self, segment: SegmentId) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&segment, |of| of.segment)
    }

    pub(crate) fn add_holder(&mut self, holder: Holder) {
        if let Err(at) = self.holder(holder.segment) {
            self.holders.insert(at, holder);
        }
    }

    pub(crate) fn entry(&self, offset: u64) -> Entry {
        let (key, client, kind) = match &self.subject {
            Subject::Removed(key) => (key.to_string(), NO_CLIENT, REMOVED),
            Subject::Member(memory) => (memory.name.to_string(), memory.client, MEMBER),
        };
        let stored = Stored {
            key,
            length: 0,
            client,
            group: Some(kind.into()),
            checksum: None,
            soft_pin_ms: 0,
            hard_pin: false,
        };
        Entry {
            offset,
            version: self.version,
            stored: Some(stored),
        }
    }
}

/// Returns what an entry of a ledger notes; `None` if it is a record, or of an unknown kind.
pub(crate) fn subject_of(entry: &Entry) -> Option<Subject> {
    let stored = entry.stored.as_ref()?;
    if entry.offset < BEGIN || stored.length != 0 {
        return None;
    }
    match stored.group.as_deref()? {
        REMOVED => Some(Subject::Removed(stored.key.as_str().into())),
        MEMBER => Some(Subject::Member(Memory {
            client: stored.client,
            name: stored.key.as_str().into(),
        })),
        _ => None,
    }
}

/// All notes that this run knows.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    last: u64,
    last_offset: u64,
    of: BTreeMap<NoteId, Note>,
    ids: HashMap<Subject, NoteId>,
    removed: usize,
    /// The next note whose holders are looked at.
    scan: Option<NoteId>,
    /// Turns with each note, so that all owners get some.
    turn: usize,
}

impl Notes {
    pub(crate) fn get(&self, id: NoteId) -> Option<&Note> {
        self.of.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: NoteId) -> Option<&mut Note> {
        self.of.get_mut(&id)
    }

    pub(crate) fn find(&self, subject: &Subject) -> Option<NoteId> {
        self.ids.get(subject).copied()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NoteId> {
        self.of.keys().copied()
    }

    /// Returns the number of tombstones.
    pub(crate) fn removed(&self) -> usize {
        self.removed
    }

    /// Returns whether this version of the key is dead.
    pub(crate) fn covers(&self, key: &str, age: Age) -> bool {
        if self.removed == 0 {
            return false;
        }
        let id = self.find(&Subject::Removed(key.into()));
        let note = id.and_then(|id| self.get(id));
        note.is_some_and(|note| age <= note.age)
    }

    /// Adds a note, or raises the version of the one with the same subject.
    pub(crate) fn insert(&mut self, subject: Subject, version: Version, age: Age) -> NoteId {
        if let Some(&id) = self.ids.get(&subject) {
            if let Some(note) = self.of.get_mut(&id) {
                note.version = note.version.max(version);
                note.age = note.age.max(age);
            }
            return id;
        }
        self.last += 1;
        let id = NoteId(self.last);
        self.removed += usize::from(matches!(subject, Subject::Removed(_)));
        self.ids.insert(subject.clone(), id);
        let note = Note {
            subject,
            version,
            age,
            holders: SmallVec::new(),
        };
        self.of.insert(id, note);
        id
    }

    pub(crate) fn remove(&mut self, id: NoteId) -> Option<Note> {
        let note = self.of.remove(&id)?;
        self.ids.remove(&note.subject);
        self.removed -= usize::from(matches!(note.subject, Subject::Removed(_)));
        Some(note)
    }

    /// Returns an offset that no note has in any ledger that was read.
    pub(crate) fn next_offset(&mut self) -> u64 {
        self.last_offset = self.last_offset.max(BEGIN) + 1;
        self.last_offset
    }

    /// Notes an offset that is used.
    pub(crate) fn used_offset(&mut self, offset: u64) {
        // No run uses half of them.
        if offset < u64::MAX - (BEGIN >> 1) {
            self.last_offset = self.last_offset.max(offset);
        }
    }

    pub(crate) fn next_turn(&mut self) -> usize {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    /// Looks at the holders of all notes again, in steps.
    pub(crate) fn scan_again(&mut self) {
        self.scan = Some(NoteId(0));
    }

    pub(crate) fn is_scanned(&self) -> bool {
        self.scan.is_none()
    }

    /// Returns the next notes to be looked at.
    pub(crate) fn next_scan(&mut self, most: usize) -> Vec<NoteId> {
        let Some(from) = self.scan else {
            return Vec::new();
        };
        let ids: Vec<_> = self
            .of
            .range(from..)
            .take(most)
            .map(|(&id, _)| id)
            .collect();
        let last = ids.last().filter(|_| ids.len() == most);
        self.scan = last.map(|last| NoteId(last.0 + 1));
        ids
    }

    /// Returns some tombstones.
    pub(crate) fn some_removed(&self, most: usize) -> Vec<NoteId> {
        let removed = self.of.iter();
        let removed = removed.filter(|(_, note)| matches!(note.subject, Subject::Removed(_)));
        removed.take(most).map(|(&id, _)| id).collect()
    }
}

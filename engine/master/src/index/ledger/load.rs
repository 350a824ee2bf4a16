//! Takes the ledger of a segment in parts. When all have arrived, its notes are taken in steps; then it waits until it is
//! installed.

use std::collections::VecDeque;
use std::vec;

use proto::store::ledger::Entry;
use proto::store::{ErrorCode, Uuid};

use super::notes::BEGIN;
use crate::index::segments::SegmentId;
use crate::index::{Index, Moment};

/// Most records of one segment.
const MOST_RECORDS: usize = 1 << 24;

/// Entries of a ledger, as they came.
pub(super) type Part = vec::IntoIter<Entry>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Arriving,
    /// All has arrived, and its notes are taken.
    Noting,
    /// It waits for the notes of other ledgers.
    Waiting,
    /// Its records become objects.
    Installing,
}

/// A ledger that is not installed yet.
#[derive(Debug, Default)]
pub(super) struct Loading {
    pub(super) stage: Stage,
    /// Entries that have arrived, without notes that were taken.
    pub(super) entries: usize,
    pub(super) records: Vec<Part>,
    pub(super) notes: VecDeque<Part>,
    /// Its notes name its own memory: all others that were known are named there.
    pub(super) is_signed: bool,
}

impl Loading {
    fn add(&mut self, mut entries: Vec<Entry>) {
        let notes: Vec<_> = entries
            .extract_if(.., |entry| entry.offset >= BEGIN)
            .collect();
        self.entries += notes.len();
        if !notes.is_empty() {
            self.notes.push_back(notes.into_iter());
        }
        self.keep(entries);
    }

    pub(super) fn keep(&mut self, records: Vec<Entry>) {
        self.entries += records.len();
        if !records.is_empty() {
            self.records.push(records.into_iter());
        }
    }

    /// All that has arrived.
    pub(super) fn into_parts(self) -> impl Iterator<Item = Part> {
        self.records.into_iter().chain(self.notes)
    }
}

impl Index {
    /// Takes a part of a ledger. `sent` is the number of entries before it; a load begins again with 0. After the last part
    /// [`Self::step`] installs it: then the objects can be found, and new ones are placed in the segment.
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
        let loading = stream.loading.as_mut();
        let Some(loading) = loading.filter(|of| of.stage == Stage::Arriving) else {
            return Ok(());
        };
        let former = (sent == 0).then(|| std::mem::take(loading));
        let before = loading.entries;
        let fits = before as u64 == sent && before + entries.len() <= MOST_RECORDS;
        if fits {
            loading.add(entries);
        }
        if fits && last {
            loading.stage = Stage::Noting;
        }
        self.installs.discard(former);
        if !fits {
            return Err(ErrorCode::InvalidParams);
        }
        self.advance(id);
        if last {
            self.installs.note(id);
            // A small one is installed at once.
            self.install_some(now);
        }
        Ok(())
    }

    /// Takes some notes of a ledger that has arrived.
    pub(super) fn take_notes(&mut self, now: Moment) {
        let Some(segment) = self.installs.noted() else {
            return;
        };
        let most = self.installs.step();
        let stream = self.segments.stream_of(segment);
        let Some(loading) = stream.and_then(|(_, stream)| stream.loading.as_mut()) else {
            // It was unmounted meanwhile.
            return self.installs.end_notes();
        };
        let mut notes = Vec::new();
        while notes.len() < most
            && let Some(mut part) = loading.notes.pop_front()
        {
            notes.extend(part.by_ref().take(most - notes.len()));
            if part.len() > 0 {
                loading.notes.push_front(part);
            }
        }
        loading.entries -= notes.len();
        let is_last = loading.notes.is_empty();
        self.note_all(segment, notes, now);
        if is_last {
            self.installs.end_notes();
            self.arrive(segment);
        }
    }

    /// The notes of a ledger were taken: it waits for those of others, unless nothing in it can be dead.
    fn arrive(&mut self, segment: SegmentId) {
        let Some(memory) = self.memory_of(segment) else {
            return;
        };
        let stream = self.segments.stream_of(segment);
        let Some(loading) = stream.and_then(|(_, stream)| stream.loading.as_mut()) else {
            return;
        };
        loading.stage = Stage::Waiting;
        let is_empty = loading.entries == 0;
        if loading.is_signed {
            self.members.sign();
        }
        self.members.arrive(&memory, segment);
        if is_empty {
            self.installed(segment);
        }
        self.notes.scan_again();
    }
}

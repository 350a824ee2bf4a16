//! Removals of many keys at once. Ledgers that come later in the run may still have such keys.

use std::collections::HashSet;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::members::Memory;
use super::tombstones::memory;
use super::{Age, Kind, Stream, Wait};
use crate::index::segments::SegmentId;
use crate::index::{Index, Scope};

/// Removals that are kept at a time. Each is applied to every record of a ledger that comes.
const MOST: usize = 16;
/// Bytes of the program of a pattern that is kept, and the same again for its states.
const MOST_PATTERN_BYTES: usize = 512 << 10;

/// The keys that one call removes.
#[derive(Debug, Clone)]
pub(crate) enum Keys {
    All,
    Of(Scope),
    Matching(Scope, Regex),
}

impl Keys {
    pub(crate) fn contain(&self, stored: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(scope) => scope.plain(stored).is_some(),
            Self::Matching(scope, pattern) => {
                scope.plain(stored).is_some_and(|key| pattern.is_match(key))
            }
        }
    }

    /// Returns whether these are all keys of the other ones, as far as that is known.
    fn include(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Of(scope), Self::Of(of) | Self::Matching(of, _)) => {
                scope.prefix() == of.prefix()
            }
            (Self::Matching(scope, pattern), Self::Matching(of, other)) => {
                scope.prefix() == of.prefix() && pattern.as_str() == other.as_str()
            }
            _ => false,
        }
    }

    /// Returns the keys in a form of bounded size; `None` if there is none.
    fn bounded(self) -> Option<Self> {
        match self {
            Self::Matching(scope, pattern) => {
                let small = RegexBuilder::new(pattern.as_str())
                    .size_limit(MOST_PATTERN_BYTES)
                    .dfa_size_limit(MOST_PATTERN_BYTES)
                    .build();
                Some(Self::Matching(scope, small.ok()?))
            }
            keys => Some(keys),
        }
    }
}

/// A removal that ledgers which come later do not know.
#[derive(Debug)]
struct Bulk {
    keys: Arc<Keys>,
    latest: Age,
    /// Memories whose ledgers were read. The removal itself has chosen among their objects.
    read: HashSet<Memory>,
}

/// The removals that a ledger has missed.
#[derive(Debug)]
pub(super) struct Missed(Vec<(Arc<Keys>, Age)>);

impl Missed {
    /// Returns whether a record was removed. A record of an object that the index has is none: the removal has left it.
    pub(super) fn contain(&self, key: &str, age: Age) -> bool {
        let Self(missed) = self;
        missed
            .iter()
            .any(|(keys, latest)| age <= *latest && keys.contain(key))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Bulks(Vec<Bulk>);

impl Index {
    /// Keeps a removal for the ledgers that are still to come. If that is not possible, the present call is answered when none
    /// is to come any more.
    pub(in crate::index) fn keep_removal(&mut self, keys: Keys) {
        if !self.is_ledger_awaited() {
            return;
        }
        // Whatever has not been read since an earlier removal was not read now either.
        self.bulks.0.retain(|earlier| !keys.include(&earlier.keys));
        let kept = keys.bounded().filter(|_| self.bulks.0.len() < MOST);
        let Some(keys) = kept.map(Arc::new) else {
            return self.signals.waits.push(Wait(Kind::AllRead));
        };
        let mounted = self.segments.iter().map(|(_, mounted)| mounted);
        let read = mounted.filter(|of| of.stream.as_ref().is_some_and(Stream::is_loaded));
        let bulk = Bulk {
            keys,
            latest: self.age(self.latest()),
            read: read.map(memory).collect(),
        };
        self.bulks.0.push(bulk);
    }

    /// Returns whether a ledger that this run has not read may come.
    pub(super) fn is_ledger_awaited(&self) -> bool {
        self.members.away() > 0 || self.members.is_young() || self.segments.is_loading()
    }

    /// Returns the removals that the ledger of a segment has missed, also those that have begun since a part of it is installed.
    pub(super) fn missed_removals(&self, segment: SegmentId) -> Missed {
        let Some(memory) = self.segments.get(segment).map(memory) else {
            return Missed(Vec::new());
        };
        let bulks = self.bulks.0.iter();
        let missed = bulks.filter(|bulk| !bulk.read.contains(&memory));
        Missed(
            missed
                .map(|bulk| (Arc::clone(&bulk.keys), bulk.latest))
                .collect(),
        )
    }

    /// Notes that the ledger of a memory is installed: it misses no removal any more.
    pub(super) fn note_read(&mut self, memory: &Memory) {
        for bulk in &mut self.bulks.0 {
            bulk.read.insert(memory.clone());
        }
    }

    /// Forgets the kept removals when no ledger can come any more.
    pub(super) fn look_at_awaited(&mut self) {
        if !self.bulks.0.is_empty() && !self.is_ledger_awaited() {
            self.bulks.0.clear();
            self.signals.progress = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_replaces_earlier_ones_of_its_keys_only() {
        let scope = |tenant| Scope::of(tenant);
        let pattern = |of, text| Keys::Matching(scope(of), Regex::new(text).unwrap());
        let all = [
            Keys::All,
            Keys::Of(scope("a")),
            pattern("a", "x"),
            pattern("a", "y"),
            Keys::Of(scope("b")),
            pattern("b", "x"),
        ];
        let included = |of: &Keys| {
            all.iter()
                .map(|other| of.include(other))
                .collect::<Vec<_>>()
        };
        assert_eq!(included(&all[0]), [true; 6]);
        assert_eq!(included(&all[1]), [false, true, true, true, false, false]);
        assert_eq!(included(&all[2]), [false, false, true, false, false, false]);
        assert!(pattern("a", "x").bounded().is_some());
        assert!(pattern("a", r"\w{100}").bounded().is_none());
    }
}

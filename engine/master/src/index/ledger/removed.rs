//! Values that this run has removed, replaced or evicted: a ledger that is loaded later may still have them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::Age;

/// Keys of one part. There are two, so that at least as many are remembered.
const MOST: usize = 1 << 17;

/// The latest dead version, by the hash of the key.
#[derive(Debug, Default)]
struct Part {
    versions: HashMap<u64, Age>,
    latest: Option<Age>,
}

/// Dead values of the last calls, and of those before.
#[derive(Debug, Default)]
struct Parts {
    recent: Part,
    earlier: Part,
    /// What is not later may be dead: it is not known any more.
    lost: Option<Age>,
}

impl Parts {
    /// Returns whether a new part begins with this value.
    fn insert(&mut self, hash: u64, version: Age) -> bool {
        let is_full = self.recent.versions.len() >= MOST;
        if is_full {
            self.lost = self.lost.max(self.earlier.latest);
            self.earlier = std::mem::take(&mut self.recent);
        }
        let latest = self.recent.versions.entry(hash).or_default();
        *latest = version.max(*latest);
        self.recent.latest = self.recent.latest.max(Some(version));
        is_full
    }

    fn contains(&self, hash: u64, version: Age) -> bool {
        let parts = [&self.recent, &self.earlier];
        parts.iter().any(|part| {
            let latest = part.versions.get(&hash);
            latest.is_some_and(|latest| version <= *latest)
        })
    }

    fn has_lost(&self, version: Age) -> bool {
        Some(version) <= self.lost
    }
}

/// Whose ledger brings a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// This run has read the ledger before.
    Read,
    /// It has not. What is not later than this may be dead: it was forgotten before the run knew the owner.
    Unread(Option<Age>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Lives,
    Dead,
    /// It may be dead, and is discarded.
    Lost,
}

#[derive(Debug, Default)]
pub(crate) struct Removed {
    hasher: RandomState,
    removed: Parts,
    /// Values before an evicted one, which only ledgers that were not read can have.
    evicted: Parts,
    /// The latest dead value that no known owner has any more, but others may have.
    forgotten: Option<Age>,
}

impl Removed {
    /// Notes that this version of the key and earlier ones are dead. Returns whether a new part begins with it.
    #[must_use]
    pub(crate) fn insert(&mut self, key: &str, version: Age) -> bool {
        let hash = self.hasher.hash_one(key);
        self.removed.insert(hash, version)
    }

    /// The same for what only ledgers can have that were not read.
    pub(crate) fn insert_unread(&mut self, key: &str, version: Age) {
        let hash = self.hasher.hash_one(key);
        let _begins = self.evicted.insert(hash, version);
    }

    /// Notes that a value is dead which no known owner has.
    pub(crate) fn forget(&mut self, version: Age) {
        self.forgotten = self.forgotten.max(Some(version));
    }

    pub(crate) fn forgotten(&self) -> Option<Age> {
        self.forgotten
    }

    pub(crate) fn has_earlier(&self) -> bool {
        self.removed.earlier.latest.is_some()
    }

    /// Forgets the values before the present part: no known owner has them.
    pub(crate) fn forget_earlier(&mut self) {
        let Parts { earlier, lost, .. } = &mut self.removed;
        let earlier = std::mem::take(earlier);
        self.forgotten = self.forgotten.max(earlier.latest).max(lost.take());
    }

    /// Notes that all known ledgers were read.
    pub(crate) fn all_read(&mut self) {
        self.evicted = Parts::default();
    }

    /// Returns whether this version of the key may have been removed.
    pub(crate) fn contains(&self, key: &str, version: Age) -> bool {
        self.of(key, version, Source::Read) != Verdict::Lives
    }

    /// Returns what is known about a value of a ledger.
    pub(crate) fn of(&self, key: &str, version: Age, source: Source) -> Verdict {
        let hash = self.hasher.hash_one(key);
        let (evicted, is_forgotten) = match source {
            Source::Read => (None, false),
            Source::Unread(forgotten) => (Some(&self.evicted), Some(version) <= forgotten),
        };
        let all = || std::iter::once(&self.removed).chain(evicted);
        if all().any(|parts| parts.contains(hash, version)) {
            Verdict::Dead
        } else if is_forgotten || all().any(|parts| parts.has_lost(version)) {
            Verdict::Lost
        } else {
            Verdict::Lives
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::store::ledger::Version;

    use super::super::Epochs;
    use super::*;

    fn version(number: u64) -> Age {
        Epochs::begin(1).age(Version { epoch: 1, number })
    }

    fn fill(removed: &mut Removed, numbers: std::ops::Range<u64>) -> usize {
        let begins = |number: &u64| removed.insert(&number.to_string(), version(*number));
        numbers.filter(begins).count()
    }

    #[test]
    fn earlier_versions_are_removed() {
        let mut removed = Removed::default();
        assert!(!removed.insert("a", version(5)));
        assert!(!removed.insert("a", version(4)));
        assert!(removed.contains("a", version(5)) && !removed.contains("a", version(6)));
        assert!(!removed.contains("b", version(1)));
    }

    #[test]
    fn with_too_many_keys_those_up_to_the_last_forgotten_one_are_removed() {
        let most = MOST as u64;
        let mut removed = Removed::default();
        assert_eq!(fill(&mut removed, 1..2 * most + 1), 1);
        assert!(!removed.contains("other", version(1)));
        assert_eq!(fill(&mut removed, 2 * most + 1..2 * most + 2), 1);
        assert_eq!(
            removed.of("other", version(most), Source::Read),
            Verdict::Lost
        );
        assert!(!removed.contains("other", version(most + 1)));
        assert!(removed.contains(&(most + 1).to_string(), version(1)));
        // No owner has them any more, but one that was not known may have.
        removed.forget_earlier();
        assert!(!removed.contains("other", version(1)) && !removed.has_earlier());
        let known = Source::Unread(None);
        let other = Source::Unread(removed.forgotten());
        assert_eq!(removed.of("other", version(1), known), Verdict::Lives);
        assert_eq!(removed.of("other", version(2 * most), other), Verdict::Lost);
        let later = removed.of("other", version(2 * most + 1), other);
        assert_eq!(later, Verdict::Lives);
    }

    #[test]
    fn values_before_evicted_ones_concern_ledgers_that_were_not_read() {
        let mut removed = Removed::default();
        removed.insert_unread("a", version(5));
        let of = |removed: &Removed, source| removed.of("a", version(5), source);
        assert_eq!(of(&removed, Source::Read), Verdict::Lives);
        assert_eq!(of(&removed, Source::Unread(None)), Verdict::Dead);
        removed.all_read();
        assert_eq!(of(&removed, Source::Unread(None)), Verdict::Lives);
    }
}

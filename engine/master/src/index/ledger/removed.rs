//! Values that this run has removed or replaced: a ledger that is loaded later may still have them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::Age;

/// Keys that are remembered. After more, values of unknown keys in ledgers that come later are discarded.
const MOST: usize = 1 << 17;

#[derive(Debug, Default)]
pub(crate) struct Removed {
    hasher: RandomState,
    /// The latest removed version, by the hash of the key.
    versions: HashMap<u64, Age>,
    overflowed: bool,
}

impl Removed {
    pub(crate) fn insert(&mut self, key: &str, version: Age) {
        if self.overflowed {
            return;
        }
        let latest = self.versions.entry(self.hasher.hash_one(key)).or_default();
        *latest = version.max(*latest);
        if self.versions.len() > MOST {
            self.overflowed = true;
            self.versions = HashMap::new();
        }
    }

    /// Returns whether this version of the key may have been removed.
    pub(crate) fn contains(&self, key: &str, version: Age) -> bool {
        let latest = self.versions.get(&self.hasher.hash_one(key));
        self.overflowed || latest.is_some_and(|latest| version <= *latest)
    }
}

#[cfg(test)]
mod tests {
    use proto::store::ledger::Version;

    use super::super::Epochs;
    use super::*;

    #[test]
    fn earlier_versions_are_removed_and_with_too_many_keys_all_are() {
        let version = |number| Epochs::begin(1).age(Version { epoch: 1, number });
        let mut removed = Removed::default();
        removed.insert("a", version(5));
        removed.insert("a", version(4));
        assert!(removed.contains("a", version(5)) && !removed.contains("a", version(6)));
        assert!(!removed.contains("b", version(1)));
        for number in 0..=MOST {
            removed.insert(&number.to_string(), version(1));
        }
        assert!(removed.contains("a", version(6)) && removed.contains("b", version(1)));
    }
}

//! The epochs of a run, and which of two versions is later there.

use proto::store::ledger::Version;

/// Epochs are milliseconds since 1970. One that is further ahead of the first epoch of a run than 139 years is no epoch of a
/// master: the next runs could not exceed it.
const MOST_AHEAD: u64 = 1 << 42;
/// Most epochs of a run besides the first one.
const MOST: usize = 64;
/// Two runs that begin in different milliseconds have different epochs, also if the same ledger raises both.
const SPREAD: u64 = 1 << 20;

/// The age of a value: what this run has begun is later than all that ledgers bring from other runs. The clock may have gone
/// back between them, so the numbers alone do not show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Age {
    of_this_run: bool,
    version: Version,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Epochs {
    first: u64,
    /// Ascending.
    raised: Vec<u64>,
}

impl Epochs {
    pub(crate) fn begin(first: u64) -> Self {
        Self {
            first,
            raised: Vec::new(),
        }
    }

    /// Returns the epoch of new versions.
    pub(crate) fn current(&self) -> u64 {
        self.raised.last().copied().unwrap_or(self.first)
    }

    /// Returns whether this can be the epoch of a master.
    pub(crate) fn is_plausible(&self, epoch: u64) -> bool {
        epoch <= self.first.saturating_add(MOST_AHEAD)
    }

    /// Lets new versions exceed those of an earlier run, so that the next run finds the right order too.
    pub(crate) fn exceed(&mut self, highest: u64) {
        if highest > self.current() && self.is_plausible(highest) && self.raised.len() < MOST {
            let next = highest.saturating_add(1 + self.first % SPREAD);
            self.raised.push(next);
        }
    }

    pub(crate) fn age(&self, version: Version) -> Age {
        let of_this_run = version.epoch == self.first || self.raised.contains(&version.epoch);
        Age {
            of_this_run,
            version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_begins_is_later_than_what_it_finds() {
        let version = |epoch, number| Version { epoch, number };
        let mut epochs = Epochs::begin(5);
        let early = epochs.age(version(5, 1));
        assert!(early > epochs.age(version(9, 7)));
        epochs.exceed(9);
        let next = epochs.current();
        assert!(next > 9);
        assert!(epochs.age(version(next, 2)) > early && early > epochs.age(version(9, 7)));
        assert!(epochs.age(version(9, 7)) > epochs.age(version(8, 9)));
        // Another run that the same ledger raises.
        let mut other = Epochs::begin(6);
        other.exceed(9);
        assert_ne!(other.current(), next);
    }

    #[test]
    fn no_ledger_raises_an_epoch_so_far_that_the_next_run_cannot_exceed_it() {
        let mut epochs = Epochs::begin(1_800_000_000_000);
        epochs.exceed(u64::MAX);
        assert_eq!(epochs.current(), 1_800_000_000_000);
        for _ in 0..1000 {
            epochs.exceed(epochs.current() + 1);
        }
        assert!(epochs.raised.len() == MOST);
        let mut next = Epochs::begin(1_800_000_000_001);
        next.exceed(epochs.current());
        assert!(next.current() > epochs.current());
    }
}

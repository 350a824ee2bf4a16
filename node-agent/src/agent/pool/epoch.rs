//! A data epoch: the ids and wire bases under which a pool's extents are known, all drawn from one
//! random seed so that they fit a record.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::Uuid;

/// Wire bases lie far from any mapping of a process: from 2^58 up to 2^62, at whole GiB.
const LOWEST_BASE: u64 = 1 << 58;
const HIGHEST_BASE: u64 = 1 << 62;
const ALIGNMENT: u64 = 1 << 30;

/// Numbers one epoch of a pool pod's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Epoch {
    /// Counts from 1.
    pub(crate) number: u32,
    seed: String,
}

/// How one extent is known to the master and to peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: Uuid,
    pub(crate) base: u64,
}

impl Epoch {
    /// Draws the epoch after `last`.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub(crate) fn draw(last: u32, lengths: &[u64]) -> Result<Self, getrandom::Error> {
        loop {
            let mut seed = [0; 32];
            getrandom::fill(&mut seed)?;
            let epoch = Self {
                number: last.saturating_add(1),
                seed: seed.iter().map(|byte| format!("{byte:02x}")).collect(),
            };
            if disjoint(&epoch.places(lengths.len()), lengths) {
                return Ok(epoch);
            }
        }
    }

    /// Id and wire base of each of `count` extents; the same each time.
    pub(crate) fn places(&self, count: usize) -> Vec<Place> {
        let place = |index: usize| {
            let mut hash = Sha256::new();
            hash.update(self.seed.as_bytes());
            hash.update((index as u64).to_le_bytes());
            let bytes: [u8; 32] = hash.finalize().into();
            let mut id = [0; 16];
            id.copy_from_slice(&bytes[..16]);
            let mut base = [0; 8];
            base.copy_from_slice(&bytes[16..24]);
            let slots = (HIGHEST_BASE - LOWEST_BASE) / ALIGNMENT;
            Place {
                segment: Uuid::from_random(id),
                base: LOWEST_BASE + u64::from_le_bytes(base) % slots * ALIGNMENT,
            }
        };
        (0..count).map(place).collect()
    }
}

fn disjoint(places: &[Place], lengths: &[u64]) -> bool {
    let mut ranges: Vec<(u64, u64)> = places
        .iter()
        .zip(lengths)
        .map(|(place, length)| (place.base, place.base.saturating_add(*length)))
        .collect();
    ranges.sort_unstable();
    ranges.is_sorted_by(|(_, end), (next, _)| end <= next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_far_aligned_disjoint_and_the_same_each_time() {
        let lengths = [16 << 30; 64];
        let epoch = Epoch::draw(0, &lengths).unwrap();
        let places = epoch.places(64);
        assert_eq!(places, epoch.places(64));
        assert_eq!(epoch.number, 1);
        for place in &places {
            assert!(place.base >= LOWEST_BASE && place.base < HIGHEST_BASE);
            assert_eq!(place.base % ALIGNMENT, 0);
        }
        assert!(disjoint(&places, &lengths));
        let next = Epoch::draw(epoch.number, &lengths).unwrap();
        assert_ne!(next.places(1)[0], places[0]);
        assert_eq!(next.number, 2);
    }
}

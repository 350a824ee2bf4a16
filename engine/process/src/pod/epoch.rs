//! A data epoch: segment ids and wire bases of a pool's extents. All are derived from one random seed,
//! so that they fit into a record.

use std::io;

use rustix::rand::GetRandomFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::Uuid;

/// Wire bases are multiples of 1 GiB from 2^58 to 2^62, far from any mapping of a process.
const LOWEST_BASE: u64 = 1 << 58;
const HIGHEST_BASE: u64 = 1 << 62;
const ALIGNMENT: u64 = 1 << 30;

/// One epoch of a pool pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Epoch {
    /// Counts from 1.
    pub(crate) number: u32,
    seed: String,
}

/// Segment id and wire base of one extent, as the master and peers see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireExtent {
    pub(crate) segment: Uuid,
    pub(crate) base: u64,
}

impl Epoch {
    /// Draws the epoch that follows number `last`.
    ///
    /// # Errors
    /// The operating system returns no random bytes.
    pub(crate) fn draw(last: u32, lengths: &[u64]) -> io::Result<Self> {
        loop {
            let mut seed = [0; 32];
            // Not the crate `getrandom`: in a static program it opens a file, which the sandbox refuses.
            rustix::rand::getrandom(&mut seed[..], GetRandomFlags::empty())?;
            let epoch = Self {
                number: last.saturating_add(1),
                seed: seed.iter().map(|byte| format!("{byte:02x}")).collect(),
            };
            if disjoint(&epoch.wire_extents(lengths.len()), lengths) {
                return Ok(epoch);
            }
        }
    }

    /// Derives segment id and wire base of the first `count` extents. The result is always the same.
    pub(crate) fn wire_extents(&self, count: usize) -> Vec<WireExtent> {
        let extent = |index: usize| {
            let mut hash = Sha256::new();
            hash.update(self.seed.as_bytes());
            hash.update((index as u64).to_le_bytes());
            let bytes: [u8; 32] = hash.finalize().into();
            let mut id = [0; 16];
            id.copy_from_slice(&bytes[..16]);
            let mut base = [0; 8];
            base.copy_from_slice(&bytes[16..24]);
            let slots = (HIGHEST_BASE - LOWEST_BASE) / ALIGNMENT;
            WireExtent {
                segment: Uuid::from_random(id),
                base: LOWEST_BASE + u64::from_le_bytes(base) % slots * ALIGNMENT,
            }
        };
        (0..count).map(extent).collect()
    }
}

fn disjoint(extents: &[WireExtent], lengths: &[u64]) -> bool {
    let mut ranges: Vec<(u64, u64)> = extents
        .iter()
        .zip(lengths)
        .map(|(extent, length)| (extent.base, extent.base.saturating_add(*length)))
        .collect();
    ranges.sort_unstable();
    ranges.is_sorted_by(|(_, end), (next, _)| end <= next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_extents_are_aligned_disjoint_and_reproducible() {
        let lengths = [16 << 30; 64];
        let epoch = Epoch::draw(0, &lengths).unwrap();
        let places = epoch.wire_extents(64);
        assert_eq!(places, epoch.wire_extents(64));
        assert_eq!(epoch.number, 1);
        for place in &places {
            assert!(place.base >= LOWEST_BASE && place.base < HIGHEST_BASE);
            assert_eq!(place.base % ALIGNMENT, 0);
        }
        assert!(disjoint(&places, &lengths));
        let next = Epoch::draw(epoch.number, &lengths).unwrap();
        assert_ne!(next.wire_extents(1)[0], places[0]);
        assert_eq!(next.number, 2);
    }
}

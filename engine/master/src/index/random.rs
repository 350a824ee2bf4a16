//! Numbers for placements and IDs. They are spread, not secret.

/// `SplitMix64`: the same numbers for the same seed.
#[derive(Debug, Default)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `limit`, which 0 counts as 1.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 32).unwrap_or_default() % limit.max(1)
    }
}

//! Points in time, as the caller of the index supplies them.

use std::time::Duration;

/// Microseconds since a start that the caller chose. The index has no clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// Returns the point in time `wait` later. It never overflows.
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(wait))
    }
}

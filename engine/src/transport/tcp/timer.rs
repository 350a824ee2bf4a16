//! Timers of connections: at most one per connection, checked again when it is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Instant, u64)>>);

impl Timers {
    pub(super) fn push(&mut self, due: Instant, connection: u64) {
        self.0.push(Reverse((due, connection)));
    }

    /// Takes a timer that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        let Reverse((due, _)) = self.0.peek()?;
        if *due > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, connection))| connection)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((due, _))| *due)
    }
}

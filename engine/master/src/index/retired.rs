//! Ranges that no object has any more, and that a peer may still read or write. They are used again after a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Moment;
use super::allocator::Block;
use super::segments::SegmentId;

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Moment,
    segment: SegmentId,
    block: Block,
    size: u64,
}

impl PartialEq for Rest {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Rest {}

impl PartialOrd for Rest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Retired {
    rests: BinaryHeap<Reverse<Rest>>,
    bytes: u128,
}

impl Retired {
    /// Bytes that rest, those of unmounted segments included until their time.
    pub(crate) fn bytes(&self) -> u128 {
        self.bytes
    }

    pub(crate) fn push(&mut self, segment: SegmentId, block: Block, size: u64, until: Moment) {
        self.bytes += u128::from(size);
        self.rests.push(Reverse(Rest {
            until,
            segment,
            block,
            size,
        }));
    }

    /// Returns a range whose time has come, and its size.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<(SegmentId, Block, u64)> {
        if now < self.rests.peek()?.0.until {
            return None;
        }
        let Reverse(rest) = self.rests.pop()?;
        self.bytes -= u128::from(rest.size);
        Some((rest.segment, rest.block, rest.size))
    }
}

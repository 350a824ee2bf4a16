//! The heartbeat of a data thread: which turn it is in and at what stage, published without locks and system calls.

use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What a data thread does, in the order of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ThreadStage {
    /// Waiting for commands, descriptors and deadlines.
    Sleeping,
    /// Carrying out commands.
    Commands,
    /// Doing the work of descriptors that are ready.
    Descriptors,
    /// In the transport's work that no descriptor signals.
    Progress,
    /// Scheduling transfers.
    Transfers,
    /// Starting accepted requests.
    Flush,
    /// Ending the removal of regions and endpoints.
    Removals,
}

impl ThreadStage {
    const ALL: [Self; 7] = [
        Self::Sleeping,
        Self::Commands,
        Self::Descriptors,
        Self::Progress,
        Self::Transfers,
        Self::Flush,
        Self::Removals,
    ];
}

impl fmt::Display for ThreadStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sleeping => "waiting for events",
            Self::Commands => "commands",
            Self::Descriptors => "ready sockets",
            Self::Progress => "progress of the transport",
            Self::Transfers => "scheduling of transfers",
            Self::Flush => "start of requests",
            Self::Removals => "removal of regions and endpoints",
        })
    }
}

/// Where a data thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Number of the thread, as in its name.
    pub number: usize,
    /// Kernel thread ID in the PID namespace of this process; 0 before the first turn.
    pub tid: i32,
    /// Number of the turn, from 1. A turn begins when the thread goes to sleep.
    pub turn: u64,
    /// The stage in this turn.
    pub stage: ThreadStage,
}

/// What one data thread publishes.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    tid: AtomicI32,
    /// Turn and stage in one word: a reader never combines the stage of one turn with the number of another.
    place: AtomicU64,
}

/// Bits of the stage in [`Heartbeat::place`].
const STAGE_BITS: u32 = 8;

impl Heartbeat {
    /// Publishes the ID of the calling thread.
    pub(crate) fn start(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Publishes the place of the calling thread. A relaxed store: a reader only compares places that are seconds apart.
    pub(crate) fn enter(&self, turn: u64, stage: ThreadStage) {
        let place = (turn << STAGE_BITS) | stage as u64;
        self.place.store(place, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, number: usize) -> ThreadSnapshot {
        let place = self.place.load(Ordering::Relaxed);
        let mask = (1 << STAGE_BITS) - 1;
        let mut stages = ThreadStage::ALL.into_iter();
        let stage = stages.find(|of| *of as u64 == place & mask);
        ThreadSnapshot {
            number,
            tid: self.tid.load(Ordering::Relaxed),
            turn: place >> STAGE_BITS,
            stage: stage.unwrap_or(ThreadStage::Sleeping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_turn_and_stage_as_they_were_published() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.snapshot(0).turn, 0);
        for (turn, stage) in (1..).zip(ThreadStage::ALL) {
            heartbeat.enter(turn << 40, stage);
            let seen = heartbeat.snapshot(3);
            assert_eq!((seen.number, seen.turn, seen.stage), (3, turn << 40, stage));
        }
    }
}

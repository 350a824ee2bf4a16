//! Finds data threads that are silent: in the same turn for too long. Pure.

use std::time::{Duration, Instant};

use engine::ThreadSnapshot;

use super::message::SilentThread;

/// A thread that is in one turn for so long is silent. Each look wakes the threads that sleep, so also one without work
/// begins a turn. No turn comes near this bound: it moves at most 256 KiB of each of 128 sockets, through at most one
/// page fault per 4 KiB page, which the pool process has touched before; a worker thread registers memory with devices; and control
/// tasks unmap it.
const SILENCE: Duration = Duration::from_secs(5);

/// Most threads that are reported.
const REPORTED: usize = 16;

/// The turns of the data threads, and since when each is known.
#[derive(Debug, Default)]
pub(crate) struct Silence(Vec<(u64, Instant)>);

impl Silence {
    /// Compares snapshots with the former ones, which were of the same threads. Returns the silent ones.
    pub(crate) fn of(&mut self, snapshots: &[ThreadSnapshot], now: Instant) -> Vec<SilentThread> {
        let mut silent = Vec::new();
        for (at, snapshot) in snapshots.iter().enumerate() {
            if self.0.len() == at {
                self.0.push((snapshot.turn, now));
            }
            let (turn, since) = &mut self.0[at];
            if *turn != snapshot.turn {
                (*turn, *since) = (snapshot.turn, now);
            }
            let lasted = now.saturating_duration_since(*since);
            if lasted >= SILENCE {
                silent.push(SilentThread {
                    number: snapshot.number,
                    tid: snapshot.tid,
                    turn: snapshot.turn,
                    stage: snapshot.stage,
                    seconds: lasted.as_secs(),
                });
            }
        }
        silent.truncate(REPORTED);
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ThreadStage;

    fn threads(turns: [u64; 2]) -> Vec<ThreadSnapshot> {
        let snapshot = |(number, turn)| ThreadSnapshot {
            number,
            tid: 7,
            turn,
            stage: ThreadStage::Progress,
        };
        turns.into_iter().enumerate().map(snapshot).collect()
    }

    #[test]
    fn a_thread_in_one_turn_for_the_bound_is_silent_until_it_begins_another() {
        let mut silence = Silence::default();
        let start = Instant::now();
        let mut look = |turns, seconds| {
            let found = silence.of(&threads(turns), start + Duration::from_secs(seconds));
            let found = found.iter().map(|of| (of.number, of.turn, of.seconds));
            found.collect::<Vec<_>>()
        };
        assert_eq!(look([1, 1], 0), []);
        assert_eq!(look([2, 1], 2), []);
        assert_eq!(look([3, 1], 4), []);
        assert_eq!(look([4, 1], 6), [(1, 1, 6)]);
        assert_eq!(look([4, 1], 11), [(0, 4, 5), (1, 1, 11)]);
        assert_eq!(look([4, 2], 12), [(0, 4, 6)]);
        assert_eq!(look([5, 2], 16), []);
    }
}

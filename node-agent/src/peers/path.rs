//! State of one path to another agent, from the results of single probes. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use crds::node::Probe;

/// Probes in a row that change the state. A single failure may be a restart of the other agent.
const CONFIRMATIONS: u32 = 2;

/// Number of recent probes whose minimum is the duration of the path. Longer ones are caused by load.
const WINDOW: usize = 10;
/// Minimum duration above which a path is slow. A probe moves 16 KiB in both directions: about 1 ms, but 200 ms
/// where TCP waits for retransmissions.
pub(crate) const SLOW: Duration = Duration::from_millis(100);
/// Minimum duration below which a slow path is fast again.
const FAST: Duration = Duration::from_millis(50);

/// State of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathState {
    /// Not probed yet.
    Unknown,
    /// The bytes that were written were read back.
    Works,
    /// Probes fail; the error of the probe that changed the state.
    Broken(String),
}

/// The path to one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerPath {
    pub(crate) probe: Probe,
    pub(crate) state: PathState,
    /// Probes in a row that contradict the state.
    contradicting: u32,
    /// Duration of the last successful probe: write, read back and compare.
    pub(crate) took: Option<Duration>,
    /// Durations of the last successful probes, at most [`WINDOW`].
    recent: VecDeque<Duration>,
    /// Whether the path works but is slow.
    pub(crate) slow: bool,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

impl PeerPath {
    pub(crate) fn new(probe: Probe) -> Self {
        Self {
            probe,
            state: PathState::Unknown,
            contradicting: 0,
            took: None,
            recent: VecDeque::with_capacity(WINDOW),
            slow: false,
            succeeded: 0,
            failed: 0,
        }
    }

    /// Records a result. Returns whether the state or the slowness changed.
    pub(crate) fn record(&mut self, result: Result<Duration, String>) -> bool {
        let was_slow = self.slow;
        let (state, at_once) = match result {
            Ok(took) => {
                self.succeeded += 1;
                self.took = Some(took);
                self.update_slow(took);
                // The first success needs no confirmation.
                (PathState::Works, self.state == PathState::Unknown)
            }
            Err(why) => {
                self.failed += 1;
                (PathState::Broken(why), false)
            }
        };
        let same = std::mem::discriminant(&state) == std::mem::discriminant(&self.state);
        self.contradicting = if same { 0 } else { self.contradicting + 1 };
        let changes = !same && (at_once || self.contradicting >= CONFIRMATIONS);
        if changes {
            self.state = state;
            self.contradicting = 0;
            if matches!(self.state, PathState::Broken(_)) {
                self.recent.clear();
                self.slow = false;
            }
        }
        changes || self.slow != was_slow
    }

    /// Updates the slowness from the shortest of the last probes.
    fn update_slow(&mut self, took: Duration) {
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(took);
        let best = self.recent.iter().min().copied().unwrap_or_default();
        self.slow = if self.slow {
            best >= FAST
        } else {
            self.recent.len() == WINDOW && best > SLOW
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> PeerPath {
        PeerPath::new(Probe {
            node: "n2".to_owned(),
            address: "192.0.2.2:9465".to_owned(),
            slot: 0,
        })
    }

    fn works() -> Result<Duration, String> {
        Ok(Duration::from_millis(1))
    }

    fn fails(why: &str) -> Result<Duration, String> {
        Err(why.to_owned())
    }

    #[test]
    fn one_success_makes_a_path_work_and_one_failure_does_not_break_it() {
        let mut path = path();
        assert!(path.record(works()));
        assert!(!path.record(fails("refused")));
        assert!(!path.record(works()));
        assert!(!path.record(fails("refused")), "not in a row");
        assert_eq!(path.state, PathState::Works);
    }

    #[test]
    fn two_failures_break_a_path_and_two_successes_repair_it() {
        let mut path = path();
        path.record(works());
        path.record(fails("silence"));
        assert!(path.record(fails("refused")));
        assert_eq!(path.state, PathState::Broken("refused".to_owned()));
        assert!(!path.record(fails("another error")), "already broken");
        assert_eq!(path.state, PathState::Broken("refused".to_owned()));
        assert!(!path.record(works()));
        assert!(path.record(works()));
        assert_eq!((path.succeeded, path.failed), (3, 3));
    }

    #[test]
    fn a_path_that_never_worked_is_broken_after_two_failures() {
        let mut path = path();
        assert!(!path.record(fails("refused")));
        assert_eq!(path.state, PathState::Unknown);
        assert!(path.record(fails("refused")));
    }
    #[test]
    fn a_path_is_slow_by_the_shortest_of_ten_probes_and_fast_after_one_short_probe() {
        let mut path = path();
        let took = |milliseconds| Ok(Duration::from_millis(milliseconds));
        assert!(path.record(took(300)), "works");
        for _ in 1..WINDOW - 1 {
            assert!(!path.record(took(300)), "too few probes");
        }
        assert!(path.record(took(300)) && path.slow);
        assert!(!path.record(took(70)) && path.slow, "shorter, still slow");
        assert!(path.record(took(2)) && !path.slow);
        for _ in 0..WINDOW - 1 {
            assert!(!path.record(took(300)), "one of the last ten was fast");
        }
        assert!(path.record(took(300)) && path.slow);
    }

    #[test]
    fn a_broken_path_is_not_slow_and_starts_a_new_window() {
        let mut path = path();
        for _ in 0..WINDOW {
            path.record(Ok(Duration::from_secs(1)));
        }
        assert!(path.slow);
        path.record(fails("silence"));
        assert!(path.record(fails("silence")) && !path.slow);
        path.record(Ok(Duration::from_secs(1)));
        path.record(Ok(Duration::from_secs(1)));
        assert_eq!((path.state, path.slow), (PathState::Works, false));
    }
}

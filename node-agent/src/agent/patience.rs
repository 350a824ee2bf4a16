//! How long an agent waits before it asks an API server again that did not answer.

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use std::time::Duration;

/// Between two tries at most. kube's own half a minute is kind to the API server, but what is told of
/// a node stays wrong for as long after it is back.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// kube's waits, with their jitter, cut at [`LONGEST`].
#[derive(Default)]
pub(crate) struct Patience(DefaultBackoff);

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|wait| wait.min(LONGEST))
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_no_further_and_begin_anew() {
        let mut patience = Patience::default();
        let waits: Vec<_> = patience.by_ref().take(12).collect();
        assert!(waits[0] < LONGEST, "{waits:?}");
        assert!(waits[6..].iter().all(|wait| *wait == LONGEST), "{waits:?}");
        patience.reset();
        assert!(patience.next().is_some_and(|wait| wait < LONGEST));
    }
}

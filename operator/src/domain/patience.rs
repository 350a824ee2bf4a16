//! Since when a node's IMEX daemon runs without a place in its clique, as far as this process has
//! seen: an overfull IMEX domain shows in no object, only in what does not come.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a daemon that runs may need to register: 0.2 s was seen; all daemons of a domain that
/// start at once write the same object.
pub const REGISTERS: Duration = Duration::from_secs(10);

/// Remembers each node of each domain.
#[derive(Debug, Default)]
pub struct Patience {
    since: Mutex<HashMap<(String, String), Instant>>,
}

impl Patience {
    /// Notes what was seen now; for how long the daemon has waited, if it waits.
    pub fn note(&self, domain: &str, node: &str, waits: bool, now: Instant) -> Option<Duration> {
        let key = (domain.to_owned(), node.to_owned());
        let mut since = self
            .since
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !waits {
            since.remove(&key);
            return None;
        }
        Some(now.duration_since(*since.entry(key).or_insert(now)))
    }

    /// Forgets every other domain.
    pub fn keep(&self, domain: impl Fn(&str) -> bool) {
        self.since
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .retain(|(uid, _), _| domain(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_counted_from_its_first_sight_and_ends_with_a_place() {
        let (patience, now) = (Patience::default(), Instant::now());
        assert_eq!(patience.note("d", "n1", true, now), Some(Duration::ZERO));
        let later = now + REGISTERS;
        assert_eq!(patience.note("d", "n1", true, later), Some(REGISTERS));
        assert_eq!(patience.note("d", "n2", true, later), Some(Duration::ZERO));
        assert_eq!(patience.note("d", "n1", false, later), None);
        assert_eq!(patience.note("d", "n1", true, later), Some(Duration::ZERO));
        patience.keep(|domain| domain != "d");
        let after = later + REGISTERS;
        assert_eq!(patience.note("d", "n1", true, after), Some(Duration::ZERO));
    }
}

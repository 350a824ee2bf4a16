//! How long a node's IMEX daemon has run without an entry in its clique, as this process observed. A full
//! IMEX domain shows in no object, only in an entry that does not appear.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a running daemon may need to register. Measured: 0.2 s; all daemons of a domain that start
/// at once write the same object.
pub const REGISTRATION_LIMIT: Duration = Duration::from_secs(10);

/// First observation of each unregistered daemon, by domain and node.
#[derive(Debug, Default)]
pub struct RegistrationTimes {
    since: Mutex<HashMap<(String, String), Instant>>,
}

impl RegistrationTimes {
    /// Records the state now; returns how long the daemon has waited, if it waits.
    pub fn note(&self, domain: &str, node: &str, waits: bool, now: Instant) -> Option<Duration> {
        let key = (domain.to_owned(), node.to_owned());
        let mut since = self.since.lock();
        if !waits {
            since.remove(&key);
            return None;
        }
        Some(now.duration_since(*since.entry(key).or_insert(now)))
    }

    /// Drops all other domains.
    pub fn keep(&self, domain: impl Fn(&str) -> bool) {
        self.since.lock().retain(|(uid, _), _| domain(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_time_starts_at_first_observation_and_ends_with_registration() {
        let (registrations, now) = (RegistrationTimes::default(), Instant::now());
        assert_eq!(
            registrations.note("d", "n1", true, now),
            Some(Duration::ZERO)
        );
        let later = now + REGISTRATION_LIMIT;
        assert_eq!(
            registrations.note("d", "n1", true, later),
            Some(REGISTRATION_LIMIT)
        );
        assert_eq!(
            registrations.note("d", "n2", true, later),
            Some(Duration::ZERO)
        );
        assert_eq!(registrations.note("d", "n1", false, later), None);
        assert_eq!(
            registrations.note("d", "n1", true, later),
            Some(Duration::ZERO)
        );
        registrations.keep(|domain| domain != "d");
        let after = later + REGISTRATION_LIMIT;
        assert_eq!(
            registrations.note("d", "n1", true, after),
            Some(Duration::ZERO)
        );
    }
}

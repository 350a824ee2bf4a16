//! Why a device does not register memory: now, for the status, and what of it the log has. Attempts are repeated, each for every
//! extent. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// For how long a cause that was logged is not logged again.
const QUIET: Duration = Duration::from_secs(10 * 60);

/// Of one device.
#[derive(Debug, Default)]
pub(super) struct Failures {
    last: Option<String>,
    /// Causes that were logged, and when.
    logged: Vec<(String, Instant)>,
}

impl Failures {
    /// Sets why it has not registered all regions; `None`: it has.
    pub(super) fn set(&mut self, cause: Option<String>) {
        self.last = cause;
    }

    /// Returns why it has not registered all regions, if so.
    pub(super) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Returns whether the last cause is to be logged now. Causes may alternate.
    pub(super) fn is_to_be_logged(&mut self, now: Instant) -> bool {
        self.logged
            .retain(|(_, at)| now.duration_since(*at) < QUIET);
        let Some(last) = &self.last else { return false };
        let is_new = self.logged.iter().all(|(cause, _)| cause != last);
        if is_new {
            self.logged.push((last.clone(), now));
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_once_until_it_was_quiet_for_long_also_between_others() {
        let mut failures = Failures::default();
        let begun = Instant::now();
        assert!(!failures.is_to_be_logged(begun), "it has not failed");
        let mut at = |cause: &str, after: Duration| {
            failures.set(Some(cause.to_owned()));
            failures.is_to_be_logged(begun + after)
        };
        assert!(at("a", Duration::ZERO) && at("b", Duration::ZERO));
        let late = QUIET.checked_sub(Duration::from_secs(1)).unwrap();
        for cause in ["a", "b", "a"] {
            assert!(!at(cause, late));
        }
        assert!(at("a", QUIET) && !at("a", QUIET + late));
        failures.set(None);
        assert_eq!(failures.last(), None);
    }
}

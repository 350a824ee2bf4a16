//! Decides who leads, from the Lease as read and the time of reading. Pure: the time is an argument.
//!
//! ```text
//! Follower --(free, or seen unchanged for DURATION; written)--> Leader
//! Leader --(another holder read)--> Follower
//! Leader --(not renewed for MAY_START_WRITES)--> writes nothing, still tries to renew
//! ```

use std::time::{Duration, Instant};

use crate::lease::DURATION;

/// A leader starts no write later than this after it began its last renewal.
pub(crate) const MAY_START_WRITES: Duration = Duration::from_secs(10);

/// Content of the Lease, without its times, which are of another clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Empty: released.
    pub holder: String,
    pub transitions: i32,
    /// Resource version, which changes with each renewal.
    pub version: String,
}

/// What to do after reading the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another replica holds it.
    Wait,
    /// Create, take or renew it.
    Write { transitions: i32 },
}

/// One replica's view.
#[derive(Debug)]
pub struct Election {
    identity: String,
    /// The record last seen and when it was first seen so.
    seen: Option<(Record, Instant)>,
    renewed: Option<Instant>,
}

impl Election {
    pub fn new(identity: String) -> Self {
        Self {
            identity,
            seen: None,
            renewed: None,
        }
    }

    /// The Lease was read at `now`; `None`: there is none.
    pub fn look(&mut self, found: Option<&Record>, now: Instant) -> Step {
        let Some(found) = found else {
            self.seen = None;
            self.renewed = None;
            return Step::Write { transitions: 0 };
        };
        if found.holder == self.identity {
            return Step::Write {
                transitions: found.transitions,
            };
        }
        self.renewed = None;
        let since = match &self.seen {
            Some((record, since)) if record == found => *since,
            _ => {
                self.seen = Some((found.clone(), now));
                now
            }
        };
        if found.holder.is_empty() || now.duration_since(since) >= DURATION {
            Step::Write {
                transitions: found.transitions.saturating_add(1),
            }
        } else {
            Step::Wait
        }
    }

    /// Records that our write, started at `started`, succeeded.
    pub fn wrote(&mut self, record: &Record, started: Instant) {
        self.seen = Some((record.clone(), started));
        self.renewed = Some(started);
    }

    pub fn resigned(&mut self) {
        self.renewed = None;
    }

    /// Until when this replica may start writes; `None`: it does not lead.
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + MAY_START_WRITES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::WRITE_LIMIT;

    fn record(holder: &str, version: u64) -> Record {
        Record {
            holder: holder.to_owned(),
            transitions: 3,
            version: version.to_string(),
        }
    }

    #[test]
    fn a_free_lease_is_taken_at_once_and_kept_by_renewing() {
        let (start, mut a) = (Instant::now(), Election::new("a".to_owned()));
        assert_eq!(a.look(None, start), Step::Write { transitions: 0 });
        assert_eq!(a.leads_until(), None, "the Lease is not written yet");
        a.wrote(&record("a", 1), start);
        assert_eq!(a.leads_until(), Some(start + MAY_START_WRITES));
        let given_up = a.look(Some(&record("", 2)), start);
        assert_eq!(given_up, Step::Write { transitions: 4 });
    }

    #[test]
    fn a_held_lease_is_taken_only_after_no_renewal_for_its_duration() {
        let (start, mut b) = (Instant::now(), Election::new("b".to_owned()));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(b.look(Some(&record("a", 1)), start), Step::Wait);
        assert_eq!(b.look(Some(&record("a", 2)), after(14)), Step::Wait);
        assert_eq!(b.look(Some(&record("a", 2)), after(28)), Step::Wait);
        let took = b.look(Some(&record("a", 2)), after(29));
        assert_eq!(took, Step::Write { transitions: 4 });
    }

    #[test]
    fn a_deposed_leader_ends_its_last_write_before_another_may_begin() {
        let (start, mut a, mut b) = (
            Instant::now(),
            Election::new("a".to_owned()),
            Election::new("b".to_owned()),
        );
        a.look(None, start);
        a.wrote(&record("a", 1), start);
        // b cannot have seen a's renewal before a began it.
        assert_eq!(b.look(Some(&record("a", 1)), start), Step::Wait);
        let last_write_ends = a.leads_until().unwrap() + WRITE_LIMIT;
        assert_eq!(
            b.look(
                Some(&record("a", 1)),
                last_write_ends - Duration::from_millis(1)
            ),
            Step::Wait
        );
    }

    #[test]
    fn a_leader_that_reads_another_name_stops_at_once() {
        let (start, mut a) = (Instant::now(), Election::new("a".to_owned()));
        a.look(None, start);
        a.wrote(&record("a", 1), start);
        assert_eq!(a.look(Some(&record("b", 9)), start), Step::Wait);
        assert_eq!(a.leads_until(), None);
    }
}

//! Decides which of several masters leads, from the Lease and from what the master beside this program does. Pure: moments are
//! arguments, in time since boot.
//!
//! A master serves until [`SERVE`] after the start of the last write of the Lease that its elector knows to have succeeded. Another
//! elector takes a Lease that it has seen unchanged for [`TAKE`]. So the first master has ended when the second begins.

use std::time::Duration;

/// Period of renewals: 0.2 writes per second.
pub const RENEW: Duration = Duration::from_secs(5);
/// A master serves no longer than this after the start of the last successful write of the Lease.
pub const SERVE: Duration = Duration::from_secs(12);
/// A Lease that was unchanged for this long may be taken.
pub const TAKE: Duration = Duration::from_secs(15);
/// Wait after a write that failed.
pub const RETRY: Duration = Duration::from_secs(1);
const _: () = assert!(SERVE.as_millis() < TAKE.as_millis());

/// What the Lease holds, without its times, which are of other clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Empty: released.
    pub holder: String,
    /// Epoch of the term for which it was taken last.
    pub epoch: u64,
    /// Resource version, which grows with each write.
    pub version: u64,
}

/// The master beside this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// None is connected.
    Absent,
    /// It serves nothing.
    Waiting,
    /// It serves this epoch.
    Serving(u64),
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this moment or the next event.
    Wait(Duration),
    /// Write the Lease: held by this program, in this epoch.
    Hold { epoch: u64 },
    /// Write the Lease: held by none.
    Release,
}

/// Permission for the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub epoch: u64,
    pub until: Duration,
}

/// The view of one elector.
#[derive(Debug)]
pub struct Election {
    identity: String,
    /// The Lease as last read or written; `None`: it does not exist.
    lease: Option<Record>,
    /// Since when it is unchanged; `None`: it was not read yet.
    since: Option<Duration>,
    seat: Seat,
    /// When this program began the last successful write as holder.
    renewed: Option<Duration>,
    /// The last epoch for which this program gave a permission.
    granted: u64,
    /// No master beside this program serves at this moment or later, unless one is connected.
    served_until: Duration,
    /// No write before this moment.
    pause: Duration,
    stopping: bool,
}

impl Election {
    /// `now` is the start of this program. The one before it may have given a permission.
    pub fn new(identity: String, now: Duration) -> Self {
        Self {
            identity,
            lease: None,
            since: None,
            seat: Seat::Absent,
            renewed: None,
            granted: 0,
            served_until: now + SERVE,
            pause: Duration::ZERO,
            stopping: false,
        }
    }

    /// The Lease was read. Returns false if the result is older than what is known.
    pub fn saw(&mut self, lease: Option<Record>, now: Duration) -> bool {
        let version = |lease: &Option<Record>| lease.as_ref().map(|record| record.version);
        if let (Some(known), Some(read)) = (version(&self.lease), version(&lease))
            && read < known
        {
            return false;
        }
        if self.since.is_none() || self.lease != lease {
            self.lease = lease;
            self.since = Some(now);
        }
        true
    }

    /// The master connected, changed or left.
    pub fn sits(&mut self, seat: Seat, now: Duration) {
        match (self.seat, seat) {
            // A connection ends when nothing is served any more.
            (Seat::Waiting | Seat::Serving(_), Seat::Absent) | (_, Seat::Waiting) => {
                self.served_until = now;
                self.renewed = None;
            }
            (_, Seat::Serving(epoch)) => self.granted = self.granted.max(epoch),
            (Seat::Absent, Seat::Absent) => {}
        }
        self.seat = seat;
    }

    /// The program ends: the Lease is released as soon as the master serves nothing.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// True once nothing is left to do before the program ends.
    pub fn is_over(&self) -> bool {
        self.stopping && !self.holds()
    }

    /// Returns the version of the Lease that the next write replaces; `None`: it creates the Lease.
    pub fn version(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.version)
    }

    /// Returns the epoch in the Lease.
    pub fn epoch(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.epoch)
    }

    fn holds(&self) -> bool {
        self.lease
            .as_ref()
            .is_some_and(|lease| lease.holder == self.identity)
    }

    /// Returns what to do. `clock` is the time since 1970 in milliseconds, from which the first epoch is taken.
    pub fn step(&self, now: Duration, clock: u64) -> Step {
        let step = self.wanted(now, clock);
        match step {
            Step::Hold { .. } | Step::Release if now < self.pause => Step::Wait(self.pause),
            other => other,
        }
    }

    fn wanted(&self, now: Duration, clock: u64) -> Step {
        let idle = Step::Wait(now + RENEW);
        let Some(since) = self.since else {
            return idle;
        };
        let Some(lease) = &self.lease else {
            return match self.seat {
                Seat::Waiting if !self.stopping => Step::Hold {
                    epoch: clock.max(1),
                },
                Seat::Waiting | Seat::Absent | Seat::Serving(_) => idle,
            };
        };
        let next = Step::Hold {
            epoch: clock.max(lease.epoch.saturating_add(1)),
        };
        match self.seat {
            Seat::Absent | Seat::Waiting if self.holds() => {
                if self.seat == Seat::Waiting && !self.stopping {
                    // Its own former term has ended.
                    return next;
                }
                if now < self.served_until {
                    return Step::Wait(self.served_until);
                }
                Step::Release
            }
            Seat::Absent => idle,
            Seat::Waiting if self.stopping => idle,
            Seat::Waiting if lease.holder.is_empty() || now >= since + TAKE => next,
            Seat::Waiting => Step::Wait(since + TAKE),
            Seat::Serving(epoch) => {
                if self.stopping || !self.holds() || lease.epoch != epoch {
                    // The master ends at the end of its permission.
                    return idle;
                }
                let due = self.renewed.map_or(now, |renewed| renewed + RENEW);
                if now >= due {
                    Step::Hold { epoch }
                } else {
                    Step::Wait(due)
                }
            }
        }
    }

    /// The write that began at `started` has succeeded, with this result. Returns the permission for the master.
    pub fn wrote(&mut self, record: Record, started: Duration, now: Duration) -> Option<Grant> {
        let ours = record.holder == self.identity;
        let epoch = record.epoch;
        let newest = self.saw(Some(record), now);
        let until = started + SERVE;
        let fits = match self.seat {
            Seat::Absent => false,
            // The master may have been replaced since the write began: an epoch is served once.
            Seat::Waiting => epoch > self.granted,
            Seat::Serving(served) => epoch == served,
        };
        if !ours || !fits || !newest || now >= until {
            return None;
        }
        self.granted = epoch;
        self.seat = Seat::Serving(epoch);
        self.renewed = Some(started);
        self.served_until = until;
        Some(Grant { epoch, until })
    }

    /// The write has failed, or its result is unknown.
    pub fn failed(&mut self, now: Duration) {
        self.pause = now + RETRY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    fn after(seconds: u64) -> Duration {
        START + Duration::from_secs(seconds)
    }

    fn record(holder: &str, epoch: u64, version: u64) -> Option<Record> {
        Some(Record {
            holder: holder.to_owned(),
            epoch,
            version,
        })
    }

    fn waiting(identity: &str, lease: Option<Record>) -> Election {
        let mut election = Election::new(identity.to_owned(), START);
        election.sits(Seat::Waiting, START);
        election.saw(lease, START);
        election
    }

    #[test]
    fn nothing_is_written_without_a_master_or_before_the_lease_is_read() {
        let mut a = Election::new("a".to_owned(), START);
        assert_eq!(a.step(START, 7), Step::Wait(after(5)));
        a.sits(Seat::Waiting, START);
        assert_eq!(a.step(START, 7), Step::Wait(after(5)));
        a.saw(None, START);
        assert_eq!(a.step(START, 7), Step::Hold { epoch: 7 });
        a.sits(Seat::Absent, START);
        assert_eq!(a.step(START, 7), Step::Wait(after(5)));
    }

    #[test]
    fn a_free_lease_is_taken_at_once_in_a_higher_epoch_and_renewed_in_the_same() {
        let mut a = waiting("a", record("", 9, 4));
        assert_eq!(a.step(START, 7), Step::Hold { epoch: 10 });
        let grant = a.wrote(record("a", 10, 5).unwrap(), START, after(1));
        let until = after(12);
        assert_eq!(grant, Some(Grant { epoch: 10, until }));
        assert_eq!(a.step(after(1), 7), Step::Wait(after(5)));
        assert_eq!(a.step(after(5), 7), Step::Hold { epoch: 10 });
        a.failed(after(6));
        assert_eq!(a.step(after(6), 7), Step::Wait(after(7)));
        assert_eq!(a.step(after(7), 7), Step::Hold { epoch: 10 });
    }

    #[test]
    fn a_held_lease_is_taken_after_it_was_unchanged_for_its_time() {
        let mut b = waiting("b", record("a", 9, 4));
        assert_eq!(b.step(after(14), 7), Step::Wait(after(15)));
        b.saw(record("a", 9, 5), after(14));
        assert!(!b.saw(record("a", 9, 4), after(15)), "an older version");
        assert_eq!(b.step(after(28), 7), Step::Wait(after(29)));
        assert_eq!(b.step(after(29), 7), Step::Hold { epoch: 10 });
    }

    #[test]
    fn the_lease_is_released_when_the_master_has_left_and_not_while_it_may_serve() {
        let mut a = waiting("a", record("", 9, 4));
        a.wrote(record("a", 10, 5).unwrap(), START, START);
        a.stop();
        assert_eq!(a.step(after(6), 7), Step::Wait(after(11)), "it serves");
        a.sits(Seat::Absent, after(6));
        assert_eq!(a.step(after(6), 7), Step::Release);
        assert!(!a.is_over());
        assert_eq!(a.wrote(record("", 10, 6).unwrap(), START, START), None);
        assert!(a.is_over());
    }

    #[test]
    fn a_restarted_elector_goes_on_with_the_term_that_is_served() {
        let mut a = Election::new("a".to_owned(), START);
        a.saw(record("a", 10, 5), START);
        assert_eq!(a.step(after(11), 7), Step::Wait(after(12)), "it may serve");
        let mut silent = Election::new("a".to_owned(), START);
        silent.saw(record("a", 10, 5), START);
        assert_eq!(silent.step(after(12), 7), Step::Release);
        a.sits(Seat::Serving(10), START);
        assert_eq!(a.step(START, 7), Step::Hold { epoch: 10 });
        a.sits(Seat::Serving(8), START);
        assert_eq!(a.step(START, 7), Step::Wait(after(5)), "of another term");
        // A master that was restarted too has lost its index.
        a.sits(Seat::Waiting, START);
        assert_eq!(a.step(START, 7), Step::Hold { epoch: 11 });
    }

    #[test]
    fn a_deposed_elector_renews_nothing() {
        let mut a = waiting("a", record("", 9, 4));
        a.wrote(record("a", 10, 5).unwrap(), START, START);
        a.saw(record("b", 11, 6), after(6));
        assert_eq!(a.step(after(6), 7), Step::Wait(after(11)));
        a.sits(Seat::Absent, after(12));
        assert_eq!(a.step(after(12), 7), Step::Wait(after(17)));
    }
}

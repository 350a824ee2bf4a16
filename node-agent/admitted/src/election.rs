//! Decides which of several masters leads, from the Lease and from what the master beside this program does. Pure: moments are
//! arguments, in time since boot.
//!
//! A master serves until [`Times::serve`] after the start of the last write of the Lease that its elector knows to have succeeded.
//! Another elector takes a Lease that it has seen unchanged for the time that its holder wrote into it. So the first master has ended
//! when the second begins, also if both electors have other times.
//!
//! One of the others may be named in the Lease as its witness. It takes an unchanged Lease as above, and all others only after
//! [`Times::abandoned`]. The witness can promise to regard the Lease as changed: then the master serves as if it had been written,
//! until [`Times::alone`] after the last write. So the Lease of a holder with a witness is written less often.

use std::time::Duration;

use crds::cluster::LONGEST_LEASE_SECONDS;

/// The times of one elector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The elector writes it into the Lease: unchanged for this long, it may be taken.
    pub lease: Duration,
    /// A master serves no longer than this after the start of the last successful write of the Lease.
    pub serve: Duration,
    /// Period of renewals without a witness.
    pub renew: Duration,
    /// Period of renewals with a witness that promises.
    pub relax: Duration,
    /// Period of requests to the witness.
    pub request: Duration,
    /// Deadline of one request to the witness. The Lease is written at once if it has not promised until then.
    pub reply: Duration,
    /// Deadline of one request to the API server.
    pub call: Duration,
    /// Wait after a write that failed.
    pub retry: Duration,
    /// A master serves no longer than this after the start of the last successful write of the Lease, whatever its witness promises.
    pub alone: Duration,
    /// Unchanged for this long, a Lease with a witness may be taken by any elector.
    pub abandoned: Duration,
    /// An elector becomes the witness no more often than once in this time, because each time costs two writes.
    pub attend: Duration,
}

/// Unanswered requests in sequence after which a witness is removed from the Lease. The first one is followed at once by a write
/// with the second one.
const PATIENCE: u32 = 3;

impl Times {
    /// Derives the times from the seconds of the Lease. A fifth of the Lease is left between the end of a term and the next one:
    /// clocks may differ in speed by a tenth. After a first renewal that is slow, or after a request without an answer and
    /// such a renewal, there is time for a second one.
    #[must_use]
    pub fn of(seconds: u32) -> Self {
        let lease = Duration::from_secs(seconds.into());
        Self {
            lease,
            serve: lease / 5 * 4,
            renew: lease / 3,
            relax: (lease / 3).max(Duration::from_secs(5)),
            request: lease / 5,
            reply: (lease / 15).min(Duration::from_secs(1)),
            call: (lease / 5).min(Duration::from_secs(2)),
            retry: (lease / 15).min(Duration::from_secs(1)),
            alone: Duration::from_secs(10 * 60),
            abandoned: Duration::from_secs(12 * 60),
            attend: Duration::from_secs(60),
        }
    }
}

/// What the Lease holds, without its times, which are of other clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Empty: released.
    pub holder: String,
    /// Epoch of the term for which it was taken last.
    pub epoch: u64,
    /// Resource version, which grows with each write.
    pub version: u64,
    /// Seconds that the holder wrote: its own, and not those of the elector that waits. None or 0 cannot be the holder's.
    pub seconds: Option<u32>,
    /// The elector by whose promises the holder may go on. Empty: none.
    pub witness: String,
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
    /// Write the Lease: held by this program, in this epoch. Send a request to the witness beside it, if there is one.
    Hold { epoch: u64 },
    /// Send a request to the witness for this epoch, and write nothing.
    Request { epoch: u64 },
    /// Write the Lease: held by none.
    Release,
    /// Write the Lease: held as before, with this program as its witness.
    Attend,
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
    times: Times,
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
    /// The version that the last write of this pod replaces. As long as the Lease has it, that write may still be carried out. At
    /// first the version that was read first: the run before this one may have begun to replace it.
    replaces: Option<u64>,
    /// The version that the last write which removes the witness replaces.
    removes: Option<u64>,
    /// When the last request to the witness was begun.
    requested: Duration,
    /// Requests in sequence that the witness did not answer with a promise.
    unanswered: u32,
    /// The last write has failed.
    failing: bool,
    /// This elector becomes no witness before this moment.
    offer: Duration,
    stopping: bool,
}

impl Election {
    /// `now` is the start of this program. The one before it may have given a permission.
    pub fn new(identity: String, times: Times, now: Duration) -> Self {
        Self {
            identity,
            times,
            lease: None,
            since: None,
            seat: Seat::Absent,
            renewed: None,
            granted: 0,
            served_until: now + times.serve,
            pause: Duration::ZERO,
            replaces: None,
            removes: None,
            requested: Duration::ZERO,
            unanswered: 0,
            failing: false,
            offer: Duration::ZERO,
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
        if self.since.is_none() {
            self.replaces = Some(version(&lease).unwrap_or(0));
        }
        if self.since.is_none() || self.lease != lease {
            self.lease = lease;
            self.since = Some(now);
            // A write that failed because of this change need not wait.
            self.pause = Duration::ZERO;
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
                self.unanswered = 0;
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

    /// Returns the Lease as last read or written.
    pub fn lease(&self) -> Option<&Record> {
        self.lease.as_ref()
    }

    /// Returns the version of the Lease that the next write replaces; `None`: it creates the Lease.
    pub fn version(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.version)
    }

    /// Returns the epoch in the Lease.
    pub fn epoch(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.epoch)
    }

    /// Returns the witness to write into the Lease with [`Step::Hold`] and [`Step::Release`]: a term begins and ends without one.
    pub fn witness(&self) -> &str {
        match &self.lease {
            // Without the API server, a witness that was silent for a moment is better than none.
            Some(lease) if self.serves(lease) && (self.unanswered < PATIENCE || self.failing) => {
                &lease.witness
            }
            Some(_) | None => "",
        }
    }

    fn holds(&self) -> bool {
        self.lease
            .as_ref()
            .is_some_and(|lease| lease.holder == self.identity)
    }

    /// True if the Lease is of the term that the master beside this program serves.
    fn serves(&self, lease: &Record) -> bool {
        lease.holder == self.identity && self.seat == Seat::Serving(lease.epoch)
    }

    /// Returns for how long the Lease must be unchanged before this elector takes it.
    fn lasts(&self, lease: &Record) -> Duration {
        if !lease.witness.is_empty() && lease.witness != self.identity {
            return self.times.abandoned;
        }
        let seconds = lease.seconds.filter(|seconds| *seconds > 0);
        Duration::from_secs(seconds.unwrap_or(LONGEST_LEASE_SECONDS).into())
    }

    /// Returns what to do. What is returned is done: a write is begun. `clock` is the time since 1970 in milliseconds, from which
    /// the first epoch is taken.
    pub fn step(&mut self, now: Duration, clock: u64) -> Step {
        let step = self.wanted(now, clock);
        match step {
            Step::Wait(_) => return step,
            Step::Request { .. } => {
                self.requested = now;
                return step;
            }
            Step::Hold { .. } | Step::Release | Step::Attend if now < self.pause => {
                return Step::Wait(self.pause);
            }
            Step::Hold { .. } => self.requested = now,
            Step::Release | Step::Attend => {}
        }
        self.replaces = Some(self.version().unwrap_or(0));
        match step {
            Step::Attend => self.offer = now + self.times.attend,
            Step::Hold { .. }
                if self
                    .lease
                    .as_ref()
                    .is_some_and(|lease| lease.witness != self.witness()) =>
            {
                self.removes = self.replaces;
            }
            Step::Hold { .. } | Step::Release | Step::Request { .. } | Step::Wait(_) => {}
        }
        step
    }

    fn wanted(&self, now: Duration, clock: u64) -> Step {
        let idle = Step::Wait(now + self.times.renew);
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
            Seat::Waiting if lease.holder.is_empty() || now >= since + self.lasts(lease) => next,
            Seat::Waiting if lease.witness.is_empty() && now >= self.offer => Step::Attend,
            Seat::Waiting => {
                let end = since + self.lasts(lease);
                Step::Wait(if lease.witness.is_empty() {
                    end.min(self.offer)
                } else {
                    end
                })
            }
            Seat::Serving(epoch) => {
                if self.stopping || !self.holds() || lease.epoch != epoch {
                    // The master ends at the end of its permission.
                    return idle;
                }
                let relies = self.unanswered == 0 && !self.witness().is_empty();
                let period = if relies {
                    self.times.relax
                } else {
                    self.times.renew
                };
                let due = self.renewed.map_or(now, |renewed| renewed + period);
                let request = self.requested + self.times.request;
                if now >= due {
                    Step::Hold { epoch }
                } else if relies && now >= request {
                    Step::Request { epoch }
                } else {
                    Step::Wait(if relies { due.min(request) } else { due })
                }
            }
        }
    }

    /// The write that began at `started` has succeeded, with this result. Returns the permission for the master.
    pub fn wrote(&mut self, record: Record, started: Duration, now: Duration) -> Option<Grant> {
        self.failing = false;
        let ours = record.holder == self.identity;
        let epoch = record.epoch;
        let newest = self.saw(Some(record), now);
        let until = started + self.times.serve;
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

    /// The holder of this term requests to go on. True: this elector regards the Lease as changed now.
    pub fn promises(&mut self, holder: &str, epoch: u64, now: Duration) -> bool {
        let promised = self.lease.as_ref().is_some_and(|lease| {
            lease.holder == holder
                && lease.epoch == epoch
                && lease.witness == self.identity
                // Else a write of this pod may still take it.
                && Some(lease.version) > self.replaces
        });
        if promised {
            self.since = Some(now);
        }
        promised
    }

    /// This witness has promised, by the answer to the request that was sent at `sent`. Returns a permission that ends later than the
    /// one before.
    pub fn promised(&mut self, witness: &str, sent: Duration, now: Duration) -> Option<Grant> {
        self.unanswered = 0;
        let lease = self.lease.as_ref()?;
        let written = self.renewed?;
        // Else another elector may have become the witness.
        let is_witness = lease.witness == witness && Some(lease.version) > self.removes;
        let until = (sent + self.times.serve).min(written + self.times.alone);
        if !is_witness || !self.serves(lease) || until <= self.served_until || now >= until {
            return None;
        }
        self.served_until = until;
        Some(Grant {
            epoch: lease.epoch,
            until,
        })
    }

    /// The witness has not promised in time.
    pub fn unanswered(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// The write has failed, or its result is unknown.
    pub fn failed(&mut self, now: Duration) {
        self.pause = now + self.times.retry;
        self.failing = true;
    }
}

#[cfg(test)]
mod tests {
    use crds::cluster::LEAST_LEASE_SECONDS;

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
            seconds: Some(15),
            witness: String::new(),
        })
    }

    fn elector(identity: &str) -> Election {
        Election::new(identity.to_owned(), Times::of(15), START)
    }

    fn waiting(identity: &str, lease: Option<Record>) -> Election {
        let mut election = elector(identity);
        election.sits(Seat::Waiting, START);
        election.saw(lease, START);
        election
    }

    #[test]
    fn nothing_is_written_without_a_master_or_before_the_lease_is_read() {
        let mut a = elector("a");
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
        assert_eq!(
            b.step(START, 7),
            Step::Attend,
            "meanwhile it is the witness"
        );
        assert_eq!(b.step(after(14), 7), Step::Wait(after(15)));
        b.saw(record("a", 9, 5), after(14));
        assert!(!b.saw(record("a", 9, 4), after(15)), "an older version");
        assert_eq!(b.step(after(28), 7), Step::Wait(after(29)));
        assert_eq!(b.step(after(29), 7), Step::Hold { epoch: 10 });
    }

    #[test]
    fn the_times_of_every_lease_leave_room_for_clocks_that_differ_by_a_tenth() {
        let milliseconds = |seconds| {
            let times = Times::of(seconds);
            [
                times.serve,
                times.renew,
                times.relax,
                times.request,
                times.reply,
                times.call,
                times.retry,
            ]
            .map(|time| time.as_millis())
        };
        assert_eq!(
            milliseconds(8),
            [6_400, 2_666, 5_000, 1_600, 533, 1_600, 533]
        );
        assert_eq!(
            milliseconds(5),
            [4_000, 1_666, 5_000, 1_000, 333, 1_000, 333]
        );
        assert_eq!(
            milliseconds(60),
            [48_000, 20_000, 20_000, 12_000, 1_000, 2_000, 1_000]
        );
        for seconds in LEAST_LEASE_SECONDS..=LONGEST_LEASE_SECONDS {
            let Times {
                lease,
                serve,
                renew,
                relax: _,
                request,
                reply,
                call,
                retry,
                alone,
                abandoned,
                attend: _,
            } = Times::of(seconds);
            assert!(serve * 11 / 10 < lease, "{seconds}");
            // A renewal that is not answered, and a second one.
            assert!(renew + call + retry + call <= serve, "{seconds}");
            // The same after a request without an answer.
            assert!(request + reply + call + retry + call <= serve, "{seconds}");
            assert!(
                alone * 11 / 10 < abandoned && lease < abandoned,
                "{seconds}"
            );
        }
    }

    #[test]
    fn the_holder_decides_for_how_long_its_lease_lasts() {
        let held = |seconds| {
            let record = record("a", 9, 4).unwrap();
            Some(Record { seconds, ..record })
        };
        for (written, own, end) in [
            (Some(5), 15, 5),
            (Some(15), 5, 15),
            (Some(60), 5, 60),
            (Some(0), 5, 60),
            (None, 5, 60),
        ] {
            let mut b = Election::new("b".to_owned(), Times::of(own), START);
            b.sits(Seat::Waiting, START);
            b.saw(held(written), START);
            assert_eq!(b.step(START, 7), Step::Attend);
            let before = after(end - 1);
            assert_eq!(b.step(before, 7), Step::Wait(after(end)), "{written:?}");
            assert_eq!(b.step(after(end), 7), Step::Hold { epoch: 10 });
        }
        // Its own term has its own times.
        let mut b = Election::new("b".to_owned(), Times::of(5), START);
        b.sits(Seat::Waiting, START);
        b.saw(held(Some(60)), START);
        let taken = record("b", 10, 5).unwrap();
        let grant = b.wrote(taken, after(60), after(60));
        let until = after(64);
        assert_eq!(grant, Some(Grant { epoch: 10, until }));
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
        let mut a = elector("a");
        a.saw(record("a", 10, 5), START);
        assert_eq!(a.step(after(11), 7), Step::Wait(after(12)), "it may serve");
        let mut silent = elector("a");
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
    fn witnessed(holder: &str, epoch: u64, version: u64, witness: &str) -> Option<Record> {
        let record = record(holder, epoch, version)?;
        Some(Record {
            witness: witness.to_owned(),
            ..record
        })
    }

    /// `a` leads in epoch 10 since `START`, and `b` is its witness since version 6.
    fn pair() -> (Election, Election) {
        let mut a = waiting("a", record("", 9, 4));
        assert_eq!(a.step(START, 7), Step::Hold { epoch: 10 });
        a.wrote(record("a", 10, 5).unwrap(), START, START);
        let mut b = waiting("b", record("a", 10, 5));
        assert_eq!(b.step(START, 7), Step::Attend);
        b.wrote(witnessed("a", 10, 6, "b").unwrap(), START, START);
        a.saw(witnessed("a", 10, 6, "b"), START);
        (a, b)
    }

    #[test]
    fn a_master_goes_on_by_promises_for_a_limited_time() {
        let (mut a, mut b) = pair();
        let mut until = after(12);
        let mut now = START;
        for _ in 0..200 {
            now += Duration::from_secs(5);
            if now >= until {
                break;
            }
            assert_eq!(a.step(now, 7), Step::Hold { epoch: 10 });
            assert_eq!(a.witness(), "b");
            assert!(b.promises("a", 10, now));
            a.failed(now);
            if let Some(grant) = a.promised("b", now, now) {
                assert!(grant.until > until && grant.epoch == 10);
                until = grant.until;
            }
        }
        assert_eq!(until, after(600), "since the last write");
        // The witness has promised until then, and takes the Lease after its time.
        assert_eq!(b.step(now, 7), Step::Wait(now + Duration::from_secs(10)));
        // Others wait for longer than the master serves without a write.
        let mut c = waiting("c", witnessed("a", 10, 6, "b"));
        assert_eq!(c.step(after(719), 7), Step::Wait(after(720)));
        assert_eq!(c.step(after(720), 7), Step::Hold { epoch: 11 });
    }

    #[test]
    fn only_the_witness_of_this_term_promises_and_only_what_no_write_of_it_may_break() {
        let (_, mut b) = pair();
        assert!(!b.promises("c", 10, after(1)), "not the holder");
        assert!(!b.promises("a", 9, after(1)), "another term");
        let mut c = waiting("c", witnessed("a", 10, 6, "b"));
        c.saw(witnessed("a", 10, 7, "b"), after(1));
        assert!(!c.promises("a", 10, after(2)), "not the witness");
        // An earlier run of this pod may have begun to take the Lease.
        let mut again = waiting("b", witnessed("a", 10, 6, "b"));
        assert!(!again.promises("a", 10, after(1)));
        again.saw(witnessed("a", 10, 7, "b"), after(2));
        assert!(again.promises("a", 10, after(3)));
        // This run has begun to.
        assert_eq!(b.step(after(15), 7), Step::Hold { epoch: 11 });
        b.failed(after(17));
        assert!(!b.promises("a", 10, after(17)), "the write may be late");
        b.saw(witnessed("a", 10, 7, "b"), after(18));
        assert!(b.promises("a", 10, after(18)));
    }

    #[test]
    fn a_promise_counts_only_while_no_write_may_have_removed_the_witness() {
        let (mut a, _) = pair();
        assert_eq!(a.promised("c", after(1), after(1)), None, "not the witness");
        a.unanswered();
        a.unanswered();
        assert_eq!(a.witness(), "b");
        a.unanswered();
        assert_eq!(a.witness(), "", "removed by the next write");
        assert_eq!(a.step(after(5), 7), Step::Hold { epoch: 10 });
        a.failed(after(7));
        assert_eq!(a.promised("b", after(7), after(7)), None);
        // The write was not carried out, and can no longer be.
        a.saw(witnessed("a", 10, 7, "b"), after(8));
        let grant = a.promised("b", after(8), after(8));
        let until = after(20);
        assert_eq!(grant, Some(Grant { epoch: 10, until }));
        // Without the API server a silent witness stays.
        for _ in 0..PATIENCE {
            a.unanswered();
        }
        a.failed(after(9));
        assert_eq!(a.witness(), "b");
    }

    #[test]
    fn a_holder_with_a_witness_writes_every_five_seconds_and_sends_requests_in_between() {
        let (mut a, mut b) = pair();
        let (mut writes, mut requests, mut version) = (0, 0, 6);
        let mut now = START;
        let end = after(60);
        while now < end {
            match a.step(now, 7) {
                Step::Wait(until) => now = until.min(end),
                Step::Hold { epoch: 10 } => {
                    writes += 1;
                    version += 1;
                    let record = witnessed("a", 10, version, a.witness());
                    b.saw(record.clone(), now);
                    a.wrote(record.unwrap(), now, now);
                }
                Step::Request { epoch: 10 } => {
                    requests += 1;
                    assert!(b.promises("a", 10, now));
                    let grant = a.promised("b", now, now).map(|grant| grant.until);
                    assert_eq!(grant, Some(now + a.times.serve));
                }
                other => panic!("{other:?}"),
            }
        }
        // A request 3 s after each write; others go beside the writes.
        assert_eq!((writes, requests), (11, 12));
    }

    #[test]
    fn a_request_without_an_answer_is_followed_by_a_write_at_once_and_by_more_writes() {
        let (mut a, _) = pair();
        assert_eq!(a.step(after(3), 7), Step::Request { epoch: 10 });
        a.promised("b", after(3), after(3)).unwrap();
        // The last write was more than a third of the Lease before.
        assert_eq!(a.step(after(5), 7), Step::Hold { epoch: 10 });
        a.wrote(witnessed("a", 10, 7, "b").unwrap(), after(5), after(5));
        assert_eq!(a.step(after(8), 7), Step::Request { epoch: 10 });
        a.unanswered();
        assert_eq!(a.step(after(9), 7), Step::Wait(after(10)));
        let mut late = pair().0;
        late.times.relax = Duration::from_secs(10);
        assert_eq!(late.step(after(6), 7), Step::Request { epoch: 10 });
        late.unanswered();
        assert_eq!(late.step(after(7), 7), Step::Hold { epoch: 10 });
    }

    #[test]
    fn a_witness_takes_an_unchanged_lease_like_others_without_one() {
        let (_, mut b) = pair();
        assert!(b.promises("a", 10, after(4)));
        assert_eq!(b.step(after(18), 7), Step::Wait(after(19)));
        assert_eq!(b.step(after(19), 7), Step::Hold { epoch: 11 });
        assert_eq!(b.witness(), "", "a term begins without one");
    }
}

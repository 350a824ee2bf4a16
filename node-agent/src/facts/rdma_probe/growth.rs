//! Detects processes that leak queue pairs of a device, and estimates when the device has none left. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use rdma_probe::{Holder, Usage};
use tokio::time::Instant;

/// A process leaks if the number of its queue pairs grows in each of `INTERVALS` intervals in a row. A process that
/// connects to new peers grows as well, but not for an hour.
const INTERVAL: Duration = Duration::from_secs(600);
const INTERVALS: u32 = 6;

/// Reported hours until the device has no queue pairs left, as upper bounds: few steps keep the report stable, and
/// later is not reported.
const HOURS: [u32; 3] = [1, 6, 24];

/// The processes that hold queue pairs of one device, by PID.
#[derive(Debug, Default)]
pub(super) struct Growth(BTreeMap<u32, Run>);

/// Intervals in a row in which a process held more queue pairs at the end than at the start.
#[derive(Debug)]
struct Run {
    first: (Instant, u64),
    /// At the start of the current interval.
    last: (Instant, u64),
    intervals: u32,
}

impl Growth {
    /// Records the queue pairs held now.
    pub(super) fn record(&mut self, usage: &Usage, now: Instant) {
        let holds = |pid: &u32| usage.holders.iter().any(|holder| holder.pid == *pid);
        self.0.retain(|pid, _| holds(pid));
        for holder in &usage.holders {
            let here = (now, holder.queue_pairs);
            let run = self.0.entry(holder.pid).or_insert(Run {
                first: here,
                last: here,
                intervals: 0,
            });
            run.record(here);
        }
    }

    /// The process that uses up `most` queue pairs first, and within how many hours.
    pub(super) fn soonest<'a>(&self, usage: &'a Usage, most: u64) -> Option<(&'a Holder, u32)> {
        let room = most.saturating_sub(usage.queue_pairs);
        let leaks = usage.holders.iter().filter_map(|holder| {
            let hours = self.0.get(&holder.pid)?.hours(room)?;
            Some((holder, hours))
        });
        leaks.min_by_key(|(_, hours)| *hours)
    }
}

impl Run {
    fn record(&mut self, here: (Instant, u64)) {
        if here.0.saturating_duration_since(self.last.0) < INTERVAL {
            return;
        }
        if here.1 > self.last.1 {
            self.intervals += 1;
        } else {
            self.intervals = 0;
            self.first = here;
        }
        self.last = here;
    }

    /// Hours until `room` queue pairs are used up, at the rate of the whole run.
    fn hours(&self, room: u64) -> Option<u32> {
        let took = self.last.0.saturating_duration_since(self.first.0);
        let grown = self.last.1.saturating_sub(self.first.1);
        if self.intervals < INTERVALS || grown == 0 {
            return None;
        }
        let left = u128::from(room) * u128::from(took.as_secs()) / u128::from(grown);
        HOURS
            .into_iter()
            .find(|hours| left < u128::from(*hours) * 3600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(held: &[(u32, u64)]) -> Usage {
        let holder = |(pid, queue_pairs): &(u32, u64)| Holder {
            pid: *pid,
            process: "python3".to_owned(),
            queue_pairs: *queue_pairs,
        };
        Usage {
            queue_pairs: held.iter().map(|(_, queue_pairs)| queue_pairs).sum(),
            holders: held.iter().map(holder).collect(),
            ..Usage::default()
        }
    }

    /// The reported hours after counts that are half a minute apart.
    fn hours(most: u64, counts: impl IntoIterator<Item = u64>) -> Option<u32> {
        let (mut growth, mut now, mut last) = (Growth::default(), Instant::now(), usage(&[]));
        for count in counts {
            last = usage(&[(7, count), (8, 100)]);
            growth.record(&last, now);
            now += Duration::from_secs(30);
        }
        let (holder, hours) = growth.soonest(&last, most)?;
        assert_eq!(holder.pid, 7);
        Some(hours)
    }

    #[test]
    fn a_process_that_grows_for_an_hour_is_reported_with_the_hours_left() {
        // One each half minute: 120 per hour.
        let hour = || 0..=121_u64;
        assert_eq!(hours(300, hour()), Some(1));
        assert_eq!(hours(800, hour()), Some(6));
        assert_eq!(hours(2000, hour()), Some(24));
        assert_eq!(hours(131_072, hour()), None, "room for weeks");
        assert_eq!(hours(300, 0..=119), None, "less than an hour");
        assert_eq!(hours(221, hour()), Some(1), "none is left");
    }

    #[test]
    fn a_process_that_frees_some_still_leaks_and_one_that_stops_growing_does_not() {
        let saw = (0..=121_u64).map(|at| at + if at % 4 == 0 { 0 } else { 20 });
        assert_eq!(hours(400, saw), Some(6));
        let warm = (0..=121_u64).map(|at| at.min(90));
        assert_eq!(hours(300, warm), None);
        let flat = std::iter::repeat_n(50, 500);
        assert_eq!(hours(160, flat), None);
    }

    #[test]
    fn a_new_process_starts_from_zero() {
        let (mut growth, now) = (Growth::default(), Instant::now());
        for at in 0..122_u32 {
            let pid = if at < 60 { 7 } else { 8 };
            growth.record(
                &usage(&[(pid, u64::from(at))]),
                now + at * Duration::from_secs(30),
            );
        }
        assert_eq!(growth.0.len(), 1);
        assert_eq!(growth.soonest(&usage(&[(8, 121)]), 130), None);
    }
}

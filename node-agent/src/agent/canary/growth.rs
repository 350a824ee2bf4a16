//! Who takes ever more queue pairs of a device and gives none back, and how soon none will be left. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use verbs::{Holder, Taken};

/// A holder that leaks holds more at the end of each stretch than at its begin; one that meets new peers
/// does so too, but not for an hour.
const STRETCH: Duration = Duration::from_secs(600);
const STRETCHES: u32 = 6;

/// In how many hours the device is used up: what is told moves rarely, and later is no news yet.
const HOURS: [u32; 3] = [1, 6, 24];

/// The holders of one device, by process.
#[derive(Debug, Default)]
pub(super) struct Growth(BTreeMap<u32, Run>);

/// Stretches in a row in each of which a holder took more than it gave back.
#[derive(Debug)]
struct Run {
    first: (Instant, u64),
    /// At the begin of this stretch.
    last: (Instant, u64),
    stretches: u32,
}

impl Growth {
    /// Notes what is held now.
    pub(super) fn note(&mut self, taken: &Taken, now: Instant) {
        let holds = |pid: &u32| taken.holders.iter().any(|holder| holder.pid == *pid);
        self.0.retain(|pid, _| holds(pid));
        for holder in &taken.holders {
            let here = (now, holder.queue_pairs);
            let run = self.0.entry(holder.pid).or_insert(Run {
                first: here,
                last: here,
                stretches: 0,
            });
            run.note(here);
        }
    }

    /// Who leaves none first of as many queue pairs, and within how many hours.
    pub(super) fn soonest<'a>(&self, taken: &'a Taken, most: u64) -> Option<(&'a Holder, u32)> {
        let room = most.saturating_sub(taken.queue_pairs);
        let leaks = taken.holders.iter().filter_map(|holder| {
            let hours = self.0.get(&holder.pid)?.hours(room)?;
            Some((holder, hours))
        });
        leaks.min_by_key(|(_, hours)| *hours)
    }
}

impl Run {
    fn note(&mut self, here: (Instant, u64)) {
        if here.0.saturating_duration_since(self.last.0) < STRETCH {
            return;
        }
        if here.1 > self.last.1 {
            self.stretches += 1;
        } else {
            self.stretches = 0;
            self.first = here;
        }
        self.last = here;
    }

    /// At the pace of the whole run.
    fn hours(&self, room: u64) -> Option<u32> {
        let took = self.last.0.saturating_duration_since(self.first.0);
        let grown = self.last.1.saturating_sub(self.first.1);
        if self.stretches < STRETCHES || grown == 0 {
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

    fn taken(held: &[(u32, u64)]) -> Taken {
        let holder = |(pid, queue_pairs): &(u32, u64)| Holder {
            pid: *pid,
            process: "python3".to_owned(),
            queue_pairs: *queue_pairs,
        };
        Taken {
            queue_pairs: held.iter().map(|(_, queue_pairs)| queue_pairs).sum(),
            holders: held.iter().map(holder).collect(),
            ..Taken::default()
        }
    }

    /// What is said after counts that are half a minute apart.
    fn told(most: u64, counts: impl IntoIterator<Item = u64>) -> Option<u32> {
        let (mut growth, mut now, mut last) = (Growth::default(), Instant::now(), taken(&[]));
        for count in counts {
            last = taken(&[(7, count), (8, 100)]);
            growth.note(&last, now);
            now += Duration::from_secs(30);
        }
        let (holder, hours) = growth.soonest(&last, most)?;
        assert_eq!(holder.pid, 7);
        Some(hours)
    }

    #[test]
    fn s14_who_takes_more_for_an_hour_is_named_with_the_time_that_is_left() {
        // One each half a minute, so 120 an hour.
        let hour = || 0..=121_u64;
        assert_eq!(told(300, hour()), Some(1));
        assert_eq!(told(800, hour()), Some(6));
        assert_eq!(told(2000, hour()), Some(24));
        assert_eq!(told(131_072, hour()), None, "for weeks there is room");
        assert_eq!(told(300, 0..=119), None, "not for an hour yet");
        assert_eq!(told(221, hour()), Some(1), "none is left");
    }

    #[test]
    fn who_gives_some_back_leaks_all_the_same_and_who_has_found_its_peers_does_not() {
        let saw = (0..=121_u64).map(|at| at + if at % 4 == 0 { 0 } else { 20 });
        assert_eq!(told(400, saw), Some(6));
        let warm = (0..=121_u64).map(|at| at.min(90));
        assert_eq!(told(300, warm), None);
        let flat = std::iter::repeat_n(50, 500);
        assert_eq!(told(160, flat), None);
    }

    #[test]
    fn another_process_begins_anew() {
        let (mut growth, now) = (Growth::default(), Instant::now());
        for at in 0..122_u32 {
            let pid = if at < 60 { 7 } else { 8 };
            growth.note(
                &taken(&[(pid, u64::from(at))]),
                now + at * Duration::from_secs(30),
            );
        }
        assert_eq!(growth.0.len(), 1);
        assert_eq!(growth.soonest(&taken(&[(8, 121)]), 130), None);
    }
}

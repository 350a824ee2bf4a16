//! RDMA devices that do not work any more in the engine process of a pool pod, and when the process is replaced for one.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a device is left alone that does not work any more, while others serve: by then one that was reset is back, and
/// the next engine process has it too.
const RESET: Duration = Duration::from_secs(15);

/// The time between the first two replacements for a device. It doubles with each further one, up to the longest: each costs
/// a registration of the pool, and the next one changes nothing about a device that is reset again and again.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// How long a replacement counts. Longer than the longest time between two.
const REMEMBERED: Duration = Duration::from_secs(2 * 60 * 60);

/// The cause of a device that the process has not reported.
pub(crate) const LEFT: &str = "it was reset or removed";

/// The devices of one pool pod.
#[derive(Debug, Default)]
pub(crate) struct LostDevices {
    /// Those that do not work any more in the process that serves now.
    lost: BTreeMap<String, Lost>,
    /// Those for which a process was replaced.
    replaced: BTreeMap<String, Replaced>,
}

#[derive(Debug)]
struct Lost {
    cause: String,
    since: Instant,
    /// The agent has seen that it left the node: the process may not know.
    has_left: bool,
}

#[derive(Debug)]
struct Replaced {
    at: Instant,
    /// For how long the next replacement is delayed.
    delay: Duration,
}

impl LostDevices {
    /// Another process serves, or another connection to one begins.
    pub(crate) fn forget(&mut self) {
        self.lost.clear();
    }

    /// Takes what the process reports: devices, and why each does not work any more.
    pub(crate) fn report(&mut self, reported: BTreeMap<String, String>, now: Instant) {
        let mut before = std::mem::take(&mut self.lost);
        let reported: Vec<_> = reported
            .into_iter()
            .map(|(device, cause)| {
                let before = before.remove(&device);
                let lost = Lost {
                    cause,
                    since: before.as_ref().map_or(now, |lost| lost.since),
                    has_left: before.is_some_and(|lost| lost.has_left),
                };
                (device, lost)
            })
            .collect();
        before.retain(|_, lost| lost.has_left);
        self.lost = before;
        self.lost.extend(reported);
    }

    /// These devices of the process have left the node. What comes back under their names does not work in it.
    pub(crate) fn leave(&mut self, devices: BTreeSet<String>, now: Instant) {
        for device in devices {
            let lost = self.lost.entry(device).or_insert_with(|| Lost {
                cause: LEFT.to_owned(),
                since: now,
                has_left: true,
            });
            lost.has_left = true;
        }
    }

    /// Whether a device of the process has left the node since it was opened.
    pub(crate) fn has_left(&self, device: &str) -> bool {
        self.lost.get(device).is_some_and(|lost| lost.has_left)
    }

    /// The process is replaced: this counts for each device that it has lost.
    pub(crate) fn replaced(&mut self, now: Instant) {
        self.replaced
            .retain(|_, replaced| now.duration_since(replaced.at) < REMEMBERED);
        for device in self.lost.keys() {
            let before = self.replaced.get(device);
            let delay = before.map_or(SHORTEST, |before| (before.delay * 2).min(LONGEST));
            self.replaced
                .insert(device.clone(), Replaced { at: now, delay });
        }
    }

    /// Returns why a device does not work any more; `None`: it does.
    pub(crate) fn cause(&self, device: &str) -> Option<&str> {
        self.lost.get(device).map(|lost| lost.cause.as_str())
    }

    /// Whether a device that is lost had the time that a reset takes.
    pub(crate) fn is_settled(&self, device: &str, now: Instant) -> bool {
        let lost = self.lost.get(device);
        lost.is_some_and(|lost| now.duration_since(lost.since) >= RESET)
    }

    /// Whether the last replacement for a device is so long ago that there may be another one. `others`: the process has other
    /// devices that work. Without them no peer over RDMA reaches it, so the next one waits no longer than the second.
    pub(crate) fn may_replace(&self, device: &str, others: bool, now: Instant) -> bool {
        let longest = if others { LONGEST } else { SHORTEST };
        let last = self.replaced.get(device);
        last.is_none_or(|last| now.duration_since(last.at) >= last.delay.min(longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(devices: &[&str]) -> BTreeMap<String, String> {
        let lost = devices
            .iter()
            .map(|name| ((*name).to_owned(), "it failed".to_owned()));
        lost.collect()
    }

    #[test]
    fn a_device_settles_from_its_first_report_on_until_another_process_serves() {
        let mut devices = LostDevices::default();
        let begun = Instant::now();
        let later = begun + RESET;
        devices.report(lost(&["a"]), begun);
        devices.report(lost(&["a", "b"]), later);
        assert_eq!(devices.cause("a"), Some("it failed"));
        assert!(devices.is_settled("a", later) && !devices.is_settled("b", later));
        devices.report(lost(&["b"]), later + RESET);
        assert_eq!(devices.cause("a"), None);
        assert!(!devices.is_settled("a", later + RESET));
        assert!(devices.is_settled("b", later + RESET));
        devices.forget();
        assert_eq!(devices.cause("b"), None);
    }

    #[test]
    fn a_device_that_has_left_the_node_is_lost_also_when_it_is_back() {
        let mut devices = LostDevices::default();
        let begun = Instant::now();
        devices.report(lost(&["b"]), begun);
        devices.leave(["a", "b"].map(str::to_owned).into(), begun + RESET);
        for reported in [&["b"][..], &[]] {
            devices.report(lost(reported), begun + RESET);
            assert!(devices.has_left("a") && devices.has_left("b"));
        }
        assert_eq!(devices.cause("a"), Some(LEFT));
        assert_eq!(devices.cause("b"), Some("it failed"));
        assert!(devices.is_settled("b", begun + RESET) && !devices.is_settled("a", begun + RESET));
        devices.replaced(begun + RESET);
        devices.forget();
        assert!(!devices.has_left("a") && devices.cause("a").is_none());
        assert!(!devices.may_replace("a", true, begun + 2 * RESET));
    }

    #[test]
    fn replacements_for_one_device_become_rarer_until_it_works_for_long() {
        let mut devices = LostDevices::default();
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..8 {
            assert!(devices.may_replace("a", true, now));
            devices.report(lost(&["a"]), now);
            devices.replaced(now);
            devices.forget();
            assert!(devices.may_replace("b", true, now), "of another device");
            assert!(!devices.may_replace("a", false, now));
            assert!(devices.may_replace("a", false, now + SHORTEST));
            let begun = now;
            while !devices.may_replace("a", true, now) {
                now += Duration::from_secs(10);
            }
            delays.push(now.duration_since(begun).as_secs());
        }
        assert_eq!(delays, [60, 120, 240, 480, 960, 1800, 1800, 1800]);
        now += REMEMBERED;
        devices.report(lost(&["a"]), now);
        devices.replaced(now);
        assert!(devices.may_replace("a", true, now + SHORTEST));
    }
}

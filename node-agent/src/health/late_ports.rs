//! RDMA ports that are not proved yet, but may be soon: of devices whose driver is loaded after the start of the agent, and of
//! those that wait for their first probe. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::node::HcaLine;
use tokio::time::Instant;

use crate::pools::transport::{DRIVER, PROOF};
use crate::publish::report::Awaited;

/// Most names in a text.
const NAMES: usize = 4;

/// The late ports of the node.
#[derive(Debug)]
pub(super) struct LatePorts {
    started: Instant,
    /// Devices that the node had before its boot and that are not there yet; `None` until the status is read.
    missing: Option<BTreeSet<String>>,
    /// Some device was there since the start.
    found: bool,
    /// Ports that wait for a probe, and since when.
    unprobed: BTreeMap<(String, u8), Instant>,
}

impl LatePorts {
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            missing: None,
            found: false,
            unprobed: BTreeMap::new(),
        }
    }

    /// Takes, at the first call, the ports that the status has of the boot before: this agent overwrites them.
    pub(super) fn expect(&mut self, before: impl FnOnce() -> Vec<HcaLine>) {
        let missing = &mut self.missing;
        missing.get_or_insert_with(|| before().into_iter().map(|line| line.name).collect());
    }

    /// Returns whether the devices of the node are known, of which these are there now. A node that had devices before its boot and
    /// has none yet is not one without devices.
    pub(super) fn are_read(&mut self, present: &BTreeSet<String>, now: Instant) -> bool {
        let Some(missing) = &mut self.missing else {
            // The status may have some.
            return !present.is_empty() || now.duration_since(self.started) >= DRIVER;
        };
        missing.retain(|device| !present.contains(device));
        self.found |= !present.is_empty();
        self.found || missing.is_empty() || now.duration_since(self.started) >= DRIVER
    }

    /// Returns what ports wait for that may be proved soon, and until when.
    pub(super) fn awaited(&mut self, lines: &[HcaLine], now: Instant) -> Option<Awaited> {
        let waiting = lines.iter().filter(|line| line.awaits_proof());
        let waiting: BTreeSet<_> = waiting.map(|line| (line.name.clone(), line.port)).collect();
        self.unprobed.retain(|port, _| waiting.contains(port));
        for port in waiting {
            self.unprobed.entry(port).or_insert(now);
        }
        let is_soon = |since: Instant| now.duration_since(since) < PROOF;
        let unprobed = self.unprobed.iter().filter(|(_, since)| is_soon(**since));
        let missing = self.missing.iter().flatten().cloned();
        let missing: Vec<_> = missing.filter(|_| is_soon(self.started)).collect();
        let probes = unprobed.clone().map(|(_, since)| *since);
        let driver = (!missing.is_empty()).then_some(self.started);
        let last = probes.chain(driver).max()?;
        let unprobed = unprobed.map(|((device, port), _)| format!("{device} port {port}"));
        let texts = [
            named("the first probe of", unprobed.collect()),
            named("the driver of", missing),
        ];
        let texts: Vec<_> = texts.into_iter().flatten().collect();
        Some((texts.join(" and "), last + PROOF))
    }
}

fn named(what: &str, mut names: Vec<String>) -> Option<String> {
    let more = names.len().saturating_sub(NAMES);
    names.truncate(NAMES);
    let text = format!("{what} {}", names.join(", "));
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(text),
        (false, more) => Some(format!("{text} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::publish::report::Reporter;

    const SECOND: Duration = Duration::from_secs(1);

    fn unprobed(name: &str) -> HcaLine {
        serde_json::from_str(&format!(
            r#"{{"name": "{name}", "port": 1, "state": "Active", "gid": 3}}"#
        ))
        .unwrap()
    }

    fn present(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn proved(name: &str) -> HcaLine {
        HcaLine {
            proved: true,
            ..unprobed(name)
        }
    }

    #[test]
    fn a_node_that_had_devices_before_its_boot_is_not_one_without_until_their_driver_had_time() {
        let begun = Instant::now();
        let late = || {
            let mut late = LatePorts::new(begun);
            late.expect(|| vec![proved("a"), proved("b")]);
            // The status is that of this boot by then.
            late.expect(Vec::new);
            late
        };
        let (mut none, mut one) = (late(), late());
        let early = begun + DRIVER.checked_sub(SECOND).unwrap();
        assert!(!none.are_read(&BTreeSet::new(), early));
        assert!(none.are_read(&BTreeSet::new(), begun + DRIVER));
        assert!(one.are_read(&present(&["a"]), begun));
        assert_eq!(
            one.awaited(&[proved("a")], begun).unwrap(),
            ("the driver of b".to_owned(), begun + PROOF)
        );
        assert!(one.are_read(&BTreeSet::new(), begun), "it has left again");
        assert_eq!(one.awaited(&[], begun + PROOF), None, "it was removed");
        assert!(one.are_read(&present(&["a", "b"]), begun));
        assert_eq!(one.awaited(&[proved("a"), proved("b")], begun), None);

        let mut other = LatePorts::new(begun);
        assert!(!other.are_read(&BTreeSet::new(), begun), "unknown");
        other.expect(Vec::new);
        assert!(other.are_read(&BTreeSet::new(), begun));
    }

    #[test]
    fn ports_wait_for_their_first_probe_for_a_time_of_their_own() {
        let begun = Instant::now();
        let mut late = LatePorts::new(begun);
        let mut awaited = |lines: &[HcaLine], after: Duration| {
            let awaited = late.awaited(lines, begun + after);
            awaited.map(|(text, _)| text)
        };
        let text = awaited(&[proved("a"), unprobed("b")], Duration::ZERO);
        assert_eq!(text.unwrap(), "the first probe of b port 1");
        // That of the first one has no result.
        let both = [unprobed("b"), unprobed("c")];
        let text = awaited(&both, PROOF.checked_sub(SECOND).unwrap());
        assert_eq!(text.unwrap(), "the first probe of b port 1, c port 1");
        assert_eq!(
            awaited(&both, PROOF).unwrap(),
            "the first probe of c port 1"
        );
        assert_eq!(awaited(&both, 2 * PROOF), None);
        let many: Vec<_> = (0..6).map(|at| unprobed(&format!("d{at}"))).collect();
        let text = awaited(&many, 2 * PROOF).unwrap();
        assert!(text.ends_with("d3 port 1 and 2 more"), "{text}");
    }

    #[test]
    fn ports_are_not_awaited_after_their_time_though_nothing_is_read_again() {
        let begun = Instant::now();
        let mut late = LatePorts::new(begun);
        late.expect(|| vec![proved("a")]);
        let lines = [unprobed("b")];
        let awaited = late.awaited(&lines, begun + SECOND);
        let (reporter, none) = (Reporter::default(), (Vec::new(), None));
        let report = reporter.subscribe();
        reporter.set_ports(none, BTreeSet::new(), true, awaited);
        let text = "the first probe of b port 1 and the driver of a";
        let report = report.borrow();
        assert_eq!(
            report.awaits(begun + PROOF),
            Some(text),
            "that of the probe"
        );
        assert_eq!(report.awaits(begun + SECOND + PROOF), None);
    }
}

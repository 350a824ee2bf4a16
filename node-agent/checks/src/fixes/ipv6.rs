//! Plans the fix of IPv6 on the interfaces of RDMA ports without a routable GID. Pure. IPv6 is enabled on such interfaces
//! only, and disabled again when no process holds queue pairs of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crds::{FixId, FixMode, Reason};

use super::step::{Change, Step};
use crate::catalog::port_gid;
use host::hca::Hca;
use host::interface::Interface;
use host::{Facts, Snapshot};

const ID: FixId = FixId::InterfaceIpv6;

/// Values of the kernel's `disable_ipv6`.
const ON: u8 = 0;
const OFF: u8 = 1;

/// `disable_ipv6` of each interface; its text in a change is `rdma0 1, rdma1 1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Switches(pub(super) BTreeMap<String, u8>);

/// The next step; none where nothing is requested or needed.
pub(super) fn step(
    snapshot: &Snapshot,
    mode: Option<FixMode>,
    done: Option<&Change>,
) -> Option<Step> {
    let facts = &snapshot.facts;
    let broken: BTreeSet<&str> = port_gid::without(facts)
        .flat_map(|(_, port)| &port.interfaces)
        // An interface of a bond or bridge has no addresses of its own.
        .filter(|interface| interface.master.is_none() && interface.ipv6 == Some(false))
        .map(|interface| interface.name.as_str())
        .collect();
    let wanted = (!broken.is_empty()).then(|| change_of(broken, OFF, ON));
    match (mode, done, wanted) {
        (Some(FixMode::Apply), _, Some(wanted)) => Some(Step::Apply(wanted)),
        (Some(FixMode::Apply), Some(done), None) => Some(match enabled(facts, done).is_empty() {
            true => Step::Forget(ID),
            false => Step::Applied(done.clone()),
        }),
        (Some(FixMode::DryRun), None, Some(wanted)) => Some(Step::Propose(wanted)),
        (None | Some(FixMode::DryRun), Some(done), _) => Some(revert(snapshot, done)),
        (_, None, _) => None,
    }
}

/// The journal entry of a change: with the interfaces of earlier ones.
pub(super) fn journal_entry(done: Option<&Change>, change: &Change) -> Change {
    let earlier = done.map(interfaces).unwrap_or_default();
    let now = interfaces(change);
    let all: BTreeSet<&str> = earlier.iter().chain(&now).map(String::as_str).collect();
    change_of(all, OFF, ON)
}

/// The part of `done` that remains to be reverted after `reverted`.
pub(super) fn remaining(done: &Change, reverted: &Change) -> Option<Change> {
    let (mut all, gone) = (interfaces(done), interfaces(reverted));
    all.retain(|name| !gone.contains(name));
    (!all.is_empty()).then(|| change_of(all.iter().map(String::as_str), OFF, ON))
}

/// The step while the devices are in use.
pub(super) fn in_use(left: &Change) -> Step {
    let names = interfaces(left);
    let change = change_of(names.iter().map(String::as_str), ON, OFF);
    let message =
        "no policy requests it, but processes hold queue pairs of the device, or that is not known";
    Step::Report {
        change,
        reason: Reason::Ipv6InUse,
        message: message.to_owned(),
    }
}

/// True where the attempt at `last` included all interfaces of `change`.
pub(super) fn includes(last: &str, change: &Change) -> bool {
    let last: Switches = last.parse().unwrap_or_default();
    interfaces(change).is_subset(&last.0.into_keys().collect())
}

fn revert(snapshot: &Snapshot, done: &Change) -> Step {
    let enabled = enabled(&snapshot.facts, done);
    let free: Vec<&str> = enabled
        .iter()
        .filter(|(_, hca)| is_unused(hca, snapshot))
        .map(|(interface, _)| interface.name.as_str())
        .collect();
    if !free.is_empty() {
        return Step::Revert(change_of(free, ON, OFF));
    }
    match enabled.is_empty() {
        true => Step::Forget(ID),
        false => {
            let names = enabled.iter().map(|(interface, _)| interface.name.as_str());
            in_use(&change_of(names, OFF, ON))
        }
    }
}

/// Interfaces of an earlier change on which IPv6 is still enabled.
fn enabled<'a>(facts: &'a Facts, done: &Change) -> Vec<(&'a Interface, &'a Hca)> {
    let names = interfaces(done);
    let of = |hca: &'a Hca| {
        let interfaces = hca.ports.iter().flat_map(|port| &port.interfaces);
        interfaces.map(move |interface| (interface, hca))
    };
    let all = facts.hcas.iter().flat_map(of);
    all.filter(|(interface, _)| names.contains(&interface.name) && interface.ipv6 == Some(true))
        .collect()
}

/// True where no process holds a queue pair of the device. Which GID a queue pair uses is not known.
fn is_unused(hca: &Hca, snapshot: &Snapshot) -> bool {
    let report = snapshot.hca_reports.get(&hca.name);
    let usage = report.and_then(|report| report.usage.as_ref());
    usage.is_some_and(|usage| usage.holders.is_empty())
}

fn interfaces(change: &Change) -> BTreeSet<String> {
    let switches: Switches = change.after.parse().unwrap_or_default();
    switches.0.into_keys().collect()
}

fn change_of<'a>(names: impl IntoIterator<Item = &'a str>, before: u8, after: u8) -> Change {
    let names: Vec<&str> = names.into_iter().collect();
    let all = |value| {
        let switches = names.iter().map(|name| ((*name).to_owned(), value));
        Switches(switches.collect()).to_string()
    };
    Change {
        id: ID,
        before: all(before),
        after: all(after),
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {value}")?;
        }
        Ok(())
    }
}

/// A text that is not a list of interfaces.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of interfaces with disable_ipv6: {0}")]
pub(super) struct InvalidSwitches(String);

impl FromStr for Switches {
    type Err = InvalidSwitches;

    fn from_str(text: &str) -> Result<Self, InvalidSwitches> {
        let read = text.split(", ").map(|part| {
            let (name, value) = part.split_once(' ')?;
            let value = value.parse().ok().filter(|value| *value <= OFF)?;
            is_name(name).then(|| (name.to_owned(), value))
        });
        let switches: Option<BTreeMap<_, _>> = read.collect();
        switches
            .map(Self)
            .ok_or_else(|| InvalidSwitches(text.to_owned()))
    }
}

/// The rule of the kernel's `dev_valid_name`. `all` and `default` are folders beside those of interfaces.
fn is_name(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace();
    (1..16).contains(&name.len())
        && !name.contains(odd)
        && ![".", "..", "all", "default"].contains(&name)
}

#[cfg(test)]
mod tests {
    use rdma_probe::{Holder, Report, Usage};

    use super::*;
    use host::Host;

    /// A recorded machine with two rails; those in `off` have IPv6 disabled and only link-local GIDs.
    fn machine(off: &[&str]) -> Snapshot {
        let text = include_str!("../../../host/machines/dgx-h100.txt");
        let mut snapshot = Host::parse(text).unwrap().snapshot();
        snapshot.hca_reports.clear();
        let hcas = &mut snapshot.facts.hcas;
        hcas.truncate(2);
        for (hca, name) in hcas.iter_mut().zip(["rdma0", "rdma1"]) {
            let [port] = hca.ports.as_mut_slice() else {
                panic!("{hca:?}")
            };
            port.link_layer = Some(crds::inventory::LinkLayer::Ethernet);
            port.state = Some(crds::inventory::PortState::Active);
            let off = off.contains(&name);
            if off {
                port.chosen = Err(crds::inventory::NoGid::OnlyLinkLocal);
            }
            port.interfaces = vec![Interface {
                name: name.to_owned(),
                mtu: None,
                state: None,
                master: None,
                default_route: false,
                stacked: false,
                ipv6: Some(!off),
            }];
        }
        snapshot
    }

    fn held_by(mut snapshot: Snapshot, device: usize, processes: usize) -> Snapshot {
        let holder = Holder {
            pid: 7,
            process: "engine".to_owned(),
            queue_pairs: 4,
        };
        let report = Report {
            usage: Some(Usage {
                holders: vec![holder; processes],
                ..Usage::default()
            }),
            ..Report::default()
        };
        let name = snapshot.facts.hcas[device].name.clone();
        snapshot.hca_reports.insert(name, report);
        snapshot
    }

    fn change(before: &str, after: &str) -> Change {
        Change {
            id: ID,
            before: before.to_owned(),
            after: after.to_owned(),
        }
    }

    const APPLY: Option<FixMode> = Some(FixMode::Apply);

    #[test]
    fn ipv6_is_enabled_on_interfaces_of_ports_without_a_routable_gid_only() {
        let one = change("rdma1 1", "rdma1 0");
        assert_eq!(
            step(&machine(&["rdma1"]), APPLY, None),
            Some(Step::Apply(one.clone()))
        );
        let shown = step(&machine(&["rdma1"]), Some(FixMode::DryRun), None);
        assert_eq!(shown, Some(Step::Propose(one.clone())));
        assert_eq!(step(&machine(&["rdma1"]), None, None), None);
        assert_eq!(step(&machine(&[]), APPLY, None), None);
        let mut of_a_bond = machine(&["rdma1"]);
        of_a_bond.facts.hcas[1].ports[0].interfaces[0].master = Some("bond0".to_owned());
        assert_eq!(step(&of_a_bond, APPLY, None), None);
        let mut with_a_gid = machine(&["rdma1"]);
        with_a_gid.facts.hcas[1].ports[0].chosen = Ok(3);
        assert_eq!(step(&with_a_gid, APPLY, None), None);
    }

    #[test]
    fn the_journal_keeps_the_interfaces_of_earlier_changes() {
        let first = change("rdma0 1", "rdma0 0");
        let next = change("rdma1 1", "rdma1 0");
        let both = change("rdma0 1, rdma1 1", "rdma0 0, rdma1 0");
        assert_eq!(journal_entry(Some(&first), &next), both);
        assert_eq!(journal_entry(None, &next), next);
        assert_eq!(
            step(&machine(&[]), APPLY, Some(&both)),
            Some(Step::Applied(both.clone()))
        );
        assert!(includes(&both.after, &next) && !includes(&first.after, &next));
    }

    #[test]
    fn ipv6_is_disabled_again_where_no_process_holds_queue_pairs() {
        let both = change("rdma0 1, rdma1 1", "rdma0 0, rdma1 0");
        let snapshot = held_by(held_by(machine(&[]), 0, 0), 1, 1);
        let reverted = change("rdma0 0", "rdma0 1");
        for mode in [None, Some(FixMode::DryRun)] {
            assert_eq!(
                step(&snapshot, mode, Some(&both)),
                Some(Step::Revert(reverted.clone()))
            );
        }
        let left = remaining(&both, &reverted).unwrap();
        assert_eq!(left, change("rdma1 1", "rdma1 0"));
        let next = step(&snapshot, None, Some(&left));
        assert_eq!(next, Some(in_use(&left)));
        let Some(Step::Report { change: shown, .. }) = next else {
            panic!("{next:?}")
        };
        assert_eq!(shown, change("rdma1 0", "rdma1 1"));
        // Without a verbs probe the holders are not known.
        assert_eq!(step(&machine(&[]), None, Some(&left)), Some(in_use(&left)));
        let free = held_by(machine(&[]), 1, 0);
        assert!(matches!(
            step(&free, None, Some(&left)),
            Some(Step::Revert(_))
        ));
        // Somebody else disabled it meanwhile.
        assert_eq!(
            step(&machine(&["rdma1"]), None, Some(&left)),
            Some(Step::Forget(ID))
        );
    }

    #[test]
    fn a_text_is_parsed_to_the_switches_that_wrote_it_and_others_are_refused() {
        let text = "bond0.100 1, rdma0 0";
        let read: Switches = text.parse().unwrap();
        assert_eq!(read.to_string(), text);
        for odd in [
            "",
            "rdma0",
            "rdma0 2",
            "all 0",
            "../../ipv4/conf/all 0",
            "a/b 0",
            "rdma0  0",
            "an-interface-with-too-long-a-name 0",
        ] {
            assert!(odd.parse::<Switches>().is_err(), "{odd}");
        }
    }
}

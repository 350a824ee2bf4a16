//! What is to become of IPv6 on the interfaces of RDMA ports that have no GID which peers can reach. Pure. It is switched on for
//! such an interface alone, and off again only when no process holds queue pairs of its device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crds::{FixId, FixMode, Reason};

use super::plan::{Change, Step};
use crate::checks::port_gid;
use crate::host::Facts;
use crate::host::hca::Hca;
use crate::host::interface::Interface;

const ID: FixId = FixId::InterfaceIpv6;

/// What stands in the kernel's `disable_ipv6`.
const ON: u8 = 0;
const OFF: u8 = 1;

/// Of each interface its `disable_ipv6`, as the words of a change: `rdma0 1, rdma1 1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Switches(pub(super) BTreeMap<String, u8>);

/// What is to be done, or what is said; none where nothing is asked for or missing.
pub(super) fn step(facts: &Facts, mode: Option<FixMode>, done: Option<&Change>) -> Option<Step> {
    let broken: BTreeSet<&str> = port_gid::without(facts)
        .flat_map(|(_, port)| &port.interfaces)
        // What belongs to a bond or a bridge has no addresses of its own.
        .filter(|interface| interface.master.is_none() && interface.ipv6 == Some(false))
        .map(|interface| interface.name.as_str())
        .collect();
    let wanted = (!broken.is_empty()).then(|| change_of(broken, OFF, ON));
    match (mode, done, wanted) {
        (Some(FixMode::Apply), _, Some(wanted)) => Some(Step::Do(wanted)),
        (Some(FixMode::Apply), Some(done), None) => Some(match ours(facts, done).is_empty() {
            true => Step::Forget(ID),
            false => Step::Stands(done.clone()),
        }),
        (Some(FixMode::DryRun), None, Some(wanted)) => Some(Step::Propose(wanted)),
        (None | Some(FixMode::DryRun), Some(done), _) => Some(undo(facts, done)),
        (_, None, _) => None,
    }
}

/// What is to be kept of a change: of interfaces of earlier ones too.
pub(super) fn kept(done: Option<&Change>, change: &Change) -> Change {
    let earlier = done.map(interfaces).unwrap_or_default();
    let now = interfaces(change);
    let all: BTreeSet<&str> = earlier.iter().chain(&now).map(String::as_str).collect();
    change_of(all, OFF, ON)
}

/// What of `done` is still to be undone after `undone`.
pub(super) fn rest(done: &Change, undone: &Change) -> Option<Change> {
    let (mut all, gone) = (interfaces(done), interfaces(undone));
    all.retain(|name| !gone.contains(name));
    (!all.is_empty()).then(|| change_of(all.iter().map(String::as_str), OFF, ON))
}

/// What was done stays for now.
pub(super) fn in_use(rest: &Change) -> Step {
    let names = interfaces(rest);
    let change = change_of(names.iter().map(String::as_str), ON, OFF);
    let words = "no policy asks for it, and processes hold queue pairs of the device, or it is not known who does";
    Step::Say {
        change,
        reason: Reason::Ipv6InUse,
        words: words.to_owned(),
    }
}

/// True where an attempt at `last` was one at all of `change`.
pub(super) fn holds(last: &str, change: &Change) -> bool {
    let last: Switches = last.parse().unwrap_or_default();
    interfaces(change).is_subset(&last.0.into_keys().collect())
}

fn undo(facts: &Facts, done: &Change) -> Step {
    let ours = ours(facts, done);
    let free: Vec<&str> = ours
        .iter()
        .filter(|(_, hca)| is_unused(hca))
        .map(|(interface, _)| interface.name.as_str())
        .collect();
    if !free.is_empty() {
        return Step::Undo(change_of(free, ON, OFF));
    }
    match ours.is_empty() {
        true => Step::Forget(ID),
        false => {
            let names = ours.iter().map(|(interface, _)| interface.name.as_str());
            in_use(&change_of(names, OFF, ON))
        }
    }
}

/// Interfaces that were switched on, and are.
fn ours<'a>(facts: &'a Facts, done: &Change) -> Vec<(&'a Interface, &'a Hca)> {
    let names = interfaces(done);
    let of = |hca: &'a Hca| {
        let interfaces = hca.ports.iter().flat_map(|port| &port.interfaces);
        interfaces.map(move |interface| (interface, hca))
    };
    let all = facts.hcas.iter().flat_map(of);
    all.filter(|(interface, _)| names.contains(&interface.name) && interface.ipv6 == Some(true))
        .collect()
}

/// Whose GIDs a queue pair has nobody tells: one that is held may have this interface's.
fn is_unused(hca: &Hca) -> bool {
    let taken = hca.verbs.as_ref().and_then(|answer| answer.taken.as_ref());
    taken.is_some_and(|taken| taken.holders.is_empty())
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

/// No switches of interfaces.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not understood as IPv6 of interfaces: {0}")]
pub(super) struct NotUnderstood(String);

impl FromStr for Switches {
    type Err = NotUnderstood;

    fn from_str(text: &str) -> Result<Self, NotUnderstood> {
        let read = text.split(", ").map(|part| {
            let (name, value) = part.split_once(' ')?;
            let value = value.parse().ok().filter(|value| *value <= OFF)?;
            is_name(name).then(|| (name.to_owned(), value))
        });
        let switches: Option<BTreeMap<_, _>> = read.collect();
        switches
            .map(Self)
            .ok_or_else(|| NotUnderstood(text.to_owned()))
    }
}

/// As the kernel's `dev_valid_name`; the other two are folders beside the interfaces'.
fn is_name(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace();
    (1..16).contains(&name.len())
        && !name.contains(odd)
        && ![".", "..", "all", "default"].contains(&name)
}

#[cfg(test)]
mod tests {
    use verbs::{Answer, Holder, Taken};

    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;

    /// A recorded machine with two rails, of which those that are named have IPv6 off and GIDs that are
    /// link-local alone.
    fn machine(off: &[&str]) -> Facts {
        let text = include_str!("../../tests/machines/dgx-h100.txt");
        let mut facts = Host::recorded(Recording::parse(text).unwrap()).facts();
        facts.hcas.truncate(2);
        for (hca, name) in facts.hcas.iter_mut().zip(["rdma0", "rdma1"]) {
            hca.verbs = None;
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
        facts
    }

    fn held_by(mut facts: Facts, device: usize, processes: usize) -> Facts {
        let holder = Holder {
            pid: 7,
            process: "engine".to_owned(),
            queue_pairs: 4,
        };
        facts.hcas[device].verbs = Some(Answer {
            taken: Some(Taken {
                holders: vec![holder; processes],
                ..Taken::default()
            }),
            ..Answer::default()
        });
        facts
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
    fn s09_it_is_switched_on_for_the_interfaces_of_ports_without_a_gid_and_for_no_other() {
        let one = change("rdma1 1", "rdma1 0");
        assert_eq!(
            step(&machine(&["rdma1"]), APPLY, None),
            Some(Step::Do(one.clone()))
        );
        let shown = step(&machine(&["rdma1"]), Some(FixMode::DryRun), None);
        assert_eq!(shown, Some(Step::Propose(one.clone())));
        assert_eq!(step(&machine(&["rdma1"]), None, None), None);
        assert_eq!(step(&machine(&[]), APPLY, None), None);
        let mut of_a_bond = machine(&["rdma1"]);
        of_a_bond.hcas[1].ports[0].interfaces[0].master = Some("bond0".to_owned());
        assert_eq!(step(&of_a_bond, APPLY, None), None);
        let mut with_a_gid = machine(&["rdma1"]);
        with_a_gid.hcas[1].ports[0].chosen = Ok(3);
        assert_eq!(step(&with_a_gid, APPLY, None), None);
    }

    #[test]
    fn a_second_interface_is_kept_beside_the_first() {
        let first = change("rdma0 1", "rdma0 0");
        let next = change("rdma1 1", "rdma1 0");
        let both = change("rdma0 1, rdma1 1", "rdma0 0, rdma1 0");
        assert_eq!(kept(Some(&first), &next), both);
        assert_eq!(kept(None, &next), next);
        assert_eq!(
            step(&machine(&[]), APPLY, Some(&both)),
            Some(Step::Stands(both.clone()))
        );
        assert!(holds(&both.after, &next) && !holds(&first.after, &next));
    }

    #[test]
    fn it_is_switched_off_where_nobody_holds_queue_pairs_and_nowhere_else() {
        let both = change("rdma0 1, rdma1 1", "rdma0 0, rdma1 0");
        let facts = held_by(held_by(machine(&[]), 0, 0), 1, 1);
        let undone = change("rdma0 0", "rdma0 1");
        for mode in [None, Some(FixMode::DryRun)] {
            assert_eq!(
                step(&facts, mode, Some(&both)),
                Some(Step::Undo(undone.clone()))
            );
        }
        let left = rest(&both, &undone).unwrap();
        assert_eq!(left, change("rdma1 1", "rdma1 0"));
        let said = step(&facts, None, Some(&left));
        assert_eq!(said, Some(in_use(&left)));
        let Some(Step::Say { change: told, .. }) = said else {
            panic!("{said:?}")
        };
        assert_eq!(told, change("rdma1 0", "rdma1 1"));
        // Who holds what is not known where the device was not asked.
        assert_eq!(step(&machine(&[]), None, Some(&left)), Some(in_use(&left)));
        let free = held_by(machine(&[]), 1, 0);
        assert!(matches!(
            step(&free, None, Some(&left)),
            Some(Step::Undo(_))
        ));
        // Somebody else has switched it off meanwhile.
        assert_eq!(
            step(&machine(&["rdma1"]), None, Some(&left)),
            Some(Step::Forget(ID))
        );
    }

    #[test]
    fn what_is_written_is_read_again_and_nothing_else_is() {
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

//! `PodByHand`: the stock engine chooses devices, port, GID and MTU by itself; what a container sets of
//! them by hand, in variables or in a file, fails on a node that has others, without a word that names it.

use crds::inventory::{GidProtocol, GidScope, LinkLayer, PortState};
use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, pod, rails};
use crate::host::Facts;
use crate::host::container::Container;
use crate::host::container::by_hand::{MATRIX, PORT};
use crate::host::container::matrix::{Flaw, LONGEST};
use crate::host::fault::Problem;
use crate::host::hca::{Hca, Port};

/// Names and indices that are listed at most.
const LISTED: usize = 12;

/// So much of a path is repeated.
const PATH: usize = 128;

/// The port that the stock engine uses where nothing says another.
const FIRST_PORT: u8 = 1;

/// What it takes as largest packets; another value it ignores.
const MTUS: [&str; 4] = ["512", "1024", "2048", "4096"];

pub(super) const CHECK: Check = Check {
    id: CheckId::PodByHand,
    reasons: &[Reason::DeviceNameUnknown, Reason::ByHandUnfit],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    if rails::devices(facts).next().is_none() {
        return Vec::new();
    }
    let asks = pod::containers(world)
        .filter(|(_, container)| container.wheel.is_some() && !container.tcp_only);
    asks.map(|(of, container)| {
        let subject = pod::subject(of, container);
        let unknown = || unknown(facts, container).or_else(|| closed(facts, container));
        let unknown = || unknown().map(|words| (Reason::DeviceNameUnknown, words));
        let unfit = || flawed(container).or_else(|| unfit(facts, container));
        let unfit = || unfit().map(|words| (Reason::ByHandUnfit, words));
        match unknown().or_else(unfit) {
            None => Said::pass(subject),
            Some((reason, words)) => Said::warn(subject, reason, words),
        }
    })
    .collect()
}

/// A name that no device of the node has.
fn unknown(facts: &Facts, container: &Container) -> Option<String> {
    let has = |name: &str| facts.hcas.iter().any(|hca| hca.name == name);
    let listed = container.by_hand.devices.iter();
    let listed = listed.map(|(variable, name)| (variable.clone(), name));
    let of_matrix = matrix(container).map(|name| (matrix_file(container), name));
    let (what, name) = listed.chain(of_matrix).find(|(_, name)| !has(name))?;
    let there = pod::list(rails::devices(facts).map(|hca| hca.name.clone()), LISTED);
    Some(format!(
        "{what} names {name}, which the node does not have; it has {there}"
    ))
}

/// A device of the node's that the container cannot open, while it can open another. A list may name more
/// than the container got, if it names one of those; a matrix says which device is used where.
fn closed(facts: &Facts, container: &Container) -> Option<String> {
    let open = rails::devices(facts).filter(|hca| pod::has(container, hca));
    let open: Vec<&str> = open.map(|hca| hca.name.as_str()).collect();
    // Another check tells that it can open none.
    if open.is_empty() {
        return None;
    }
    let closed = |name: &str| !open.contains(&name);
    let listed = &container.by_hand.devices;
    let none = listed.iter().all(|(_, name)| closed(name));
    let listed = listed.first().filter(|_| none);
    let listed = listed.map(|(variable, name)| (variable.clone(), name));
    let mut of_matrix = matrix(container).filter(|name| closed(name));
    let of_matrix = || of_matrix.next().map(|name| (matrix_file(container), name));
    let (what, name) = listed.or_else(of_matrix)?;
    let open = pod::list(open.iter().map(|name| (*name).to_owned()), LISTED);
    Some(format!(
        "{what} names {name}, which the container cannot open; it can open {open}"
    ))
}

/// A file that the engine is told to read its matrix from, and that holds none. What the engine does then it
/// does without an error.
fn flawed(container: &Container) -> Option<String> {
    let flaw = container.matrix.as_ref()?.as_ref().err()?;
    let what = match flaw {
        Flaw::Unread(problem) if *problem == Problem::ABSENT => {
            "is not there, and the engine chooses by itself".to_owned()
        }
        Flaw::Unread(Problem::NotAFile) => "is no file".to_owned(),
        Flaw::Unread(Problem::TooLarge) => {
            format!("has more than {LONGEST} bytes, and was not read")
        }
        Flaw::Unread(problem) => format!("cannot be read ({problem})"),
        Flaw::Empty => "is empty, and the engine chooses by itself".to_owned(),
        Flaw::NotJson => "is no JSON, and the engine uses no device".to_owned(),
        Flaw::Misshapen => "is no matrix, and the engine uses no device; it takes \
                            {\"cpu:0\": [[\"NAME\"], [\"NAME\"]]}"
            .to_owned(),
    };
    Some(format!("{} {what}", matrix_file(container)))
}

/// The devices that the container's matrix names.
fn matrix(container: &Container) -> impl Iterator<Item = &String> {
    container.matrix.iter().flatten().flatten()
}

/// The variable, and the file that it names.
fn matrix_file(container: &Container) -> String {
    let path = container.by_hand.matrix.as_deref().unwrap_or_default();
    let path: String = path.chars().take(PATH).collect();
    format!("{path} of {MATRIX}")
}

/// What the devices that it may use do not have.
fn unfit(facts: &Facts, container: &Container) -> Option<String> {
    let by_hand = &container.by_hand;
    let mtu = by_hand.mtu.as_deref();
    if let Some(mtu) = mtu.filter(|mtu| !MTUS.contains(mtu)) {
        return Some(format!(
            "MC_MTU is {mtu}, which is ignored; it takes {}",
            MTUS.join(", ")
        ));
    }
    let number = match by_hand.port.as_deref().map(str::parse::<u8>) {
        None => FIRST_PORT,
        Some(Ok(number)) if number > 0 => number,
        Some(_) => {
            let port = by_hand.port.as_deref().unwrap_or_default();
            return Some(format!("{PORT} is {port}, which is no number of a port"));
        }
    };
    let mut used = rails::devices(facts).filter(|hca| uses(container, hca));
    used.find_map(|hca| {
        let port = hca.ports.iter().find(|port| port.number == number);
        if by_hand.port.is_some() {
            let unfit = unfit_port(hca, number, port);
            if unfit.is_some() {
                return unfit;
            }
        }
        let (variable, index) = by_hand.gid.as_ref()?;
        unfit_gid(variable, index, hca, port?)
    })
}

/// Of devices that it names those alone, by its matrix before all lists; of others those that it can open.
fn uses(container: &Container, hca: &Hca) -> bool {
    if matrix(container).next().is_some() {
        return matrix(container).any(|name| *name == hca.name);
    }
    let named = &container.by_hand.devices;
    if !named.is_empty() {
        return named.iter().any(|(_, name)| *name == hca.name);
    }
    pod::has(container, hca)
}

fn unfit_port(hca: &Hca, number: u8, port: Option<&Port>) -> Option<String> {
    let others = |wanted: fn(&Port) -> bool| {
        let others = hca.ports.iter().filter(|port| wanted(port));
        pod::list(others.map(|port| port.number.to_string()), LISTED)
    };
    match port {
        None => Some(format!(
            "{PORT} is {number}; the ports of {} are {}",
            hca.name,
            others(|_| true)
        )),
        Some(port) if port.state.is_some_and(|state| state != PortState::Active) => Some(format!(
            "{PORT} is {number}, and {} is not ACTIVE; those that are: {}",
            rails::name(hca, port),
            others(|port| port.state == Some(PortState::Active))
        )),
        Some(_) => None,
    }
}

/// An index below zero lets the engine choose.
fn unfit_gid(variable: &str, index: &str, hca: &Hca, port: &Port) -> Option<String> {
    let name = rails::name(hca, port);
    let wanted = match index.parse::<i32>() {
        Ok(wanted) if wanted < 0 => return None,
        Ok(wanted) => u16::try_from(wanted).ok(),
        Err(_) => return Some(format!("{variable} is {index}, which is no index")),
    };
    // What cannot be read in full is not judged by what was read of it.
    let best = match port.chosen {
        Ok(best) => format!("{best} can be reached"),
        Err(crds::inventory::NoGid::Unread) => return None,
        Err(_) => "it has none that can be reached".to_owned(),
    };
    let found = port.gids.iter().find(|gid| Some(gid.index) == wanted);
    let Some(gid) = found else {
        let there = pod::list(port.gids.iter().map(|gid| gid.index.to_string()), LISTED);
        return Some(format!(
            "{variable} is {index}, where {name} has no GID; it has {there}; {best}"
        ));
    };
    if port.link_layer != Some(LinkLayer::Ethernet) {
        return None;
    }
    let what = match (gid.protocol, gid.scope()) {
        (Some(GidProtocol::RoCEv1), _) => "of RoCE version 1",
        (_, GidScope::LinkLocal) => "link-local",
        (_, GidScope::Unusable) => "no address of a peer",
        _ => return None,
    };
    Some(format!(
        "{variable} is {index}, and that GID of {name} is {what}; {best}"
    ))
}

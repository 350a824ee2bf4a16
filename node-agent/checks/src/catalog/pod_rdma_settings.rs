//! `PodRdmaSettings`: RDMA devices, port, GID and MTU that a container sets by variables or a file exist on the node. The
//! stock engine chooses them itself; wrong settings fail without an error that names them.

use crds::cluster::TransportPolicy;
use crds::inventory::{GidProtocol, GidScope, LinkLayer, PortState};
use crds::node::InjectedPod;
use crds::text::clip_chars;
use crds::{CheckId, Reason};

use super::pod_hcas;
use crate::{Check, CheckInput, Observation, pod, rails};
use host::Facts;
use host::container::Container;
use host::container::matrix::{Flaw, LONGEST};
use host::container::rdma_settings::{MATRIX, PORT};
use host::fault::Problem;
use host::hca::{Hca, Port};

/// Most names and indices in a message.
const LISTED: usize = 12;

/// Most characters of a path in a message.
const PATH: usize = 128;

/// The port that a stock engine uses by default.
const DEFAULT_PORT: u8 = 1;

/// Values of MC_MTU that a stock engine accepts.
const MTUS: [&str; 4] = ["512", "1024", "2048", "4096"];

pub(crate) const CHECK: Check = Check::new(
    CheckId::PodRdmaSettings,
    &[Reason::DeviceNameUnknown, Reason::RdmaSettingMismatch],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let facts = &input.snapshot.facts;
    if rails::devices(facts).next().is_none() {
        return Vec::new();
    }
    // In a cluster on TCP, a container that can open a device may have another engine that uses it.
    let may_use = |of: &InjectedPod, container: &Container| {
        of.rdma != TransportPolicy::Forbid || pod_hcas::count(facts, container) > 0
    };
    let engines = pod::containers(input).filter(|(of, container)| {
        container.wheel.is_some() && !container.tcp_only && may_use(of, container)
    });
    engines
        .map(|(of, container)| {
            let subject = pod::subject(of, container);
            let device = unknown(facts, container).or_else(|| closed(facts, container));
            let (reason, message) = match device {
                Some(message) => (Reason::DeviceNameUnknown, Some(message)),
                None => {
                    let other = matrix_error(container).or_else(|| mismatch(facts, container));
                    (Reason::RdmaSettingMismatch, other)
                }
            };
            match message {
                None => Observation::pass(subject),
                Some(message) => Observation::warn(subject, reason, message),
            }
        })
        .collect()
}

/// A device name that no device of the node has.
fn unknown(facts: &Facts, container: &Container) -> Option<String> {
    let has = |name: &str| facts.hcas.iter().any(|hca| hca.name == name);
    let listed = container.rdma_settings.devices.iter();
    let listed = listed.map(|(variable, name)| (variable.clone(), name));
    let of_matrix = matrix(container).map(|name| (matrix_file(container), name));
    let (what, name) = listed.chain(of_matrix).find(|(_, name)| !has(name))?;
    let there = pod::first_names_or_none(rails::devices(facts).map(|hca| &hca.name), LISTED);
    Some(format!(
        "{what} names {name}, which the node does not have; it has {there}"
    ))
}

/// A named device that the container cannot open, while it can open another. One device of a list is enough; of a
/// matrix each is required.
fn closed(facts: &Facts, container: &Container) -> Option<String> {
    let open = rails::devices(facts).filter(|hca| pod::can_open(container, hca));
    let open: Vec<&str> = open.map(|hca| hca.name.as_str()).collect();
    // `PodHcas` reports a container that can open none.
    if open.is_empty() {
        return None;
    }
    let closed = |name: &str| !open.contains(&name);
    let listed = &container.rdma_settings.devices;
    let none = listed.iter().all(|(_, name)| closed(name));
    let listed = listed.first().filter(|_| none);
    let listed = listed.map(|(variable, name)| (variable.clone(), name));
    let mut of_matrix = matrix(container).filter(|name| closed(name));
    let of_matrix = || of_matrix.next().map(|name| (matrix_file(container), name));
    let (what, name) = listed.or_else(of_matrix)?;
    let open = pod::first_names_or_none(&open, LISTED);
    Some(format!(
        "{what} names {name}, which the container cannot open; it can open {open}"
    ))
}

/// A matrix file that the engine cannot use. The engine reports no error.
fn matrix_error(container: &Container) -> Option<String> {
    let error = container.matrix.as_ref()?.as_ref().err()?;
    let what = match error {
        Flaw::Unread(problem) if *problem == Problem::ABSENT => {
            "does not exist: the engine chooses devices itself".to_owned()
        }
        Flaw::Unread(Problem::NotAFile) => "is not a regular file".to_owned(),
        Flaw::Unread(Problem::TooLarge) => {
            format!("has more than {LONGEST} bytes and was not read")
        }
        Flaw::Unread(problem) => format!("cannot be read ({problem})"),
        Flaw::Empty => "is empty: the engine chooses devices itself".to_owned(),
        Flaw::NotJson => "is not JSON: the engine uses no device".to_owned(),
        Flaw::Misshapen => "is not a matrix: the engine uses no device; it expects \
                            {\"cpu:0\": [[\"NAME\"], [\"NAME\"]]}"
            .to_owned(),
    };
    Some(format!("{} {what}", matrix_file(container)))
}

/// The devices in the container's matrix.
fn matrix(container: &Container) -> impl Iterator<Item = &String> {
    container.matrix.iter().flatten().flatten()
}

/// The path of the matrix file, and the variable that sets it.
fn matrix_file(container: &Container) -> String {
    let path = container
        .rdma_settings
        .matrix
        .as_deref()
        .unwrap_or_default();
    let path = clip_chars(path, PATH);
    format!("{path} of {MATRIX}")
}

/// A setting of MTU, port or GID that does not match the devices which the container uses.
fn mismatch(facts: &Facts, container: &Container) -> Option<String> {
    let rdma_settings = &container.rdma_settings;
    let mtu = rdma_settings.mtu.as_deref();
    if let Some(mtu) = mtu.filter(|mtu| !MTUS.contains(mtu)) {
        return Some(format!(
            "MC_MTU is {mtu}, which the engine ignores; valid values are {}",
            MTUS.join(", ")
        ));
    }
    let number = match rdma_settings.port.as_deref().map(str::parse::<u8>) {
        None => DEFAULT_PORT,
        Some(Ok(number)) if number > 0 => number,
        Some(_) => {
            let port = rdma_settings.port.as_deref().unwrap_or_default();
            return Some(format!("{PORT} is {port}, which is not a port number"));
        }
    };
    let mut used = rails::devices(facts).filter(|hca| uses(container, hca));
    used.find_map(|hca| {
        let port = hca.ports.iter().find(|port| port.number == number);
        if rdma_settings.port.is_some() {
            let mismatch = port_mismatch(hca, number, port);
            if mismatch.is_some() {
                return mismatch;
            }
        }
        let (variable, index) = rdma_settings.gid.as_ref()?;
        gid_mismatch(variable, index, hca, port?)
    })
}

/// True for devices in the matrix, else in the lists, else for those that the container can open.
fn uses(container: &Container, hca: &Hca) -> bool {
    if matrix(container).next().is_some() {
        return matrix(container).any(|name| *name == hca.name);
    }
    let named = &container.rdma_settings.devices;
    if !named.is_empty() {
        return named.iter().any(|(_, name)| *name == hca.name);
    }
    pod::can_open(container, hca)
}

fn port_mismatch(hca: &Hca, number: u8, port: Option<&Port>) -> Option<String> {
    let others = |wanted: fn(&Port) -> bool| {
        let others = hca.ports.iter().filter(|port| wanted(port));
        pod::first_names_or_none(others.map(|port| port.number), LISTED)
    };
    match port {
        None => Some(format!(
            "{PORT} is {number}; the ports of {} are {}",
            hca.name,
            others(|_| true)
        )),
        Some(port) if port.state.is_some_and(|state| state != PortState::Active) => Some(format!(
            "{PORT} is {number}, and {} is not ACTIVE; active ports: {}",
            rails::port_name(hca, port),
            others(|port| port.state == Some(PortState::Active))
        )),
        Some(_) => None,
    }
}

/// A GID index that does not exist or that peers cannot reach. With a negative index the engine chooses.
fn gid_mismatch(variable: &str, index: &str, hca: &Hca, port: &Port) -> Option<String> {
    let name = rails::port_name(hca, port);
    let wanted = match index.parse::<i32>() {
        Ok(wanted) if wanted < 0 => return None,
        Ok(wanted) => u16::try_from(wanted).ok(),
        Err(_) => return Some(format!("{variable} is {index}, which is not an index")),
    };
    // A GID table that could not be read in full is not checked.
    let best = match port.chosen {
        Ok(best) => format!("{best} can be reached"),
        Err(crds::inventory::NoGid::Unread) => return None,
        Err(_) => "no GID can be reached".to_owned(),
    };
    let found = port.gids.iter().find(|gid| Some(gid.index) == wanted);
    let Some(gid) = found else {
        let there = pod::first_names_or_none(port.gids.iter().map(|gid| gid.index), LISTED);
        return Some(format!(
            "{variable} is {index}; {name} has GIDs {there}; {best}"
        ));
    };
    if port.link_layer != Some(LinkLayer::Ethernet) {
        return None;
    }
    let what = match (gid.protocol, gid.scope()) {
        (Some(GidProtocol::RoCEv1), _) => "RoCE version 1",
        (_, GidScope::LinkLocal) => "link-local",
        (_, GidScope::Unusable) => "not usable",
        _ => return None,
    };
    Some(format!(
        "{variable} is {index}; that GID of {name} is {what}; {best}"
    ))
}

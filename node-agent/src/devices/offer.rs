//! What of a node's RDMA devices is offered, and whether that stands in its ResourceSlice. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crds::Reason;
use crds::inventory::{Distance, Function, GidProtocol, LinkLayer, PortState};
use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceCapacity, DeviceTaint, ResourcePool, ResourceSlice,
    ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sha2::{Digest, Sha256};

use super::DRIVER;
use crate::checks::sickness::Sick;
use crate::host::Facts;
use crate::host::hca::{Hca, Port};

/// Devices that one slice holds at most.
const DEVICES: usize = 128;

/// As many where one of them has a taint.
const DEVICES_WITH_TAINTS: usize = 64;

/// The taint of a device that is not to be lent, for claims that ask for it by another class than ours. Its
/// value says why. Pods that have the device keep it.
const TAINT: &str = "hca.mooncake.io/sick";

/// Bytes of a text attribute at most.
const TEXT: usize = 64;

/// Characters of a device's name that its slots are named after.
const NAME: usize = 40;

/// The attribute of a device that is not to be lent: why.
const SICK: &str = "sick";

/// One claim's share of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot<'a> {
    pub(crate) name: String,
    pub(crate) hca: &'a Hca,
    index: u8,
}

/// The slots of all devices that can be opened. The first of each device come first, so that
/// a scheduler that takes the first free one spreads claims over the devices.
pub(crate) fn slots(facts: &Facts, per_hca: u8) -> Vec<Slot<'_>> {
    let slots = (0..per_hca).flat_map(|index| {
        usable(facts).map(move |hca| Slot {
            name: format!("{}-slot-{index}", label(&hca.name)),
            hca,
            index,
        })
    });
    slots.take(DEVICES).collect()
}

/// How many slots more there would be than one slice holds.
pub(crate) fn left_out(facts: &Facts, per_hca: u8) -> usize {
    (usable(facts).count() * usize::from(per_hca)).saturating_sub(DEVICES)
}

/// The devices that can be opened.
fn usable(facts: &Facts) -> impl Iterator<Item = &Hca> {
    facts.hcas.iter().filter(|hca| hca.device_file.is_some())
}

/// A DNS label that is one device's alone: `mlx5_0` as `mlx5-0`, others with a part of their hash.
fn label(name: &str) -> String {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if plain && name.len() <= NAME && !name.starts_with('_') && !name.ends_with('_') {
        return name.replace('_', "-");
    }
    let known = name.chars().filter(char::is_ascii_alphanumeric).take(NAME);
    let known: String = known.collect::<String>().to_ascii_lowercase();
    let hash = Sha256::digest(name.as_bytes());
    let hash: String = hash
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("x{known}-{hash}")
}

/// The spec of the node's slice; its generation is another's to count.
pub(crate) fn spec(node: &str, facts: &Facts, per_hca: u8, sick: &Sick) -> ResourceSliceSpec {
    let slots = slots(facts, per_hca);
    let devices = slots.iter().map(|slot| Device {
        // A cluster that keeps no taints drops them, and has the attributes.
        taints: sick
            .get(&slot.hca.name)
            .filter(|_| slots.len() <= DEVICES_WITH_TAINTS)
            .map(|why| vec![taint(*why)]),
        ..device(slot, facts, per_hca, sick)
    });
    ResourceSliceSpec {
        driver: DRIVER.to_owned(),
        node_name: Some(node.to_owned()),
        pool: ResourcePool {
            name: node.to_owned(),
            generation: 0,
            resource_slice_count: 1,
        },
        devices: Some(devices.collect()),
        ..ResourceSliceSpec::default()
    }
}

fn taint(why: Reason) -> DeviceTaint {
    DeviceTaint {
        key: TAINT.to_owned(),
        value: Some(why.as_str().to_owned()),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    }
}

fn device(slot: &Slot<'_>, facts: &Facts, per_hca: u8, sick: &Sick) -> Device {
    let port = best(slot.hca);
    let rate = port.and_then(|port| port.rate);
    let share = rate.map(|rate| DeviceCapacity {
        value: bits(rate.saturating_mul(1000) / u64::from(per_hca.max(1))),
        ..DeviceCapacity::default()
    });
    Device {
        name: slot.name.clone(),
        attributes: Some(attributes(slot, port, facts, sick)),
        capacity: share.map(|share| BTreeMap::from([("bandwidth".to_owned(), share)])),
        ..Device::default()
    }
}

/// The port that a claim is after: of several, one that can be used.
fn best(hca: &Hca) -> Option<&Port> {
    let order = |port: &&Port| (!port.is_usable(), port.state != Some(PortState::Active));
    hca.ports.iter().min_by_key(order)
}

/// What every device has is told of every device: an expression that asks for what one lacks fails
/// for all of them.
fn attributes(
    slot: &Slot<'_>,
    port: Option<&Port>,
    facts: &Facts,
    sick: &Sick,
) -> BTreeMap<String, DeviceAttribute> {
    let hca = slot.hca;
    let pci = hca.pci.as_ref();
    let gid = port.and_then(|port| port.chosen.ok());
    let protocol = port.and_then(|port| {
        let chosen = port.gids.iter().find(|entry| Some(entry.index) == gid)?;
        chosen.protocol
    });
    let ails = sick.get(&hca.name);
    let standard = |name: &str| format!("resource.kubernetes.io/{name}");
    let told = [
        ("rdmaDevice".to_owned(), Some(text(&hca.name))),
        ("slot".to_owned(), Some(number(slot.index))),
        (
            "usable".to_owned(),
            Some(truth(ails.is_none() && port.is_some_and(Port::is_usable))),
        ),
        (SICK.to_owned(), ails.map(|why| text(why.as_str()))),
        (
            "portState".to_owned(),
            Some(text(state(port.and_then(|port| port.state)))),
        ),
        (
            "linkLayer".to_owned(),
            Some(text(layer(port.and_then(|port| port.link_layer)))),
        ),
        (
            "rateGbps".to_owned(),
            Some(number(port.and_then(|port| port.rate).map_or(0, gigabits))),
        ),
        ("gdr".to_owned(), gpu_direct(hca, facts).map(text)),
        (
            "virtualFunction".to_owned(),
            Some(truth(hca.function == Some(Function::Virtual))),
        ),
        ("gidIndex".to_owned(), gid.map(number)),
        (
            "gidType".to_owned(),
            protocol.map(|kind| text(spoken(kind))),
        ),
        ("firmware".to_owned(), hca.firmware.as_deref().map(version)),
        (
            "numaNode".to_owned(),
            pci.and_then(|pci| pci.numa_node).map(number),
        ),
        ("nearestGpu".to_owned(), nearest(hca, facts).map(text)),
        (standard("pciBusID"), pci.map(|pci| text(&pci.address))),
        (
            standard("pcieRoot"),
            pci.and_then(|pci| pci.above.first()).map(|root| text(root)),
        ),
    ];
    told.into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// By which way the drivers let the device reach GPU memory; that it works only a registration shows.
fn gpu_direct(hca: &Hca, facts: &Facts) -> Option<&'static str> {
    facts.gpu_driver.as_ref()?;
    hca.pci.as_ref()?;
    let dma_buf = facts.gpu_direct().any(|(dma_buf, _)| dma_buf);
    Some(match (dma_buf, facts.peer_memory()) {
        (true, _) => "dmabuf",
        (false, true) => "peermem",
        (false, false) => "none",
    })
}

fn nearest<'a>(hca: &Hca, facts: &'a Facts) -> Option<&'a str> {
    let gpus = facts
        .gpus
        .iter()
        .map(|gpu| (Facts::distance(hca, gpu), gpu));
    let (distance, gpu) = gpus.min_by_key(|(distance, _)| *distance)?;
    (distance <= Distance::HostBridge).then_some(gpu.pci.address.as_str())
}

fn state(state: Option<PortState>) -> &'static str {
    match state {
        Some(PortState::Down) => "down",
        Some(PortState::Initializing) => "initializing",
        Some(PortState::Armed) => "armed",
        Some(PortState::Active) => "active",
        Some(PortState::ActiveDefer) => "activeDefer",
        Some(PortState::Other) | None => "unknown",
    }
}

fn layer(layer: Option<LinkLayer>) -> &'static str {
    match layer {
        Some(LinkLayer::InfiniBand) => "infiniband",
        Some(LinkLayer::Ethernet) => "ethernet",
        Some(LinkLayer::Other) | None => "other",
    }
}

fn spoken(protocol: GidProtocol) -> &'static str {
    match protocol {
        GidProtocol::InfiniBand => "infiniband",
        GidProtocol::RoCEv1 => "roce-v1",
        GidProtocol::RoCEv2 => "roce-v2",
    }
}

fn gigabits(megabits: u64) -> i64 {
    i64::try_from(megabits / 1000).unwrap_or(i64::MAX)
}

fn number(value: impl Into<i64>) -> DeviceAttribute {
    DeviceAttribute {
        int: Some(value.into()),
        ..DeviceAttribute::default()
    }
}

fn truth(value: bool) -> DeviceAttribute {
    DeviceAttribute {
        bool: Some(value),
        ..DeviceAttribute::default()
    }
}

fn text(value: &str) -> DeviceAttribute {
    let end = value.floor_char_boundary(TEXT);
    DeviceAttribute {
        string: Some(value[..end].to_owned()),
        ..DeviceAttribute::default()
    }
}

/// A semantic version has three numbers without leading zeros; a vendor's often has not.
fn version(value: &str) -> DeviceAttribute {
    let parts: Vec<&str> = value.split('.').collect();
    let sound = |part: &&str| {
        part.parse::<u32>()
            .is_ok_and(|number| number.to_string() == **part)
    };
    if parts.len() != 3 || !parts.iter().all(sound) {
        return text(value);
    }
    DeviceAttribute {
        version: Some(value.to_owned()),
        ..DeviceAttribute::default()
    }
}

/// Bits a second as the API server itself would write it, of thousands of them.
fn bits(thousands: u64) -> Quantity {
    let mut left = thousands;
    let mut units = ["k", "M", "G", "T", "P"].iter();
    let mut unit = units.next();
    while left > 0 && left.is_multiple_of(1000) {
        let Some(next) = units.next() else { break };
        unit = Some(next);
        left /= 1000;
    }
    match (left, unit) {
        (0, _) | (_, None) => Quantity("0".to_owned()),
        (left, Some(unit)) => Quantity(format!("{left}{unit}")),
    }
}

/// What the API server made of a spec that we sent: it drops what is behind a gate that is off.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) sent: ResourceSliceSpec,
    pub(crate) stands: ResourceSliceSpec,
}

/// What is to be written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    Create(Box<ResourceSlice>),
    Replace(Box<ResourceSlice>),
}

/// What is to be written so that the slice says what is wanted; nothing where it does.
pub(crate) fn due(
    found: Option<&ResourceSlice>,
    wanted: &ResourceSliceSpec,
    node_uid: &str,
    accepted: Option<&Accepted>,
) -> Option<Write> {
    let node = wanted.node_name.as_deref().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let slice = |generation, resource_version| {
        let mut spec = wanted.clone();
        spec.pool.generation = generation;
        Box::new(ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name(node)),
                owner_references: Some(vec![owner.clone()]),
                resource_version,
                ..ObjectMeta::default()
            },
            spec,
        })
    };
    let Some(found) = found else {
        // A node without devices needs no object that says so.
        let some = wanted.devices.iter().any(|devices| !devices.is_empty());
        return some.then(|| Write::Create(slice(1, None)));
    };
    let owned = found
        .metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.uid == node_uid);
    let as_accepted = accepted.is_some_and(|accepted| {
        same(&accepted.sent, wanted) && same(&accepted.stands, &found.spec)
    });
    if owned && (same(&found.spec, wanted) || as_accepted) {
        return None;
    }
    let next = found.spec.pool.generation + 1;
    Some(Write::Replace(slice(
        next,
        found.metadata.resource_version.clone(),
    )))
}

/// What a change of the offer means to who is about to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A device is offered of which it is known by now that it is of no use.
    Sickens,
    /// A device is well again: for good, or for a moment.
    Recovers,
    /// Neither.
    Other,
}

/// What is to be told by a change from one offer to another.
pub(crate) fn turn(stands: &ResourceSliceSpec, wanted: &ResourceSliceSpec) -> Turn {
    let (before, now) = (sick_slots(stands), sick_slots(wanted));
    if !now.is_subset(&before) {
        Turn::Sickens
    } else if now != before {
        Turn::Recovers
    } else {
        Turn::Other
    }
}

fn sick_slots(spec: &ResourceSliceSpec) -> BTreeSet<&str> {
    let devices = spec.devices.iter().flatten();
    let sick = devices.filter(|device| {
        let mut attributes = device.attributes.iter();
        attributes.any(|attributes| attributes.contains_key(SICK))
    });
    sick.map(|device| device.name.as_str()).collect()
}

/// Name of a node's slice.
pub(crate) fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// True where two specs offer the same. No devices and an empty list of them are the same.
fn same(one: &ResourceSliceSpec, other: &ResourceSliceSpec) -> bool {
    let bare = |spec: &ResourceSliceSpec| {
        let mut spec = spec.clone();
        spec.pool.generation = 0;
        spec.devices = spec.devices.filter(|devices| !devices.is_empty());
        spec
    };
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests;

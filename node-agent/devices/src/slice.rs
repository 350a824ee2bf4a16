//! Content of the node's ResourceSlice, and the write that it needs. Pure.

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

use super::{DRIVER, UnhealthyDevices};
use host::hca::{Hca, Port};
use host::{Facts, Snapshot};

/// Most devices of a slice.
const DEVICES: usize = 128;

/// Most devices of a slice with taints.
const DEVICES_WITH_TAINTS: usize = 64;

/// Taint of an unhealthy device, for claims with another DeviceClass. The value is the Reason. Pods that hold the
/// device keep it.
const TAINT: &str = "hca.mooncake.io/unhealthy";

/// Most bytes of a string attribute.
const TEXT: usize = 64;

/// Most characters of a device's name in the names of its slots.
const NAME: usize = 40;

/// Attribute of an unhealthy device, with the Reason.
const UNHEALTHY: &str = "unhealthy";

/// A share of an RDMA device that one claim can allocate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot<'a> {
    pub(crate) name: String,
    pub(crate) hca: &'a Hca,
    index: u8,
}

/// Slots of all devices that have a device file. Slot 0 of each device comes first, so that a scheduler that
/// takes the first free slot spreads claims over the devices.
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

/// Number of slots that exceed the slice.
pub(crate) fn left_out(facts: &Facts, per_hca: u8) -> usize {
    (usable(facts).count() * usize::from(per_hca)).saturating_sub(DEVICES)
}

/// Devices with a device file.
fn usable(facts: &Facts) -> impl Iterator<Item = &Hca> {
    facts.hcas.iter().filter(|hca| hca.device_file.is_some())
}

/// A unique DNS label for a device: `mlx5-0` for `mlx5_0`, others with a part of their hash.
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

/// Spec of the node's slice, with pool generation 0.
pub(crate) fn spec(
    node: &str,
    snapshot: &Snapshot,
    per_hca: u8,
    unhealthy: &UnhealthyDevices,
) -> ResourceSliceSpec {
    let slots = slots(&snapshot.facts, per_hca);
    let devices = slots.iter().map(|slot| Device {
        // A cluster without device taints drops them; the attributes stay.
        taints: unhealthy
            .get(&slot.hca.name)
            .filter(|_| slots.len() <= DEVICES_WITH_TAINTS)
            .map(|why| vec![taint(*why)]),
        ..device(slot, snapshot, per_hca, unhealthy)
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

fn device(
    slot: &Slot<'_>,
    snapshot: &Snapshot,
    per_hca: u8,
    unhealthy: &UnhealthyDevices,
) -> Device {
    let port = best(slot.hca);
    let rate = port.and_then(|port| port.rate);
    let share = rate.map(|rate| DeviceCapacity {
        value: bits(rate.saturating_mul(1000) / u64::from(per_hca.max(1))),
        ..DeviceCapacity::default()
    });
    Device {
        name: slot.name.clone(),
        attributes: Some(attributes(slot, port, snapshot, unhealthy)),
        capacity: share.map(|share| BTreeMap::from([("bandwidth".to_owned(), share)])),
        ..Device::default()
    }
}

/// The port that the slot describes: a usable one if there are several.
fn best(hca: &Hca) -> Option<&Port> {
    let order = |port: &&Port| (!port.is_usable(), port.state != Some(PortState::Active));
    hca.ports.iter().min_by_key(order)
}

/// Attributes of a slot. Common ones are always set: a CEL expression over a missing attribute fails for all
/// devices.
fn attributes(
    slot: &Slot<'_>,
    port: Option<&Port>,
    snapshot: &Snapshot,
    unhealthy: &UnhealthyDevices,
) -> BTreeMap<String, DeviceAttribute> {
    let hca = slot.hca;
    let pci = hca.pci.as_ref();
    let gid = port.and_then(|port| port.chosen.ok());
    let protocol = port.and_then(|port| {
        let chosen = port.gids.iter().find(|entry| Some(entry.index) == gid)?;
        chosen.protocol
    });
    let reason = unhealthy.get(&hca.name);
    let standard = |name: &str| format!("resource.kubernetes.io/{name}");
    let values = [
        ("rdmaDevice".to_owned(), Some(text(&hca.name))),
        ("slot".to_owned(), Some(number(slot.index))),
        (
            "usable".to_owned(),
            Some(boolean(
                reason.is_none() && port.is_some_and(Port::is_usable),
            )),
        ),
        (
            UNHEALTHY.to_owned(),
            reason.map(|reason| text(reason.as_str())),
        ),
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
        ("gdr".to_owned(), gpu_direct(hca, snapshot).map(text)),
        (
            "virtualFunction".to_owned(),
            Some(boolean(hca.function == Some(Function::Virtual))),
        ),
        ("gidIndex".to_owned(), gid.map(number)),
        (
            "gidType".to_owned(),
            protocol.map(|kind| text(gid_type(kind))),
        ),
        ("firmware".to_owned(), hca.firmware.as_deref().map(version)),
        (
            "numaNode".to_owned(),
            pci.and_then(|pci| pci.numa_node).map(number),
        ),
        (
            "nearestGpu".to_owned(),
            nearest(hca, &snapshot.facts).map(text),
        ),
        (standard("pciBusID"), pci.map(|pci| text(&pci.address))),
        (
            standard("pcieRoot"),
            pci.and_then(|pci| pci.above.first()).map(|root| text(root)),
        ),
    ];
    values
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// The path to GPU memory that the drivers support; only a registration proves it.
fn gpu_direct(hca: &Hca, snapshot: &Snapshot) -> Option<&'static str> {
    snapshot.facts.gpu_driver.as_ref()?;
    hca.pci.as_ref()?;
    let dma_buf = snapshot.gpu_direct().any(|(dma_buf, _)| dma_buf);
    Some(match (dma_buf, snapshot.facts.peer_memory()) {
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

fn gid_type(protocol: GidProtocol) -> &'static str {
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

fn boolean(value: bool) -> DeviceAttribute {
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

/// A version attribute if the value is a semantic version, else a string.
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

/// Kilobits per second as a Quantity in canonical form.
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

/// A sent spec and the spec that the API server stored: it drops fields of disabled feature gates.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) sent: ResourceSliceSpec,
    pub(crate) stored: ResourceSliceSpec,
}

/// A write of the slice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    Create(Box<ResourceSlice>),
    Replace(Box<ResourceSlice>),
}

/// The write that the slice needs; none if it is up to date.
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
        // A node without devices gets no slice.
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
        same(&accepted.sent, wanted) && same(&accepted.stored, &found.spec)
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

/// What a new spec changes for claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A published device became unhealthy.
    Degrades,
    /// A device recovered, perhaps for a moment only.
    Recovers,
    Other,
}

/// Compares the stored spec with the wanted one.
pub(crate) fn change(stored: &ResourceSliceSpec, wanted: &ResourceSliceSpec) -> Change {
    let (before, now) = (unhealthy_slots(stored), unhealthy_slots(wanted));
    if !now.is_subset(&before) {
        Change::Degrades
    } else if now != before {
        Change::Recovers
    } else {
        Change::Other
    }
}

fn unhealthy_slots(spec: &ResourceSliceSpec) -> BTreeSet<&str> {
    let devices = spec.devices.iter().flatten();
    let unhealthy = devices.filter(|device| {
        let mut attributes = device.attributes.iter();
        attributes.any(|attributes| attributes.contains_key(UNHEALTHY))
    });
    unhealthy.map(|device| device.name.as_str()).collect()
}

/// Name of a node's slice.
pub(crate) fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// Compares two specs without pool generation; no devices and an empty list are equal.
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

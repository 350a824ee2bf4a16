//! PCI devices: their place in the tree of bridges, and the distance between two.

use crds::inventory::{Distance, Function, PciLink};
use serde::{Deserialize, Serialize};

use super::tree::Tree;

/// Facts of a PCI device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    pub address: String,
    /// Vendor and device, e.g. `15b3:1021`.
    pub model: Option<String>,
    pub driver: Option<String>,
    pub numa_node: Option<u32>,
    pub link: Option<PciLink>,
    /// The host bridge and every bridge down to the device, without the device.
    pub above: Vec<String>,
}

/// Models of mlx5 virtual functions. sysfs marks a virtual function only where its physical function is visible, which is
/// not the case in a virtual machine.
const VIRTUAL: [&str; 8] = [
    "15b3:1014",
    "15b3:1016",
    "15b3:1018",
    "15b3:101a",
    "15b3:101c",
    "15b3:101e",
    "15b3:a2d3",
    "15b3:a2d7",
];

/// Vendor of GPUs and NVLink switches.
const NVIDIA: &str = "10de";

/// The device with this address, in any case of letters.
pub(super) fn device(tree: &Tree, address: &str) -> PciDevice {
    let at = format!("sys/bus/pci/devices/{address}");
    let number = |name: &str| {
        let path = format!("{at}/{name}");
        tree.parsed(&path, tree.text(&path)?, hexadecimal)
    };
    let (vendor, model) = (number("vendor"), number("device"));
    PciDevice {
        address: address.to_owned(),
        model: vendor
            .zip(model)
            .map(|(vendor, model)| format!("{vendor:04x}:{model:04x}")),
        driver: tree.link_name(&format!("{at}/driver")),
        // -1 where the firmware does not report it.
        numa_node: tree
            .value::<i32>(&format!("{at}/numa_node"))
            .and_then(|node| u32::try_from(node).ok()),
        link: link(tree, &at),
        above: tree
            .link(&at)
            .map_or_else(Vec::new, |target| bridges(&target)),
    }
}

/// Addresses of all GPUs.
pub(super) fn gpus(tree: &Tree) -> Vec<String> {
    let mut addresses = tree.list("sys/bus/pci/devices");
    addresses.retain(|address| {
        let read = |name: &str| {
            let path = format!("sys/bus/pci/devices/{address}/{name}");
            tree.parsed(&path, tree.text(&path)?, hexadecimal)
        };
        // A display controller: VGA or 3D.
        read("class").is_some_and(|class| class >> 16 == 0x03)
            && read("vendor").is_some_and(|vendor| format!("{vendor:04x}") == NVIDIA)
    });
    addresses
}

/// Physical or virtual function, and the number of virtual functions of a physical one.
pub(super) fn function(tree: &Tree, device: &PciDevice) -> (Option<Function>, Option<u32>) {
    let at = format!("sys/bus/pci/devices/{}", device.address);
    let known = device
        .model
        .as_ref()
        .is_some_and(|model| VIRTUAL.contains(&model.as_str()));
    if known || tree.link(&format!("{at}/physfn")).is_some() {
        return (Some(Function::Virtual), None);
    }
    let count = tree.value(&format!("{at}/sriov_numvfs"));
    (count.map(|_: u32| Function::Physical), count)
}

fn link(tree: &Tree, at: &str) -> Option<PciLink> {
    // Virtual devices have no link: `Unknown`, or a width of 0 or 255.
    let speed = |name: &str| {
        let text = tree.text(&format!("{at}/{name}"))?;
        let text = text.strip_suffix(" PCIe").unwrap_or(&text);
        (!text.starts_with("Unknown")).then(|| text.to_owned())
    };
    let width = |name: &str| {
        let width: u32 = tree.value(&format!("{at}/{name}"))?;
        (1..=64).contains(&width).then_some(width)
    };
    Some(PciLink {
        speed: speed("current_link_speed")?,
        width: width("current_link_width")?,
        max_speed: speed("max_link_speed")?,
        max_width: width("max_link_width")?,
    })
}

/// Distance between two devices.
pub fn distance(one: &PciDevice, other: &PciDevice) -> Distance {
    let pairs = one.above.iter().zip(&other.above);
    let shared = pairs.take_while(|(one, other)| one == other).count();
    let numa = one.numa_node.zip(other.numa_node);
    match (shared, numa) {
        _ if one.above.is_empty() || other.above.is_empty() => Distance::Unknown,
        (0, None) => Distance::Unknown,
        (0, Some((one, other))) if one == other => Distance::NumaNode,
        (0, Some(_)) => Distance::System,
        // The host bridge alone.
        (1, _) => Distance::HostBridge,
        // Each is below a port of the last shared bridge, or below that bridge itself.
        _ if one.above.len() <= shared + 1 && other.above.len() <= shared + 1 => Distance::Switch,
        _ => Distance::Switches,
    }
}

/// The bridges in a link such as `../../../devices/pci0000:15/0000:15:01.0/0000:18:00.0`, without
/// the device itself.
fn bridges(target: &str) -> Vec<String> {
    let parts = target.split('/').skip_while(|part| !is_host_bridge(part));
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    parts.pop();
    parts
}

fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci")
        .is_some_and(|rest| rest.contains(':') && rest.starts_with(|c: char| c.is_ascii_hexdigit()))
}

/// True for an address such as `0000:18:00.0`.
pub(super) fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let hexadecimal = |part: &&str| u32::from_str_radix(part, 16).is_ok();
    parts.len() == 4 && text.len() <= 16 && parts.iter().all(hexadecimal)
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(target: &str, numa_node: Option<u32>) -> PciDevice {
        PciDevice {
            address: String::new(),
            model: None,
            driver: None,
            numa_node,
            link: None,
            above: bridges(target),
        }
    }

    #[test]
    fn distance_is_what_nvidia_smi_calls_it() {
        let near = |one: &str, other: &str| distance(&at(one, Some(0)), &at(other, Some(1)));
        let devices = "../../../devices/pci0000:15";
        let below = |rest: &str| format!("{devices}/{rest}");
        for (one, other, expected) in [
            ("01.0/sw/p1/nic", "01.0/sw/p2/gpu", Distance::Switch),
            ("01.0/nic", "01.0/gpu", Distance::Switch),
            (
                "01.0/sw/p1/nic",
                "01.0/sw/p2/sw2/p3/gpu",
                Distance::Switches,
            ),
            ("01.0/nic", "02.0/gpu", Distance::HostBridge),
            ("nic", "gpu", Distance::HostBridge),
        ] {
            assert_eq!(near(&below(one), &below(other)), expected, "{one} {other}");
        }
        let (here, there) = (below("nic"), "../../../devices/pci0000:97/01.0/gpu");
        assert_eq!(near(&here, there), Distance::System);
        let same = distance(&at(&here, Some(1)), &at(there, Some(1)));
        assert_eq!(same, Distance::NumaNode);
        assert_eq!(
            distance(&at(&here, None), &at(there, None)),
            Distance::Unknown
        );
        assert_eq!(near("../../devices/virtual/rxe0", there), Distance::Unknown);
    }

    #[test]
    fn only_pci_addresses_are_recognised() {
        for address in ["0000:18:00.0", "ffff:ff:1f.7", "10000:e1:00.0"] {
            assert!(is_address(address), "{address}");
        }
        for other in ["", "virtio0", "0000:18:00", "0000:18:00.0:1", "a.b:c.z"] {
            assert!(!is_address(other), "{other}");
        }
    }
}

//! RDMA devices and their ports, from sysfs.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crds::inventory::{Function, LinkLayer, NoGid, PortState};
use serde::{Deserialize, Serialize};

use super::fault::Problem;
use super::gid::{self, Gid};
use super::interface::{self, Interface};
use super::path::FileKind;
use super::pci::{self, PciDevice};
use super::tree::Tree;

pub const CLASS: &str = "sys/class/infiniband";

/// Highest port number of a device.
const PORTS: u8 = 8;

/// The kernel's values for a device without firmware.
const NO_FIRMWARE: [&str; 2] = ["", "0.0.0"];

/// Error counters. Devices have different ones.
const COUNTERS: [&str; 16] = [
    "counters/excessive_buffer_overrun_errors",
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/local_link_integrity_errors",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/symbol_error",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/out_of_buffer",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/retrans_timeout_events",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/roce_adp_retrans_to",
    "hw_counters/rx_drops",
    "hw_counters/unresponsive_remote_events",
];

/// One RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hca {
    pub name: String,
    /// Absent for a device that is not on PCI, such as Soft-RoCE.
    pub pci: Option<PciDevice>,
    pub function: Option<Function>,
    /// Number of its virtual functions.
    pub virtual_functions: Option<u32>,
    pub firmware: Option<String>,
    pub board: Option<String>,
    pub node_guid: Option<String>,
    /// The uverbs file that programs open, where /dev has one with the device's number.
    pub device_file: Option<DeviceFile>,
    pub ports: Vec<Port>,
}

/// A character device in /dev/infiniband.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFile {
    pub name: String,
    pub major: u32,
    pub minor: u32,
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub number: u8,
    pub state: Option<PortState>,
    /// The kernel's name of it.
    pub physical_state: Option<String>,
    pub link_layer: Option<LinkLayer>,
    /// In megabits a second.
    pub rate: Option<u64>,
    /// Assigned by the subnet manager of InfiniBand; absent on Ethernet.
    pub lid: Option<u16>,
    pub interfaces: Vec<Interface>,
    /// The GID table without its empty entries.
    pub gids: Vec<Gid>,
    pub chosen: Result<u16, NoGid>,
    /// Partition keys without the empty ones.
    pub partition_keys: Vec<u16>,
    /// The counters of [`COUNTERS`] that the device has.
    pub counters: BTreeMap<String, u64>,
}

impl Port {
    /// True where peers can use the port: it is active and has a GID that they can reach.
    pub fn is_usable(&self) -> bool {
        self.state == Some(PortState::Active) && self.chosen.is_ok()
    }

    /// The GID that peers use.
    pub fn address(&self) -> Option<Ipv6Addr> {
        let index = self.chosen.ok()?;
        let mut gids = self.gids.iter();
        gids.find(|gid| gid.index == index).map(|gid| gid.address)
    }

    /// Path MTU of RoCE in bytes, by the MTU of the port's own interfaces. The kernel does not publish that of InfiniBand.
    pub fn path_mtu(&self) -> Option<u32> {
        let own = self.interfaces.iter().filter(|of| !of.stacked);
        let least = own.filter_map(|of| interface::path_mtu(of.mtu?)).min();
        least.filter(|_| self.link_layer == Some(LinkLayer::Ethernet))
    }
}

impl Hca {
    /// A device of which only the name is known.
    pub(super) fn unresponsive(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            pci: None,
            function: None,
            virtual_functions: None,
            firmware: None,
            board: None,
            node_guid: None,
            device_file: None,
            ports: Vec::new(),
        }
    }
}

/// Names of all devices.
pub(super) fn names(tree: &Tree) -> Vec<String> {
    let mut names = tree.list(CLASS);
    names.sort_by_key(|name| natural_order(name));
    names
}

/// Sort key by which `mlx5_2` comes before `mlx5_10`.
fn natural_order(name: &str) -> (String, u64, String) {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (word, number) = name.split_at(name.len() - digits);
    (
        word.to_owned(),
        number.parse().unwrap_or(0),
        name.to_owned(),
    )
}

/// Reads one device. Blocks while the device does not answer its driver.
pub(super) fn read(tree: &Tree, name: &str) -> Hca {
    let at = format!("{CLASS}/{name}");
    let text = |name: &str| tree.text(&format!("{at}/{name}"));
    let pci = tree
        .link_name(&format!("{at}/device"))
        .filter(|address| pci::is_address(address))
        .map(|address| pci::device(tree, &address));
    let (function, virtual_functions) = pci
        .as_ref()
        .map_or((None, None), |device| pci::function(tree, device));
    let own = tree.list(&format!("{at}/device/net"));
    let ports = tree.list(&format!("{at}/ports"));
    let ports = ports.iter().filter_map(|number| {
        let number = number
            .parse()
            .ok()
            .filter(|number| (1..=PORTS).contains(number))?;
        Some(port(tree, &format!("{at}/ports/{number}"), number, &own))
    });
    Hca {
        name: name.to_owned(),
        function,
        virtual_functions,
        firmware: text("fw_ver").filter(|text| !NO_FIRMWARE.contains(&text.as_str())),
        board: text("board_id").filter(|text| !text.is_empty()),
        node_guid: tree.need(&format!("{at}/node_guid")),
        device_file: device_file(tree, name),
        ports: ports.collect(),
        pci,
    }
}

/// The uverbs file of a device, if /dev has it with the device's number.
fn device_file(tree: &Tree, name: &str) -> Option<DeviceFile> {
    let class = "sys/class/infiniband_verbs";
    let file = tree.list(class).into_iter().find(|file| {
        file.starts_with("uverbs")
            && tree.text(&format!("{class}/{file}/ibdev")).as_deref() == Some(name)
    })?;
    let path = format!("{class}/{file}/dev");
    let numbers = tree.parsed(&path, tree.need(&path)?, |text| {
        let (major, minor) = text.split_once(':')?;
        Some(FileKind::Device {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    })?;
    device_node(tree, &file).filter(|file| {
        numbers
            == FileKind::Device {
                major: file.major,
                minor: file.minor,
            }
    })
}

/// A file of /dev/infiniband, if it is a device.
pub(super) fn device_node(tree: &Tree, name: &str) -> Option<DeviceFile> {
    match tree.node(&format!("dev/infiniband/{name}"))? {
        FileKind::Device { major, minor } => Some(DeviceFile {
            name: name.to_owned(),
            major,
            minor,
        }),
        _ => None,
    }
}

fn port(tree: &Tree, at: &str, number: u8, own: &[String]) -> Port {
    let path = |name: &str| format!("{at}/{name}");
    let need = |name: &str| tree.need(&path(name));
    let link_layer = need("link_layer").map(|word| match word.as_str() {
        "InfiniBand" => LinkLayer::InfiniBand,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Other,
    });
    let gids = gids(tree, at, link_layer);
    let interfaces = interfaces(tree, at, own, &gids);
    let known: Vec<String> = interfaces
        .iter()
        .filter(|interface| !interface.stacked)
        .flat_map(|interface| {
            [Some(interface.name.clone()), interface.master.clone()]
                .into_iter()
                .flatten()
        })
        .collect();
    Port {
        number,
        state: need("state").and_then(|text| tree.parsed(&path("state"), text, state)),
        physical_state: need("phys_state")
            .and_then(|text| tree.parsed(&path("phys_state"), text, |text| Some(word(text)?.1))),
        link_layer,
        lid: (link_layer == Some(LinkLayer::InfiniBand))
            .then(|| tree.parsed(&path("lid"), tree.text(&path("lid"))?, lid))
            .flatten(),
        rate: need("rate").and_then(|text| tree.parsed(&path("rate"), text, rate)),
        chosen: gids.as_ref().map_or(Err(NoGid::Unread), |gids| {
            gid::choose(gids, link_layer, &known)
        }),
        gids: gids.unwrap_or_default(),
        interfaces,
        partition_keys: partition_keys(tree, at),
        counters: counters(tree, at),
    }
}

/// The GID table without its empty entries; none if a part of it cannot be read.
fn gids(tree: &Tree, at: &str, layer: Option<LinkLayer>) -> Option<Vec<Gid>> {
    let mut whole = true;
    let mut gids = Vec::new();
    for name in tree.list(&format!("{at}/gids")) {
        let path = format!("{at}/gids/{name}");
        let Ok(index) = name.parse() else { continue };
        let address = tree
            .need(&path)
            .and_then(|text| tree.parsed(&path, text, |text| text.parse::<Ipv6Addr>().ok()));
        let Some(address) = address else {
            whole = false;
            continue;
        };
        if address.is_unspecified() {
            continue;
        }
        gids.push(Gid {
            index,
            address,
            protocol: attribute(tree, &format!("{at}/gid_attrs/types/{name}"))
                .and_then(|word| gid::protocol(&word, layer)),
            interface: network(tree, &format!("{at}/gid_attrs/ndevs/{name}")),
        });
    }
    gids.sort_unstable_by_key(|gid| gid.index);
    whole.then_some(gids)
}

/// An attribute of a GID. The kernel returns EINVAL where an entry does not have it.
fn attribute(tree: &Tree, path: &str) -> Option<String> {
    match tree.try_text(path) {
        Ok(text) => Some(text),
        Err(Problem::ABSENT) => None,
        Err(Problem::Errno(errno)) if errno == rustix::io::Errno::INVAL.raw_os_error() => None,
        Err(problem) => {
            tree.note(path, problem);
            None
        }
    }
}

/// The name of a network interface.
fn network(tree: &Tree, path: &str) -> Option<String> {
    tree.parsed(path, attribute(tree, path)?, |name| {
        let sound = (1..16).contains(&name.len()) && !name.contains(['/', ' ']) && name != "..";
        sound.then(|| name.to_owned())
    })
}

/// The device's interfaces of this port, and those that its GIDs name.
fn interfaces(tree: &Tree, at: &str, own: &[String], gids: &Option<Vec<Gid>>) -> Vec<Interface> {
    let number = at
        .rsplit('/')
        .next()
        .and_then(|text| text.parse::<u32>().ok());
    // Both ports of an older device share one PCI function. dev_port starts at 0.
    let carries = |name: &String| {
        let port: Option<u32> = tree.value(&format!("sys/class/net/{name}/dev_port"));
        own.len() < 2
            || port
                .zip(number)
                .is_none_or(|(port, number)| port + 1 == number)
    };
    let mut found: Vec<Interface> = own
        .iter()
        .filter(|name| carries(name))
        .filter_map(|name| interface::read(tree, name, false))
        .collect();
    let named = gids
        .iter()
        .flatten()
        .filter_map(|gid| gid.interface.clone());
    for name in named {
        let known = found.iter().any(|interface| interface.name == name);
        if !known {
            // A virtual device such as Soft-RoCE has only interfaces that its GIDs name.
            let own_master = found
                .iter()
                .any(|known| known.master.as_ref() == Some(&name));
            let stacked = !own.is_empty() && !own_master;
            found.extend(interface::read(tree, &name, stacked));
        }
    }
    found
}

fn partition_keys(tree: &Tree, at: &str) -> Vec<u16> {
    let mut names = tree.list(&format!("{at}/pkeys"));
    names.sort_by_key(|name| natural_order(name));
    let keys = names.iter().filter_map(|name| {
        let path = format!("{at}/pkeys/{name}");
        let key = tree.parsed(&path, tree.need(&path)?, |text| {
            u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
        })?;
        (key != 0).then_some(key)
    });
    keys.collect()
}

fn counters(tree: &Tree, at: &str) -> BTreeMap<String, u64> {
    let read = |name: &&str| {
        let path = format!("{at}/{name}");
        // `N/A (no PMA)` where the device does not count.
        let text = tree.text(&path).filter(|text| !text.starts_with("N/A"))?;
        let count = tree.parsed(&path, text, |text| text.parse().ok())?;
        Some((name.rsplit('/').next()?.to_owned(), count))
    };
    COUNTERS.iter().filter_map(read).collect()
}

/// `4: ACTIVE` as number and word.
fn word(text: &str) -> Option<(u32, String)> {
    let (number, word) = text.split_once(':')?;
    Some((number.trim().parse().ok()?, word.trim().to_owned()))
}

fn state(text: &str) -> Option<PortState> {
    Some(match word(text)?.0 {
        1 => PortState::Down,
        2 => PortState::Initializing,
        3 => PortState::Armed,
        4 => PortState::Active,
        5 => PortState::ActiveDefer,
        _ => PortState::Other,
    })
}

/// `0x1f`; 0 before the subnet manager has assigned one.
fn lid(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// `2.5 Gb/sec (1X SDR)` in megabits.
fn rate(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    if !unit.starts_with("Gb/sec") {
        return None;
    }
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let thousandths = format!("{part:0<3}");
    let thousandths: u64 = thousandths.get(..3)?.parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_in_megabits() {
        for (text, expected) in [
            ("400 Gb/sec (4X NDR)", Some(400_000)),
            ("2.5 Gb/sec (1X SDR)", Some(2_500)),
            ("25.78125 Gb/sec", Some(25_781)),
            ("0 Gb/sec", Some(0)),
            ("400Gb/sec", None),
            ("400 GB/sec", None),
            ("-1 Gb/sec", None),
            ("", None),
            ("99999999999999999999 Gb/sec", None),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
    }

    #[test]
    fn a_lid_is_read_in_hexadecimal_digits() {
        for (text, expected) in [("0x1f", Some(31)), ("0x0", Some(0)), ("31", None)] {
            assert_eq!(lid(text), expected, "{text}");
        }
    }

    #[test]
    fn an_unknown_state_is_kept_as_other() {
        assert_eq!(state("4: ACTIVE"), Some(PortState::Active));
        assert_eq!(state("9: SOMETHING"), Some(PortState::Other));
        assert_eq!(state("ACTIVE"), None);
    }

    #[test]
    fn devices_are_sorted_by_number() {
        let mut names = ["mlx5_10", "mlx5_2", "erdma_0", "mlx5_bond_0", "mlx5_"];
        names.sort_by_key(|name| natural_order(name));
        assert_eq!(
            names,
            ["erdma_0", "mlx5_", "mlx5_2", "mlx5_10", "mlx5_bond_0"]
        );
    }
}

//! GPUs, from PCI and from their driver's files in procfs.

use crds::inventory::GpuDriver;
use gpu_probe::{Proof, Stage};
use serde::{Deserialize, Serialize};

use super::path::FileKind;
use super::pci::{self, PciDevice};
use super::tree::Tree;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub pci: PciDevice,
    /// Name and UUID in procfs; absent where the driver does not have the GPU.
    pub name: Option<String>,
    pub uuid: Option<String>,
}

/// The path between a GPU's memory and an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    pub device: String,
    pub reached: Reached,
}

/// Result of the last probe of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reached {
    Proved { proof: Proof },
    Failed { proof: Proof },
    Unproved { why: String },
}

impl Reached {
    /// The result of a probe. A probe that failed before it used the GPU's memory proves nothing.
    pub fn of(proof: Proof) -> Self {
        let Some(failed) = &proof.failed else {
            return Self::Proved { proof };
        };
        match failed.stage {
            Stage::Export
            | Stage::Register
            | Stage::Write
            | Stage::Compare
            | Stage::Read
            | Stage::CompareBack => Self::Failed { proof },
            _ => Self::Unproved {
                why: failed.to_string(),
            },
        }
    }
}

/// IMEX, by which GPUs of several nodes share memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imex {
    /// Major number of its device files, where the driver supports IMEX.
    pub major: Option<u32>,
    /// Channels in /dev with that number.
    pub channels: Vec<u32>,
    /// The host's nvidia-imex service has a configured list of nodes.
    pub host_configured: bool,
}

pub(super) fn read(tree: &Tree) -> Vec<Gpu> {
    let addresses = pci::gpus(tree);
    let gpus = addresses.iter().map(|address| {
        let information = tree
            .text(&format!("proc/driver/nvidia/gpus/{address}/information"))
            .unwrap_or_default();
        let of = |name: &str| {
            information.lines().find_map(|line| {
                let (known, value) = line.split_once(':')?;
                (known.trim() == name).then(|| value.trim().to_owned())
            })
        };
        Gpu {
            pci: pci::device(tree, address),
            name: of("Model"),
            // Question marks until the driver has read it from the device.
            uuid: of("GPU UUID").filter(|uuid| !uuid.contains('?')),
        }
    });
    gpus.collect()
}

pub(super) fn driver(tree: &Tree) -> Option<GpuDriver> {
    let path = "proc/driver/nvidia/version";
    tree.parsed(path, tree.text(path)?, |text| {
        let line = text
            .lines()
            .find(|line| line.starts_with("NVRM version:"))?;
        let version = line.split_ascii_whitespace().find(|word| {
            let mut parts = word.split('.');
            parts.clone().count() >= 2
                && parts.all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        })?;
        Some(GpuDriver {
            version: version.to_owned(),
            open: line.contains("Open Kernel Module"),
        })
    })
}

pub(super) fn imex(tree: &Tree) -> Imex {
    let devices = tree.text("proc/devices").unwrap_or_default();
    let major = devices.lines().find_map(|line| {
        let (number, name) = line.trim().split_once(' ')?;
        (name == "nvidia-caps-imex-channels").then(|| number.parse().ok())?
    });
    let folder = "dev/nvidia-caps-imex-channels";
    let mut channels: Vec<u32> = tree
        .list(folder)
        .iter()
        .filter_map(|name| {
            let number = name.strip_prefix("channel")?.parse().ok()?;
            let there = tree.node(&format!("{folder}/{name}"));
            let real = FileKind::Device {
                major: major?,
                minor: number,
            };
            (there == Some(real)).then_some(number)
        })
        .collect();
    channels.sort_unstable();
    Imex {
        major,
        channels,
        host_configured: tree.node("etc/nvidia-imex/nodes_config.cfg").is_some(),
    }
}

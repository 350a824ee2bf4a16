//! GPUs, from PCI and from what their driver says in procfs.

use crds::inventory::GpuDriver;
use nvidia::{Answer, Cuda, Fabric, Proof, Stage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::pci::{self, PciDevice};
use super::tree::{Node, Tree};

/// Where recordings keep what GPUs told when they were asked by NVML and CUDA.
pub(crate) const ANSWERS: &str = "run/mooncake/gpu";

/// Where recordings keep which RDMA devices reached its memory.
const PATHS: &str = "run/mooncake/gpu-rdma";

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub pci: PciDevice,
    /// Name and UUID as procfs has them; absent where the driver does not hold it.
    pub name: Option<String>,
    pub uuid: Option<String>,
    /// What it told when it was asked by NVML and CUDA. No file tells it but that of a recording: the agent
    /// asks.
    pub answer: Option<Answer>,
    /// Which RDMA devices reached its memory when that was tried, likewise; the nearest first.
    pub paths: Vec<Path>,
}

/// A GPU's memory and an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    pub device: String,
    pub reached: Reached,
}

/// What came of it when it was tried last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reached {
    Proved { proof: Proof },
    Failed { proof: Proof },
    Unproved { why: String },
}

impl Reached {
    /// What a proof says: one that did not come as far as the GPU's memory says nothing of that.
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
            stage => Self::Unproved {
                why: format!("{}: {}", stage.words(), failed.words),
            },
        }
    }
}

impl Gpu {
    /// Where a recording keeps what the GPU told.
    pub(crate) fn answer_file(address: &str) -> String {
        format!("{ANSWERS}/{address}")
    }

    /// Where a recording keeps which RDMA devices reached its memory.
    pub(crate) fn paths_file(address: &str) -> String {
        format!("{PATHS}/{address}")
    }

    fn told(&self) -> Option<&nvidia::Facts> {
        self.answer.as_ref()?.facts.as_ref()
    }

    /// By NVML where that was asked: procfs has question marks until somebody has used the GPU.
    pub fn known_uuid(&self) -> Option<&str> {
        let told = self.told().map(|facts| facts.uuid.as_str());
        told.or(self.uuid.as_deref())
    }

    /// None where it was not asked, or is made for none.
    pub fn fabric(&self) -> Option<&Fabric> {
        self.told()?.fabric.as_ref()
    }

    /// What CUDA says that it can do; none where CUDA was not asked.
    pub fn can(&self) -> Option<Cuda> {
        self.told()?.cuda
    }
}

/// What GPUs of several nodes share memory through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imex {
    /// Major number of its device files, where the driver has it.
    pub major: Option<u32>,
    /// Channels that stand in /dev with that number.
    pub channels: Vec<u32>,
    /// The node has a list of nodes of its own, which the host's service reads.
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
            // Question marks where the driver has not yet asked the device.
            uuid: of("GPU UUID").filter(|uuid| !uuid.contains('?')),
            answer: told(tree, &Gpu::answer_file(address)),
            paths: told(tree, &Gpu::paths_file(address)).unwrap_or_default(),
        }
    });
    gpus.collect()
}

/// What only a recording has.
fn told<T: DeserializeOwned>(tree: &Tree, path: &str) -> Option<T> {
    tree.parsed(path, tree.text(path)?, |text| {
        serde_json::from_str(text).ok()
    })
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
            let real = Node::Device {
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

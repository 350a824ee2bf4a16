//! Messages between the agent and the program `gpu`, which probes one GPU with NVML and CUDA: one line of JSON each.
//!
//! The agent is linked statically and cannot load the libraries of NVIDIA's driver, and a failed GPU may block its
//! caller forever. So a small, dynamically linked process probes each GPU; its exit releases its GPU resources.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "program")]
pub mod probe;
#[cfg(feature = "program")]
mod proof;

/// Request to probe one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Its PCI address, e.g. `0000:18:00.0`.
    pub gpu: String,
    /// RDMA device that must reach its memory; only facts are read if absent.
    pub pair: Option<Pair>,
    /// Deadline in milliseconds.
    pub deadline_ms: u64,
    /// Root folder of the node whose GPU this is, and whose driver has the libraries; this process's own if
    /// absent.
    pub root: Option<PathBuf>,
    /// Its network namespace. If absent, network and devices are those that this process sees.
    pub network: Option<PathBuf>,
}

/// An RDMA device with the port and GID index that it sends with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    pub device: String,
    pub port: u8,
    pub gid: u16,
}

/// Report of a probe. Absent results were not probed, because of an earlier failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub facts: Option<Facts>,
    /// Result of the pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// The failure, except that of the pair.
    pub failed: Option<Failure>,
    /// The stage at the deadline.
    pub hung: Option<Stage>,
}

/// Facts from NVML and CUDA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    pub uuid: String,
    pub name: String,
    /// Version of the driver's libraries.
    pub driver: String,
    /// None for a GPU without fabric support.
    pub fabric: Option<Fabric>,
    /// Number of processes that use it.
    pub processes: u32,
    /// MIG is enabled: CUDA sees one instance only.
    pub divided: bool,
    /// None if CUDA was not used or failed.
    pub cuda: Option<Cuda>,
}

/// The NVLink fabric of several nodes, as a GPU sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// In NVML's numbers: 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// In NVML's numbers; a GPU in state 3 can use the fabric only with status 0.
    pub status: u32,
    /// UUID of the fabric; absent if it is all zero.
    pub cluster: Option<String>,
    pub clique: u32,
}

impl Fabric {
    /// Why the GPU cannot use the fabric; none if it can.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match (self.state, self.status) {
            (3, 0) => None,
            (3, status) => Some(format!("it has joined with NVML error {status}")),
            (1, _) => Some("it has not started to join".to_owned()),
            (2, _) => Some("it is joining, and does not come to an end".to_owned()),
            (state, _) => Some(format!("its state {state} is unknown")),
        }
    }
}

/// Capabilities of a GPU, from CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cuda {
    /// RDMA devices can reach its memory through the driver's peer-memory module.
    pub gpu_direct: bool,
    /// Its memory can be exported as dma-buf.
    pub dma_buf: bool,
}

/// How GPU memory is registered with an RDMA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    DmaBuf,
    PeerMemory,
}

/// Result of one pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    pub device: String,
    /// None if it failed earlier.
    #[serde(rename = "way")]
    pub method: Option<Method>,
    /// Duration of both writes in microseconds; all bytes were equal.
    pub micros: Option<u64>,
    pub failed: Option<Failure>,
}

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub stage: Stage,
    /// Error number of NVML, CUDA or the kernel, depending on the stage.
    pub number: Option<u32>,
    #[serde(rename = "words")]
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.stage.description(), self.message)
    }
}

macro_rules! stages {
    ($($(#[doc = $doc:literal])* $name:ident: $description:literal,)+) => {
        /// Stages of a probe.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Stage {
            $($(#[doc = $doc])* $name,)+
        }

        impl Stage {
            /// Description of the stage.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$name => $description,)+ }
            }
        }
    };
}

stages! {
    View: "entering the node's namespaces",
    /// The node has no NVIDIA driver, or one without this library.
    Absent: "finding the NVIDIA libraries",
    Nvml: "initializing NVML",
    Find: "finding the GPU in NVML",
    Identify: "reading its name from NVML",
    Fabric: "reading its fabric from NVML",
    Processes: "reading its processes from NVML",
    Cuda: "initializing CUDA",
    Attributes: "reading its capabilities from CUDA",
    /// A process uses it; nothing is probed.
    Free: "finding it free",
    Open: "opening the RDMA device",
    Context: "creating a CUDA context",
    Memory: "allocating memory",
    Export: "exporting GPU memory as dma-buf",
    Register: "registering GPU memory with the RDMA device",
    RegisterHost: "registering the host's memory with the RDMA device",
    Connect: "connecting queue pairs",
    Write: "writing to GPU memory",
    Compare: "comparing bytes in GPU memory",
    Read: "writing from GPU memory",
    CompareBack: "comparing bytes from GPU memory",
}

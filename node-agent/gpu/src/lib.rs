//! What the agent asks of a GPU by NVML and CUDA, and what the program `gpu` answers: one line of JSON each.
//!
//! The agent is linked statically and cannot load the libraries of NVIDIA's driver; and a sick GPU may hold
//! whoever asks it for ever. So each GPU is asked by a process of its own, which is linked dynamically and
//! small; what it makes on the GPU ends with it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "program")]
pub mod asking;
#[cfg(feature = "program")]
mod proving;

/// What is asked of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Its PCI address, e.g. `0000:18:00.0`.
    pub gpu: String,
    /// The RDMA device that is to reach its memory; facts alone are asked for if absent.
    pub pair: Option<Pair>,
    /// How long it may take, in milliseconds.
    pub patience: u64,
    /// Root folder of the node whose GPU this is, and whose driver has the libraries; this process's own if
    /// absent.
    pub root: Option<PathBuf>,
    /// Its network namespace. If absent, network and devices are those that this process sees.
    pub network: Option<PathBuf>,
}

/// An RDMA device, and the port and GID by which it sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    pub device: String,
    pub port: u8,
    pub gid: u16,
}

/// What came of a question. Of what is absent it was not asked, because of what went wrong before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub facts: Option<Facts>,
    /// What came of the pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// What went wrong, but for the pair.
    pub failed: Option<Failure>,
    /// What it was doing when its time was up.
    pub hung: Option<Stage>,
}

/// What NVML and CUDA tell of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    pub uuid: String,
    pub name: String,
    /// Version of the driver's libraries.
    pub driver: String,
    /// None where it is made for none.
    pub fabric: Option<Fabric>,
    /// Processes that hold it.
    pub processes: u32,
    /// It is cut into instances (MIG), of which CUDA sees one and never the whole.
    pub divided: bool,
    /// None where CUDA was not asked, or did not answer.
    pub cuda: Option<Cuda>,
}

/// The NVLink fabric of several nodes, as a GPU sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// In NVML's numbers: 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// In NVML's numbers; anything but 0 keeps a GPU that has completed from using it.
    pub status: u32,
    /// UUID of what it is connected to; absent where it is all zero.
    pub cluster: Option<String>,
    pub clique: u32,
}

impl Fabric {
    /// In words, what keeps the GPU from it; none where it has joined.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match (self.state, self.status) {
            (3, 0) => None,
            (3, status) => Some(format!("it has joined with NVML's error {status}")),
            (1, _) => Some("it has not begun to join".to_owned()),
            (2, _) => Some("it is joining, and does not come to an end".to_owned()),
            (state, _) => Some(format!("its state is {state}, which NVML did not have yet")),
        }
    }
}

/// What CUDA says that a GPU can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cuda {
    /// RDMA devices can reach its memory through a module of its driver's.
    pub gpu_direct: bool,
    /// Its memory can be exported as dma-buf.
    pub dma_buf: bool,
}

/// By which way an RDMA device reaches GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    DmaBuf,
    PeerMemory,
}

/// What came of one pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    pub device: String,
    /// None where it did not come so far.
    pub way: Option<Way>,
    /// Every byte came to the GPU and back the same: how long both writes took, in microseconds.
    pub micros: Option<u64>,
    pub failed: Option<Failure>,
}

/// Something that did not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub stage: Stage,
    /// The number of whoever said it: NVML, CUDA or the kernel, as the stage has it.
    pub number: Option<u32>,
    pub words: String,
}

macro_rules! stages {
    ($($(#[doc = $doc:literal])* $name:ident: $words:literal,)+) => {
        /// How far it came.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Stage {
            $($(#[doc = $doc])* $name,)+
        }

        impl Stage {
            /// What it is called in words.
            #[must_use]
            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)+ }
            }
        }
    };
}

stages! {
    View: "seeing the node's devices",
    /// The node has no such library: it has no driver of NVIDIA's, or one without it.
    Absent: "finding the driver's libraries",
    Nvml: "beginning NVML",
    Find: "finding it by NVML",
    Identify: "asking NVML for its name",
    Fabric: "asking NVML for its fabric",
    Processes: "asking NVML for its processes",
    Cuda: "beginning CUDA",
    Attributes: "asking CUDA for what it can do",
    /// Somebody uses it: nothing is tried.
    Free: "finding it free",
    Open: "opening the RDMA device",
    Context: "making a CUDA context",
    Memory: "making memory",
    Export: "exporting GPU memory as dma-buf",
    Register: "registering GPU memory with the RDMA device",
    RegisterHost: "registering the host's memory with the RDMA device",
    Connect: "connecting queue pairs",
    Write: "writing to GPU memory",
    Compare: "comparing what came to GPU memory",
    Read: "writing from GPU memory",
    CompareBack: "comparing what came from GPU memory",
}

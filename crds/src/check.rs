//! The closed list of checks that an agent judges its node by, and how one can end. What each looks
//! at is code of the agent's; the words here are what people and programs call them by.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! checks {
    ($($(#[doc = $doc:literal])+ $name:ident, [$($row:literal),*];)+) => {
        /// What is looked at on a node. Closed: a new check is a new line in this list, which is
        /// sorted.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        pub enum CheckId {
            $($(#[doc = $doc])+ $name,)+
        }

        impl CheckId {
            /// Every check, in the order of the list.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// What holds where it passes, in one sentence.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// Rows of the seed documents that it belongs to.
            pub fn rows(self) -> &'static [&'static str] {
                match self { $(Self::$name => &[$($row),*],)+ }
            }
        }
    };
}

checks! {
    /// The node's clock is that of the API server, to a few seconds.
    Clock, [];
    /// The container runtime reads the files by which pods get the RDMA devices that they claim.
    ContainerRuntime, [];
    /// The kernel answers when it is asked about an RDMA device.
    DeviceAnswers, ["S03"];
    /// Programs find a device file by which they can open each RDMA device.
    DeviceFile, ["S03", "S28"];
    /// What the kernel tells of an RDMA device can be read.
    DeviceReadable, ["S03"];
    /// The names by which pods find their masters resolve on the node.
    Dns, ["S05"];
    /// A process has ports enough to connect from.
    EphemeralPorts, ["S17"];
    /// What a policy lets the agent set right could be set right, and stays so.
    Fixes, [];
    /// Each GPU answers NVML and CUDA when it is asked.
    GpuAnswers, ["S28", "S29"];
    /// Where a GPU and an RDMA device are, the device can reach the GPU's memory.
    GpuDirect, ["S27", "S28"];
    /// What an RDMA device writes to a GPU's memory arrives, and comes back from there, every byte the same.
    GpuDirectProof, ["S27", "S28"];
    /// The RDMA device nearest to each GPU can be used.
    GpuRail, ["S06", "S28"];
    /// What the node says of its kernel, memory and network can be read.
    HostReadable, [];
    /// As many hugepages are set aside as the pools of this node take.
    Hugepages, ["S20", "S21", "S26"];
    /// Each NUMA node has its share of the hugepages that the pools of this node take.
    HugepagesPerNuma, ["S20", "S26"];
    /// Where the node takes part in a ComputeDomain, its GPU driver knows IMEX channels, its GPUs have joined their fabric, and the host runs no IMEX of its own.
    Imex, ["S29", "S30"];
    /// The kernel's log says nothing bad of RDMA devices and GPUs.
    KernelLog, ["S11", "S12"];
    /// A process may have as many mappings as registering much memory takes.
    MapCount, ["S12"];
    /// A container may lock as much memory as it registers.
    Memlock, ["S13"];
    /// Each RDMA device can be opened, registers a small piece of memory, and gives it back.
    MemoryKey, ["S12", "S28"];
    /// The drivers' other halves are loaded: without them a device is there and cannot be used.
    Modules, ["S28"];
    /// Each RDMA device registers a pool of this node in one piece.
    MrLimit, ["S11"];
    /// Each InfiniBand port is a full member of a partition.
    PartitionKey, ["S38"];
    /// Each RDMA device has the PCI Express link that others of its kind on this node have.
    PciLink, [];
    /// The agents of the next nodes can be reached: bytes written there come back the same, and soon.
    PeerReachable, ["S04", "S05", "S08"];
    /// What an injected pod sets of RDMA by hand, devices, port, GID, MTU and matrix, is what the node has.
    PodByHand, ["S02", "S03", "S06", "S07"];
    /// No pod holds an RDMA device that is sick.
    PodDevices, ["S12"];
    /// What an injected pod brings along is of the generation that its master speaks.
    PodEngine, [];
    /// A container that may use RDMA has a device of the node's that can be used.
    PodHcas, ["S28", "S29"];
    /// The engine of an injected pod in the node's own network listens on ports that the node has for that.
    PodHostPorts, [];
    /// The hugepages that the engine of an injected pod asks for by its own variables are there, and it holds some.
    PodHugepages, ["S19", "S20", "S21", "S22", "S23", "S24", "S26"];
    /// A container with RDMA devices may lock as much memory as it registers with them.
    PodMemlock, ["S13"];
    /// An injected pod has ports enough to connect from, and ended connections do not hold them.
    PodPorts, ["S17"];
    /// Each port is ACTIVE.
    PortActive, ["S03", "S07"];
    /// Each port has a GID that peers can reach.
    PortGid, ["S02", "S09"];
    /// The interfaces of all RoCE rails leave room for packets of one size.
    PortMtu, ["S02", "S10"];
    /// No process takes ever more queue pairs of an RDMA device and gives none back, so that none is left soon.
    QpGrowth, ["S14"];
    /// Each RDMA device has room for more queue pairs.
    QpHeadroom, ["S14"];
    /// What an RDMA device writes to itself over an active port arrives, every byte the same.
    RailLoop, ["S03", "S07", "S28"];
    /// Programs can use the RDMA connection manager.
    RdmaCm, ["S28"];
    /// Connections that have ended do not hold the ports that new ones need.
    TimeWait, ["S17"];
}

impl fmt::Display for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a check ended that did not pass, worst first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Verdict {
    /// Something that the node has cannot be used.
    Fail,
    /// It could not be told.
    Unknown,
    /// It works, and is slower or nearer to its end than it should be.
    Warn,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Unknown => "Unknown",
            Self::Warn => "Warn",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How many checks ended how; each is counted once, by the worst that it found.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckCounts {
    /// Everything that they look at is as it should be.
    pub passed: u32,
    /// Something is worse than it should be.
    pub warned: u32,
    /// Something cannot be used.
    pub failed: u32,
    /// It could not be told.
    pub unknown: u32,
    /// The node has nothing that they look at.
    pub not_applicable: u32,
    /// The node's policy ignores them, whatever they found.
    #[serde(default)]
    pub ignored: u32,
}

/// Most findings in a status.
pub const FINDINGS_LIMIT: usize = 24;

/// One thing on the node that is not as it should be.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckFinding {
    /// The check that found it.
    pub check: CheckId,
    /// How bad it is.
    pub verdict: Verdict,
    /// Why.
    pub reason: crate::reason::Reason,
    /// What on the node it is about, e.g. `mlx5_3 port 1`.
    #[schemars(length(min = 1, max = 128))]
    pub subject: String,
    /// The reason in words: what there is, what should be, what to do.
    #[schemars(length(max = 512))]
    pub message: String,
    /// UID of the injected pod that it is about; absent where it is about the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: Option<String>,
    /// Since when.
    pub since: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_names_nothing_twice() {
        let names: Vec<_> = CheckId::ALL.iter().map(|check| check.as_str()).collect();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
    }

    #[test]
    fn every_check_says_in_a_sentence_what_holds_where_it_passes() {
        for check in CheckId::ALL {
            assert!(check.about().ends_with('.'), "{check}");
        }
    }
}

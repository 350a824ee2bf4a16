//! Checks: the closed list of what an agent verifies on its node, and the results that it reports.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::catalog::catalog;
use crate::reason::Reason;
use crate::word::{Word, readable_entries};

catalog! {
    /// A check of a node. Each description states what holds when the check passes. The list is closed and
    /// sorted: a new check is a new entry.
    CheckId: ();

    /// The node's clock differs from the API server's by a few seconds at most.
    Clock;
    /// The container runtime reads the CDI specifications through which pods get the RDMA devices that they claim.
    ContainerRuntime;
    /// Each RDMA device has a device file that programs can open.
    DeviceFile;
    /// The kernel's attributes of each RDMA device can be read.
    DeviceReadable;
    /// The kernel responds to queries of each RDMA device.
    DeviceResponsive formerly "DeviceAnswers";
    /// The DNS names of the masters resolve on the node.
    Dns;
    /// The engine process of each pool pod gets the processor time that it needs.
    EngineProcessorTime nearest "PeerReachable";
    /// The range of ephemeral ports is large enough for outgoing connections.
    EphemeralPorts;
    /// Every fix that the policy contains could be applied and stays applied.
    Fixes;
    /// Where the node has GPUs and RDMA devices, the devices support access to GPU memory.
    GpuDirect;
    /// Data that an RDMA device writes to GPU memory and reads back is unchanged.
    GpuDirectProof;
    /// The RDMA device nearest to each GPU can be used.
    GpuRail;
    /// Each GPU responds to queries through NVML and CUDA.
    GpuResponsive formerly "GpuAnswers";
    /// The node's kernel, memory and network files can be read.
    HostReadable;
    /// The node has as many hugepages as its pools require.
    Hugepages;
    /// Each NUMA node has its share of the hugepages that the pools of this node require.
    HugepagesPerNuma;
    /// On a node in a ComputeDomain, the GPU driver supports IMEX channels, the GPUs have joined their fabric, and the host runs no IMEX service of its own.
    Imex;
    /// The kernel log contains no recent error of an RDMA device or a GPU.
    KernelLog;
    /// The limit of memory mappings per process is high enough to register much memory.
    MapCount;
    /// The locked-memory limit of containers is high enough for the memory that they register.
    Memlock;
    /// Each RDMA device can be opened, and can register and deregister a small memory region.
    MemoryKey;
    /// The kernel modules that the node's devices require are loaded.
    Modules;
    /// Each RDMA device can register an extent of a pool (at most 16Gi) in one piece, and better a whole pool of this node.
    MrLimit;
    /// Each InfiniBand port is a full member of a partition.
    PartitionKey;
    /// Each RDMA device has a PCI Express link as fast as that of identical devices on the node.
    PciLink;
    /// The agents of the assigned peer nodes can be reached: data written there is read back unchanged and without long delay.
    PeerReachable;
    /// No pod uses an unhealthy RDMA device.
    PodDevices;
    /// The Mooncake release in an injected pod is compatible with its master.
    PodEngine;
    /// A container that may use RDMA can open a usable RDMA device of the node.
    PodHcas;
    /// The engine of an injected hostNetwork pod listens on ports within hostPorts of the policy.
    PodHostPorts;
    /// The hugepages that the environment of an injected pod's engine configures exist, and the engine uses some of them.
    PodHugepages;
    /// The locked-memory limit of a container with RDMA devices is high enough for the memory that it registers.
    PodMemlock;
    /// An injected pod has enough free ephemeral ports.
    PodPorts;
    /// The RDMA settings in an injected pod's environment (devices, port, GID, MTU, matrix) match the node's devices.
    PodRdmaSettings formerly "PodByHand";
    /// Each port is ACTIVE.
    PortActive;
    /// Each port has a GID that peers can reach.
    PortGid;
    /// The interfaces of all RoCE rails have MTUs for the same RDMA packet size.
    PortMtu;
    /// No process allocates queue pairs of an RDMA device so fast that they run out soon.
    QpGrowth;
    /// Each RDMA device has free queue pairs.
    QpHeadroom;
    /// Programs can use the RDMA connection manager.
    RdmaCm;
    /// Data that an RDMA device writes to itself over an active port and reads back is unchanged.
    RdmaLoopback formerly "RailLoop";
    /// Where pods can claim RDMA devices, the network namespaces of the node share the devices.
    RdmaNamespaces nearest "ContainerRuntime";
    /// Closed connections in TIME_WAIT leave enough ephemeral ports free.
    TimeWait;
}

catalog! {
    /// The result of a check that did not pass, worst first.
    Verdict: ();

    /// Something that the node has cannot be used.
    Fail;
    /// The check has no result.
    Unknown;
    /// It works, but is slower or closer to a limit than expected.
    Warn;
}

/// Number of checks by result. Each check counts once, by its worst finding.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckCounts {
    /// Checks without a finding.
    pub passed: u32,
    /// Checks whose worst finding is a warning.
    pub warned: u32,
    /// Checks that failed.
    pub failed: u32,
    /// Checks without a result.
    pub unknown: u32,
    /// Checks of hardware or objects that the node does not have.
    pub not_applicable: u32,
    /// Checks that the node's policy ignores, whatever their result.
    #[serde(default)]
    pub ignored: u32,
}

/// Maximum number of findings in a status.
pub const FINDINGS_LIMIT: usize = 24;

/// Maximum number of findings of checks that release 0.1.0 lacks.
pub const LATER_FINDINGS_LIMIT: usize = 4;

/// A finding of a check that did not pass.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckFinding {
    /// The check.
    pub check: Word<CheckId>,
    /// Result of the check: Fail, Unknown or Warn.
    pub verdict: Word<Verdict>,
    /// Cause of the finding.
    pub reason: Word<Reason>,
    /// The object on the node, e.g. `mlx5_3 port 1`.
    #[schemars(length(min = 1, max = 128))]
    pub subject: String,
    /// Explanation: actual state, expected state and remedy.
    #[schemars(length(max = 512))]
    pub message: String,
    /// UID of the injected pod that is affected. Absent for findings of the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: Option<String>,
    /// Time since which the finding exists.
    pub since: Time,
}

/// A list that release 0.1.0 does not have: its words keep their names. In [`CheckFinding`] itself they are those of 0.1.0.
pub(crate) mod later {
    use super::*;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Named<'a> {
        check: &'a str,
        verdict: &'a str,
        reason: &'a str,
        subject: &'a str,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        pod_uid: Option<&'a str>,
        since: &'a Time,
    }

    pub(crate) fn serialize<S: Serializer>(
        findings: &Option<Vec<CheckFinding>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(findings.iter().flatten().map(|finding| Named {
            check: finding.check.as_str(),
            verdict: finding.verdict.as_str(),
            reason: finding.reason.as_str(),
            subject: &finding.subject,
            message: &finding.message,
            pod_uid: finding.pod_uid.as_deref(),
            since: &finding.since,
        }))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<CheckFinding>>, D::Error> {
        readable_entries(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_sorted_and_unique() {
        let names: Vec<_> = CheckId::ALL.iter().map(|check| check.as_str()).collect();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
    }

    #[test]
    fn every_check_has_a_description_that_is_a_sentence() {
        for check in CheckId::ALL {
            assert!(check.about().ends_with('.'), "{check}");
        }
    }
}

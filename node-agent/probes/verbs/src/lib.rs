//! Messages between the agent and the program `verbs`, which probes one RDMA device: one line of JSON each.
//!
//! The agent is linked statically and cannot load libibverbs, and a failed device may block its caller forever. So a
//! small, dynamically linked process probes each device.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "program")]
pub mod probe;
#[cfg(feature = "program")]
mod resources;

/// Request to probe one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Its name, e.g. `mlx5_0`.
    pub device: String,
    /// Ports over which the device writes to itself.
    pub rails: Vec<Rail>,
    /// Traffic class of these writes.
    pub traffic_class: u8,
    /// Service level of these writes.
    pub service_level: u8,
    /// Deadline in milliseconds.
    pub deadline_ms: u64,
    /// Root folder of the node whose devices these are; this process's own if absent.
    pub root: Option<PathBuf>,
    /// Its network namespace; this process's own if absent.
    pub network: Option<PathBuf>,
}

/// A port and the GID that it sends with, by its index. The address is the one that the agent has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    pub port: u8,
    pub gid: u16,
    pub address: Option<Ipv6Addr>,
}

/// Report of a probe. Absent results were not probed, because of an earlier failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub limits: Option<Limits>,
    /// Whether the network namespaces of the node share its devices, as is the kernel's default; None if the kernel does not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// None if the kernel does not count resources.
    #[serde(rename = "taken")]
    pub usage: Option<Usage>,
    /// Registration and deregistration of a small memory region.
    pub registered: Option<Timing>,
    /// Writes of the device to itself.
    #[serde(default)]
    pub loops: Vec<Loop>,
    /// The failure before the ports.
    pub failed: Option<Failure>,
    /// The stage at the deadline.
    pub hung: Option<Stage>,
}

/// Limits of a device, as it reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of one registration.
    pub max_mr_size: u64,
    /// Registrations.
    pub max_mr: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
}

/// Resources of a device in use by all processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub queue_pairs: u64,
    pub registrations: u64,
    /// The processes with the most queue pairs, the most first; 16 at most.
    pub holders: Vec<Holder>,
    /// A process with growing use; the agent adds it from several reports.
    #[serde(default, rename = "rising", skip_serializing_if = "Option::is_none")]
    pub leak: Option<Leak>,
}

/// A process that holds queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    pub pid: u32,
    /// Its name.
    pub process: String,
    pub queue_pairs: u64,
}

/// A process that allocates queue pairs and frees none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leak {
    pub pid: u32,
    pub process: String,
    /// UID of its pod, if it runs in one.
    pub pod_uid: Option<String>,
    /// The device has no queue pair left within this number of hours.
    pub hours: u32,
}

/// An operation that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub micros: u64,
}

/// A write of a device to itself over one of its ports, and the read-back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    pub port: u8,
    /// Index of the GID that was used; an earlier probe did not report it.
    #[serde(default)]
    pub gid: Option<u16>,
    /// The address of that GID when the probe was requested.
    #[serde(default)]
    pub address: Option<Ipv6Addr>,
    /// Active MTU of the port in bytes.
    #[serde(default)]
    pub path_mtu: Option<u32>,
    /// All written bytes are equal.
    pub wrote: Option<Timing>,
    /// All bytes that were read back are equal: RDMA over the port is proved.
    #[serde(default)]
    pub read: Option<Timing>,
    pub failed: Option<Failure>,
}

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub stage: Stage,
    /// The system's error number, if there is one.
    pub errno: Option<i32>,
    /// Details of the failure.
    #[serde(rename = "words")]
    pub message: String,
    /// For a rejected registration: limits that may be the cause.
    #[serde(rename = "means")]
    pub limits: Option<ProcessLimits>,
}

/// Limits of the probing process; the kernel rejects a registration if either is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessLimits {
    /// Bytes that it may lock; none without a limit.
    pub may_lock: Option<u64>,
    /// Number of its mappings.
    pub mappings: u64,
}

/// Stages of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// Entering the node's namespaces.
    View,
    /// Loading libibverbs.
    Load,
    /// Finding the device in libibverbs.
    Find,
    Open,
    Limits,
    /// Allocating memory to register.
    Memory,
    Register,
    Deregister,
    /// Querying the port and its GID.
    Port,
    /// Creating completion queue and queue pairs.
    CreateQp,
    Init,
    Rtr,
    Rts,
    /// Posting the write.
    Post,
    /// Waiting for its completion.
    Complete,
    /// Comparing the bytes.
    Compare,
    /// Posting the read of the written bytes.
    PostRead,
    /// Waiting for its completion.
    CompleteRead,
    /// Comparing the bytes that were read back.
    CompareRead,
}

impl Stage {
    /// Description of the stage.
    pub fn description(self) -> &'static str {
        match self {
            Self::View => "entering the node's namespaces",
            Self::Load => "loading libibverbs",
            Self::Find => "finding the device",
            Self::Open => "opening the device",
            Self::Limits => "querying device limits",
            Self::Memory => "allocating memory",
            Self::Register => "registering memory",
            Self::Deregister => "deregistering memory",
            Self::Port => "querying the port and its GID",
            Self::CreateQp => "creating a queue pair",
            Self::Init => "moving a queue pair to INIT",
            Self::Rtr => "moving a queue pair to RTR",
            Self::Rts => "moving a queue pair to RTS",
            Self::Post => "posting a write",
            Self::Complete => "waiting for a write",
            Self::Compare => "comparing written bytes",
            Self::PostRead => "posting a read",
            Self::CompleteRead => "waiting for a read",
            Self::CompareRead => "comparing read bytes",
        }
    }
}

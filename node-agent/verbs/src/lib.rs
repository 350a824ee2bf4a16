//! What the agent asks of an RDMA device by verbs, and what the program `verbs` answers: one line of JSON
//! each.
//!
//! The agent is linked statically and cannot load libibverbs; and a sick device may hold whoever opens it
//! for ever. So each device is asked by a process of its own, which is linked dynamically and small.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(feature = "program")]
pub mod asking;
#[cfg(feature = "program")]
mod resources;

/// What is asked of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Its name, e.g. `mlx5_0`.
    pub device: String,
    /// The ports over which a write is to go to the device itself.
    pub rails: Vec<Rail>,
    /// How long the device may take, in milliseconds.
    pub patience: u64,
    /// Root folder of the node whose devices these are; this process's own if absent.
    pub root: Option<PathBuf>,
    /// Its network namespace; this process's own if absent.
    pub network: Option<PathBuf>,
}

/// A port, and the GID by which it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    pub port: u8,
    pub gid: u16,
}

/// What a device did. Of what is absent it was not asked, because of what went wrong before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub limits: Option<Limits>,
    /// None where the kernel does not count.
    pub taken: Option<Taken>,
    /// It registered a small piece of memory and gave it back.
    pub registered: Option<Tried>,
    /// It wrote to itself.
    #[serde(default)]
    pub loops: Vec<Loop>,
    /// What went wrong before it came to the ports.
    pub failed: Option<Failure>,
    /// What it was doing when its time was up.
    pub hung: Option<Stage>,
}

/// The most that a device takes, in its own numbers.
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

/// What is taken of a device, by whomever.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    pub queue_pairs: u64,
    pub registrations: u64,
    /// The processes with the most queue pairs, the most first; 16 at most.
    pub holders: Vec<Holder>,
    /// Who takes ever more. One answer does not tell: who asks again and again adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rising: Option<Rising>,
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

/// A process that takes ever more queue pairs and gives none back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rising {
    pub pid: u32,
    pub process: String,
    /// Of the pod that it runs in, where it runs in one.
    pub pod_uid: Option<String>,
    /// The device has none left in less than so many hours.
    pub hours: u32,
}

/// Something that worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub micros: u64,
}

/// A write that a device made to itself over one of its ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    pub port: u8,
    /// Every byte came back the same.
    pub wrote: Option<Tried>,
    pub failed: Option<Failure>,
}

/// Something that did not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub stage: Stage,
    /// The number of the kernel's word, where it said one.
    pub errno: Option<i32>,
    /// The stage and what came back.
    pub words: String,
    /// Of a registration that was refused: what else may be the cause.
    pub means: Option<Means>,
}

/// What the asking process may have, as the kernel refuses memory for the want of either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Means {
    /// Bytes that it may lock; none where there is no limit for it.
    pub may_lock: Option<u64>,
    /// Mappings that it has.
    pub mappings: u64,
}

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// To see the node's devices.
    View,
    /// To load libibverbs.
    Load,
    /// To find the device among those that libibverbs has a driver for.
    Find,
    Open,
    Limits,
    /// To have memory of its own to register.
    Memory,
    Register,
    Deregister,
    /// To know the port and its GID.
    Port,
    /// To make queues and queue pairs.
    CreateQp,
    Init,
    Rtr,
    Rts,
    /// To hand the write to the device.
    Post,
    /// To have it carried out.
    Complete,
    /// To find the same bytes at the other end.
    Compare,
}

impl Stage {
    /// What it is called in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::View => "seeing the node's devices",
            Self::Load => "loading libibverbs",
            Self::Find => "finding it by verbs",
            Self::Open => "opening it",
            Self::Limits => "asking for its limits",
            Self::Memory => "making memory to register",
            Self::Register => "registering memory",
            Self::Deregister => "giving a registration back",
            Self::Port => "asking for the port and its GID",
            Self::CreateQp => "making a queue pair",
            Self::Init => "taking a queue pair to INIT",
            Self::Rtr => "taking a queue pair to RTR",
            Self::Rts => "taking a queue pair to RTS",
            Self::Post => "posting a write",
            Self::Complete => "completing a write",
            Self::Compare => "comparing what was written",
        }
    }
}

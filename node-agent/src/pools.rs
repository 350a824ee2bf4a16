//! Pool pods of this node: one task per pod keeps its engine process running, and does for it what needs rights.
//! `pod_tasks` starts the tasks, `pod` is one, `engine_process` starts or adopts the process.

pub(crate) mod available_memory;
mod disk;
pub(crate) mod engine_process;
mod handover;
mod lost_devices;
pub(crate) mod memory_budget;
pub(crate) mod mounts;
mod pauses;
pub(crate) mod pod;
pub(crate) mod pod_tasks;
mod process_stat;
pub(crate) mod processes;
pub(crate) mod transport;

pub(crate) use pod::Context;

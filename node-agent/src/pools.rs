//! Pool pods of this node: one task per pod gathers facts, decides one step (pure) and carries it out.
//! `pod_tasks` starts the tasks, `driver` runs one, `step` decides, `actions` carries out.

mod actions;
pub(crate) mod admission;
pub(crate) mod available_memory;
mod connect;
pub(crate) mod driver;
mod epoch;
mod failure;
pub(crate) mod memory_budget;
pub(crate) mod mounts;
mod mover;
pub(crate) mod numa;
mod pod_facts;
mod pod_report;
pub(crate) mod pod_tasks;
pub(crate) mod processes;
mod record;
mod step;

pub(crate) use connect::{Inspection, inspect};
pub(crate) use driver::{Context, PodAssignment, run};

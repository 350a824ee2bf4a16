//! What the agent observes of its node. `gather` is the one task that makes snapshots of it; the other modules are its
//! sources: hardware, probes of RDMA devices and GPUs, the container runtime, containers of injected pods, name
//! resolution and the clock.
//!
//! ```text
//! children of the agent ─┐
//! container runtime ─────┤
//! name service, clock ───┼─ Inbox ─ gather ─ Snapshots ─► health, devices, inventory, metrics, fixes
//! peer paths ────────────┤            │ ▲
//! fixes, affected pods ──┘       probe programs
//! ```

pub(crate) mod clock;
pub(crate) mod containers;
pub(crate) mod gather;
pub(crate) mod gpu_probe;
pub(crate) mod grpc;
pub(crate) mod hardware;
pub(crate) mod inbox;
pub(crate) mod name_service;
pub(crate) mod rdma_probe;
pub(crate) mod runtime;

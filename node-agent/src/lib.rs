//! What runs on a node: the agent, the pool process that owns memory, and the gate of an injected
//! pod.
//!
//! Invariants of agent and pool:
//! 1. A pool process makes nothing before the grant of an agent, and its memory, listeners and
//!    record outlive every agent.
//! 2. The agent maps only memory that is sealed, of the granted size and page size, from the
//!    process whose cgroup is that pod's and which stands in the node's spec (or in a record that
//!    an agent of this node sealed).
//! 3. A change of identity (segments, wire bases, master) is recorded before it takes effect.
//! 4. An agent's end unmounts nothing; a pool pod's end unmounts everything of it.
//! 5. The Kubernetes API being away changes nothing that serves.

pub mod agent;
pub mod checks;
mod devices;
pub mod fixes;
pub mod gate;
pub mod handover;
pub mod host;
pub mod pool;

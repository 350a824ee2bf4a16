//! The agent of a node: receives the memory of pool pods as descriptors, serves it to peers and mounts it in the
//! master of the cluster.
//!
//! Invariants of agent and pool:
//! 1. A pool process allocates memory only after the grant of an agent. Its memory, listeners and record outlive
//!    every agent.
//! 2. The agent maps only sealed memory of the granted size and page size, from a process in the cgroup of a pod
//!    that the node's spec, or a record sealed on this node, assigns.
//! 3. A change of identity (segments, wire bases, master) is recorded before it takes effect.
//! 4. The end of an agent unmounts nothing; the end of a pool pod unmounts all its segments.
//! 5. While the Kubernetes API is unavailable, pools are served unchanged.

pub mod args;
mod assignments;
pub mod describe;
mod facts;
mod health;
mod peers;
mod pools;
pub mod process;
mod publish;
mod watched;
pub mod worker;

//! The agent of a node: keeps an unprivileged engine process running for each pool pod, which serves the pod's memory to
//! peers and mounts it in the master of the cluster.
//!
//! Invariants of agent, engine process and pool:
//! 1. A pool process allocates memory only after a grant. Its memory, listeners and record outlive every agent and every
//!    engine process.
//! 2. The engine process maps only sealed memory of the granted size and page size, from a process in the cgroup of a pod
//!    that the node's spec, or an assignment stored on this node, names. The agent verifies the process, and reads nothing
//!    that it sends.
//! 3. A change of identity (segments, wire bases, master) is recorded before it takes effect.
//! 4. The end of an agent or engine process unmounts nothing; the end of a pool pod unmounts all its segments.
//! 5. While the Kubernetes API is unavailable, pools are served unchanged.

pub mod args;
mod assignments;
mod describe;
mod facts;
mod health;
mod peers;
mod pools;
mod process;
mod publish;
mod run;
mod watched;
mod worker;

pub use run::run;

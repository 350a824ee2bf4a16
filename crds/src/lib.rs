//! The API `mooncake.io/v1alpha1`: what a user asks for, what the operator wants of a node, what
//! an agent found, and the closed list of causes that all parts speak in.
//!
//! With them what both operator and agents judge stock engines by, [`sizing`] and [`stock`].
//!
//! Types and pure functions only: no client, no clock, no runtime. Invariants, each with a test of its name:
//!
//! 1. The YAML in `crds/` and the chart's copy equal the types (`tests/golden.rs`).
//! 2. Every field is documented.
//! 3. An unchanged world merges to equal conditions, so nothing is written.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column has a type of its own"
)]
#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats each type inside a function"
)]

pub mod byte_size;
pub mod check;
pub mod cluster;
pub mod condition;
pub mod fix;
pub mod inventory;
pub mod names;
pub mod node;
pub mod policy;
pub mod reason;
pub mod sizing;
pub mod stock;

pub use byte_size::ByteSize;
pub use check::{CheckCounts, CheckFinding, CheckId, Verdict};
pub use cluster::{MooncakeCluster, MooncakeClusterSpec, MooncakeClusterStatus};
pub use condition::{ConditionType, Finding, State};
pub use fix::{FixId, FixMode, FixReport};
pub use inventory::{MooncakeInventory, MooncakeInventorySpec, MooncakeInventoryStatus};
pub use node::{MooncakeNode, MooncakeNodeSpec, MooncakeNodeStatus};
pub use policy::{MooncakeNodePolicy, MooncakeNodePolicySpec, MooncakeNodePolicyStatus};
pub use reason::{Owner, Reason};

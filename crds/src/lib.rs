//! The API `mooncake.io/v1alpha1`: its custom resources, and the closed lists of Reasons, checks and fixes.
//!
//! [`sizing`] and [`stock`] compute the memory of stock engines for operator and agents.
//!
//! Types and pure functions only: no client, no clock, no runtime. Invariants, each with a test:
//!
//! 1. The YAML in `crds/` and the chart's copy equal the types (`tests/golden.rs`).
//! 2. Every field is documented.
//! 3. Unchanged findings merge to equal conditions, so nothing is written.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats its attributes"
)]
#![allow(
    unreachable_pub,
    reason = "JsonSchema repeats each type inside a function"
)]

pub mod byte_size;
mod catalog;
pub mod check;
pub mod cluster;
pub mod condition;
pub mod fix;
pub mod inventory;
pub mod master;
pub mod names;
pub mod node;
pub mod pod_template;
pub mod policy;
pub mod pool_memory;
pub mod reason;
pub mod sizing;
pub mod skew;
pub mod stock;
pub mod text;
pub mod update;
pub mod word;

pub use byte_size::ByteSize;
pub use check::{CheckCounts, CheckFinding, CheckId, Verdict};
pub use cluster::{MooncakeClusterSpec, MooncakeClusterStatus};
pub use condition::{ConditionStatus, ConditionType, NewCondition};
pub use fix::{FixId, FixMode, FixReport};
pub use inventory::{MooncakeInventorySpec, MooncakeInventoryStatus};
pub use node::{MooncakeNodeSpec, MooncakeNodeStatus};
pub use policy::{MooncakeNodePolicySpec, MooncakeNodePolicyStatus};
pub use reason::{Owner, Reason};
pub use word::{Vocabulary, Word};

// Only the object types require the crate `kube`, so that pool, gate and checks build without it.
#[cfg(feature = "kube")]
pub use {
    cluster::MooncakeCluster, inventory::MooncakeInventory, node::MooncakeNode,
    policy::MooncakeNodePolicy,
};

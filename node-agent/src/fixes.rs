//! What the agent sets right on its node, where a policy allows it: data first, then shown, then done.
//!
//! ```text
//! facts, policy, what was done ── plan ── steps ── attempts ── reports (status, check, metric)
//!                                           └──── hand (a child) ── the node      kept (a file)
//! ```

pub mod attempts;
pub mod hand;
mod hugepages;
mod ipv6;
pub mod kept;
mod pages;
pub mod plan;

//! Fixes: changes of the node that a policy allows. Planned as data, then reported or applied, and reverted when no
//! policy allows them any more.
//!
//! ```text
//! snapshot, policy, journal ── plan ── steps ── attempts ── reports (status, check, metric)
//!                                        └──── apply (a child process) ── the node      journal (a file)
//! ```

pub mod apply;
pub mod attempts;
mod hugepages;
mod ipv6;
pub mod journal;
mod page_counts;
pub mod plan;
pub mod step;

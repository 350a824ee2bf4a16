//! Certificates of the webhook and of the agents' metrics: creation, storage, publication and rotation. During a rotation
//! clients trust the old and the new authority.

mod identity;
mod keeper;
mod schedule;

pub use identity::{Identity, IssueError, Stored, StoredError};
pub use keeper::{Endpoint, Keeper};
pub use schedule::{Action, Schedule, decide};

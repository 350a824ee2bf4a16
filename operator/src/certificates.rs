//! The webhook's own certificate authority: issued, stored, announced, rotated with an overlap in
//! which old and new are trusted, and served from memory.

mod identity;
mod keeper;
mod resolver;
mod schedule;

pub use identity::{Identity, IssueError, Stored, StoredError};
pub use keeper::Keeper;
pub use resolver::{Resolver, TlsError, server_config};
pub use schedule::{Action, Schedule, decide};

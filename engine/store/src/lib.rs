//! The part of a storing node in the stock Mooncake Store protocol: a client of the master, and the
//! life of the segments that it mounts there.
//!
//! Invariants, each with a test of its name:
//! 1. No segment is offered to a master whose message schemas were not proven equal to ours.
//! 2. A master that has lost our segments never gets them again under their old ids and addresses:
//!    the caller supplies new ones first.
//! 3. A successor with the same client id pings first, and mounts nothing that the
//!    master still has.
//! 4. A mount in addition is only sent on a connection whose master has said that it knows us.
//! 5. Every call ends by its deadline, and its error names peer, function, stage and cause.
//! 6. Dropping a [`Session`] unmounts nothing; only [`Session::unmount`] does.

mod generation;
mod link;
mod master;
mod session;
mod tasks;

pub use generation::{Generation, LooksLike, ProbeError, Skew};
pub use master::{Cause, Error, Lost, Master, SchemaMismatch, Stage};
/// Messages of the generation that this crate speaks.
pub use proto::store::generation_0_3_13 as wire;
pub use proto::store::{ErrorCode, Uuid};
pub use session::{EpochEnd, Origin, Session, Settings, State, UnmountError};
pub use tasks::{MoveError, Mover};

/// A new random id for a client or a segment.
///
/// # Errors
/// When the operating system gives no random bytes.
pub fn random_id() -> Result<Uuid, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(Uuid::from_random(bytes))
}

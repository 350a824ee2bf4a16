//! The storing node's part of the stock Mooncake Store protocol: a client of the master, and a session that
//! mounts segments there.
//!
//! Invariants:
//! 1. A segment is mounted only after a probe has shown that the master has the same message schemas.
//! 2. If a master has lost the segments, they are never mounted again under their old IDs and
//!    addresses: the caller supplies new ones first.
//! 3. A successor with the same client ID pings first, and mounts nothing that the master still has.
//! 4. An additional mount is sent only on a connection on which the master has confirmed the client.
//! 5. Every call ends by its deadline; its error contains peer, function, stage and cause.
//! 6. A segment with a ledger is mounted in a master of ours only together with its records.
//! 7. Dropping a [`Session`] unmounts nothing; only [`Session::unmount`] does.

use std::io;

use rustix::rand::GetRandomFlags;

mod evacuation;
mod ledger;
mod link;
mod master;
mod release;
mod session;
mod tasks;

pub use evacuation::Evacuated;
pub use ledger::{Cells, CellsError, Ledger, Memory};
pub use master::{Cause, Error, Lost, Master, SchemaMismatch, Stage};
/// Messages of the supported release.
pub use proto::store::release_0_3_13 as wire;
pub use proto::store::{ErrorCode, Uuid};
pub use release::{LooksLike, ProbeError, Release, Skew};
pub use session::{EpochEnd, Origin, Session, Settings, State, UnmountError};
pub use tasks::{MoveError, Mover};

/// Returns a random ID for a client or a segment.
///
/// # Errors
/// If the operating system cannot supply random bytes.
pub fn random_id() -> io::Result<Uuid> {
    let mut bytes = [0; 16];
    // Not the crate `getrandom`: in a static program it opens a file, which a sandbox refuses.
    rustix::rand::getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(Uuid::from_random(bytes))
}

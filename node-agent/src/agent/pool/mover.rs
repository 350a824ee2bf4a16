//! Copies and moves that the master asks for, carried out by the engine from the pool's own memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use engine::{Host, Op, RegionId, Transfer, TransferError};
use store::{MoveError, Mover, wire::MemoryReplica};

/// Where the pool's extents are now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mounted {
    pub(super) base: u64,
    pub(super) length: u64,
    pub(super) region: RegionId,
}

/// Shared with the session's tasks; changed when a new epoch begins.
#[derive(Debug, Clone, Default)]
pub(super) struct Extents(Arc<Mutex<Vec<Mounted>>>);

impl Extents {
    pub(super) fn set(&self, extents: Vec<Mounted>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = extents;
    }

    /// The region and offset of a range of wire addresses.
    fn find(&self, address: u64, length: u64) -> Option<(RegionId, u64)> {
        let extents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        extents.iter().find_map(|extent| {
            let offset = address.checked_sub(extent.base)?;
            let end = offset.checked_add(length)?;
            (end <= extent.length).then_some((extent.region, offset))
        })
    }
}

/// The engine as the session's mover.
#[derive(Debug)]
pub(super) struct EngineMover {
    pub(super) host: Arc<Host>,
    pub(super) extents: Extents,
}

#[derive(Debug, thiserror::Error)]
#[error("{length} bytes at {address:#x} are not in a segment of this node's present epoch")]
struct NotOurs {
    address: u64,
    length: u64,
}

impl Mover for EngineMover {
    async fn move_bytes(
        &self,
        source: &MemoryReplica,
        target: &MemoryReplica,
        length: u64,
        deadline: tokio::time::Instant,
    ) -> Result<(), MoveError> {
        let address = source.address;
        let found = self.extents.find(address, length);
        let (local, local_offset) =
            found.ok_or_else(|| MoveError::Failed(Box::new(NotOurs { address, length })))?;
        let transfer = Transfer {
            op: Op::Write,
            peer: target.endpoint.clone(),
            remote: target.address,
            local,
            local_offset,
            length,
        };
        let deadline: Instant = deadline.into_std();
        let moved = self.host.transfer(transfer, deadline).await;
        moved.map_err(|error| match error {
            TransferError::Indeterminate { .. } => MoveError::Indeterminate(Box::new(error)),
            error => MoveError::Failed(Box::new(error)),
        })
    }
}

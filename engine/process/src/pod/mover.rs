//! Copies and moves between segments that the master requests; the engine carries them out.

use std::sync::Arc;
use std::time::Instant;

use engine::{Endpoint, Op, RegionId, Transfer, TransferError};
use parking_lot::Mutex;
use store::{MoveError, Mover, wire::MemoryReplica};

/// One mounted extent: its wire base, its length in bytes and its region in the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountedExtent {
    pub(super) base: u64,
    pub(super) length: u64,
    pub(super) region: RegionId,
}

/// The pool's mounted extents, shared with the tasks of the session. A new epoch replaces them.
#[derive(Debug, Clone, Default)]
pub(super) struct MountedExtents(Arc<Mutex<Vec<MountedExtent>>>);

impl MountedExtents {
    pub(super) fn set(&self, extents: Vec<MountedExtent>) {
        *self.0.lock() = extents;
    }

    /// Returns the region and the offset of a range of wire addresses.
    fn find(&self, address: u64, length: u64) -> Option<(RegionId, u64)> {
        let extents = self.0.lock();
        extents.iter().find_map(|extent| {
            let offset = address.checked_sub(extent.base)?;
            let end = offset.checked_add(length)?;
            (end <= extent.length).then_some((extent.region, offset))
        })
    }
}

/// Lets the session move bytes with the engine.
#[derive(Debug)]
pub(super) struct EngineMover {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) extents: MountedExtents,
}

#[derive(Debug, thiserror::Error)]
#[error("{length} bytes at {address:#x} are not in a segment of the current epoch of this node")]
struct UnknownAddress {
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
            found.ok_or_else(|| MoveError::Failed(Box::new(UnknownAddress { address, length })))?;
        let transfer = Transfer {
            op: Op::Write,
            peer: target.endpoint.clone(),
            remote: target.address,
            local,
            local_offset,
            length,
        };
        let deadline: Instant = deadline.into_std();
        let mut batch = self
            .endpoint
            .submit(std::slice::from_ref(&transfer), deadline);
        let moved = batch.outcome().await;
        // The master may give the source's space to another object when the task has ended.
        batch.released().await;
        moved.map_err(|error| match error {
            TransferError::Indeterminate { .. } => MoveError::Indeterminate(Box::new(error)),
            error => MoveError::Failed(Box::new(error)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    use engine::transport::fault::{Faulty, Policy};
    use engine::{Admission, EndpointSpec, Engine, PageSize, Region, Settings, Targets};
    use sys::mem::memfd;

    use super::*;

    const BASE: u64 = 1 << 58;

    fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    /// Opens an endpoint that publishes the port of `data`, and returns its name.
    fn endpoint(engine: &Engine, data: &TcpListener) -> (Endpoint, String) {
        let handshake = listener();
        let name = handshake.local_addr().unwrap().to_string();
        let spec = EndpointSpec {
            name: name.clone(),
            data_port: data.local_addr().unwrap().port(),
            data_host: Ipv4Addr::LOCALHOST.to_string(),
            handshake,
            data: listener(),
            network: None,
            admission: Admission::Anyone,
            targets: Targets::Admitted,
            metadata: None,
        };
        (engine.endpoint(spec).unwrap(), name)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_copy_ends_when_its_source_is_released() {
        let release_delay = Duration::from_millis(300);
        let policy = Policy {
            release_delay,
            ..Policy::default()
        };
        let settings = Settings {
            data_threads: 1,
            ..Settings::default()
        };
        let engine = Engine::start_with(settings, |tcp| Box::new(Faulty::new(tcp, policy)));
        let engine = engine.unwrap();
        let broken = listener();
        let (source, source_name) = endpoint(&engine, &broken);
        let (_target, target_name) = endpoint(&engine, &broken);
        // The target's data port takes the whole write, and ends without an answer.
        let ended = std::thread::spawn(move || {
            let (mut stream, _) = broken.accept().unwrap();
            stream.read_exact(&mut [0; 24 + 4096]).unwrap();
            Instant::now()
        });
        let fd = memfd::create("test", 4096, PageSize::Base).unwrap();
        let region = Arc::new(Region::map(fd, 4096, PageSize::Base).unwrap());
        let region = source.add_region(region, BASE).unwrap();
        let extents = MountedExtents::default();
        extents.set(vec![MountedExtent {
            base: BASE,
            length: 4096,
            region,
        }]);
        let mover = EngineMover {
            endpoint: Arc::new(source),
            extents,
        };
        let [source, target] = [source_name, target_name].map(|endpoint| MemoryReplica {
            size: 4096,
            address: BASE,
            protocol: "tcp".to_owned(),
            endpoint,
        });
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        let moved = mover.move_bytes(&source, &target, 4096, deadline).await;
        assert!(
            matches!(moved, Err(MoveError::Indeterminate(_))),
            "{moved:?}"
        );
        assert!(ended.join().unwrap().elapsed() >= release_delay);
    }
}

//! What a host says about itself: its descriptor, from its name and the regions served now.

use std::sync::{Mutex, PoisonError};

use proto::descriptor::{Buffer, Descriptor};
use proto::extent::ExtentMap;

use crate::error::Error;
use crate::transport::RegionId;

#[derive(Debug)]
pub(crate) struct Identity {
    name: String,
    data_host: String,
    data_port: u16,
    extents: Mutex<ExtentMap<RegionId>>,
}

impl Identity {
    pub(crate) fn new(name: String, data_host: String, data_port: u16) -> Self {
        Self {
            name,
            data_host,
            data_port,
            extents: Mutex::default(),
        }
    }

    /// Publishes a region; checks that no other is in its way.
    pub(crate) fn publish(&self, region: RegionId, base: u64, length: u64) -> Result<(), Error> {
        let mut extents = self.extents.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(extents.insert(base, length, region)?)
    }

    pub(crate) fn withdraw(&self, region: RegionId) {
        self.extents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(region);
    }

    /// Publishes a region at another base; if that is taken, nothing changes.
    pub(crate) fn rebase(&self, region: RegionId, base: u64) -> Result<(), Error> {
        let mut extents = self.extents.lock().unwrap_or_else(PoisonError::into_inner);
        let found = extents.iter().find(|(_, _, other)| *other == region);
        let Some((old, length, _)) = found else {
            return Err(Error::UnknownRegion);
        };
        extents.remove(region);
        if let Err(error) = extents.insert(base, length, region) {
            extents
                .insert(old, length, region)
                .expect("its old place is free: it was just left");
            return Err(error.into());
        }
        Ok(())
    }

    /// The descriptor as of now.
    pub(crate) fn descriptor(&self) -> Descriptor {
        let extents = self.extents.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = extents
            .iter()
            .map(|(addr, length, _)| Buffer {
                addr,
                length,
                name: self.name.clone(),
            })
            .collect();
        drop(extents);
        Descriptor {
            buffers,
            name: self.name.clone(),
            protocol: "tcp".to_owned(),
            rdma_server_name: String::new(),
            tcp_data_host: self.data_host.clone(),
            tcp_data_port: self.data_port,
            tcp_proto_version: 2,
            timestamp: jiff::Zoned::now()
                .strftime("%Y-%m-%d %H:%M:%S%.6f")
                .to_string(),
        }
    }
}

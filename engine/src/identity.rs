//! Builds an endpoint's descriptor from its name and the regions that it serves.

use parking_lot::Mutex;
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

    /// Publishes a region, unless it overlaps another.
    pub(crate) fn publish(&self, region: RegionId, base: u64, length: u64) -> Result<(), Error> {
        let mut extents = self.extents.lock();
        Ok(extents.insert(base, length, region)?)
    }

    pub(crate) fn withdraw(&self, region: RegionId) {
        self.extents.lock().remove(region);
    }

    /// Moves a region to another base. On error nothing changes.
    pub(crate) fn rebase(&self, region: RegionId, base: u64) -> Result<(), Error> {
        let mut extents = self.extents.lock();
        let found = extents.iter().find(|(_, _, other)| *other == region);
        let Some((old, length, _)) = found else {
            return Err(Error::UnknownRegion);
        };
        extents.remove(region);
        if let Err(error) = extents.insert(base, length, region) {
            extents
                .insert(old, length, region)
                .expect("the old range was freed above");
            return Err(error.into());
        }
        Ok(())
    }

    /// Returns the current descriptor.
    pub(crate) fn descriptor(&self) -> Descriptor {
        let extents = self.extents.lock();
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

//! Builds an endpoint's descriptor from its name and the regions that it serves.

#[cfg(feature = "rdma")]
use std::sync::Arc;

use parking_lot::Mutex;
use proto::descriptor::{Buffer, Descriptor};
use proto::extent::ExtentMap;

use crate::error::Error;
use crate::transport::RegionId;
#[cfg(feature = "rdma")]
use crate::transport::rdma::{Card, Served};
use crate::transport::tcp::PIPELINE_DEPTH;

/// The location of all regions: with one device there is no other choice for peers.
#[cfg(feature = "rdma")]
const LOCATION: &str = "cpu:0";

#[derive(Debug)]
pub(crate) struct Identity {
    name: String,
    data_host: String,
    data_port: u16,
    extents: Mutex<ExtentMap<RegionId>>,
    /// The device of an engine over RDMA.
    #[cfg(feature = "rdma")]
    pub(crate) card: Option<Arc<Card>>,
}

impl Identity {
    pub(crate) fn new(name: String, data_host: String, data_port: u16) -> Self {
        Self {
            name,
            data_host,
            data_port,
            extents: Mutex::default(),
            #[cfg(feature = "rdma")]
            card: None,
        }
    }

    /// Publishes the regions over a device instead of TCP.
    #[cfg(feature = "rdma")]
    pub(crate) fn with_card(self, card: Option<Arc<Card>>) -> Self {
        Self { card, ..self }
    }

    /// Returns the current descriptor as the handshake port sends it.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        #[cfg(feature = "rdma")]
        if let Some(card) = &self.card {
            return self.rdma_descriptor(card).encode();
        }
        self.descriptor().encode()
    }

    #[cfg(feature = "rdma")]
    fn rdma_descriptor(&self, card: &Card) -> proto::rdma::Descriptor {
        let device = card.published();
        let extents = self.extents.lock();
        let buffers = extents.iter().filter_map(|(addr, length, region)| {
            let key = card.key(region, addr)?.0;
            Some(proto::rdma::Buffer {
                addr,
                length,
                lkey: vec![key],
                name: LOCATION.to_owned(),
                rkey: vec![key],
            })
        });
        let preferred = vec![vec![device.name.clone()], Vec::new()];
        proto::rdma::Descriptor {
            buffers: buffers.collect(),
            priority_matrix: [(LOCATION.to_owned(), preferred)].into(),
            devices: vec![device],
            name: self.name.clone(),
            protocol: proto::rdma::PROTOCOL.to_owned(),
            rdma_server_name: String::new(),
            tcp_data_port: 0,
            tcp_proto_version: 1,
            timestamp: now(),
        }
    }

    /// Returns the server name.
    #[cfg(feature = "rdma")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the passive side of RDMA connections.
    #[cfg(feature = "rdma")]
    pub(crate) fn served(&self) -> Option<Arc<Served>> {
        let card = Arc::clone(self.card.as_ref()?);
        Some(Arc::new(Served::new(card, &self.name)))
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
            tcp_pipeline_depth: PIPELINE_DEPTH,
            tcp_proto_version: 2,
            timestamp: now(),
        }
    }
}

fn now() -> String {
    jiff::Zoned::now()
        .strftime("%Y-%m-%d %H:%M:%S%.6f")
        .to_string()
}

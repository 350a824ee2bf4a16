//! Builds an endpoint's descriptor from its name and the regions that it serves.

#[cfg(feature = "rdma")]
use std::collections::BTreeSet;
#[cfg(feature = "rdma")]
use std::sync::Arc;

use parking_lot::Mutex;
use proto::descriptor::{Buffer, Descriptor};
use proto::extent::ExtentMap;
use proto::handshake::Protocol;

use crate::error::Error;
use crate::transport::RegionId;
#[cfg(feature = "rdma")]
use crate::transport::rdma::{Cards, Served};
use crate::transport::tcp::PIPELINE_DEPTH;

/// The location of all regions. Peers choose any of the devices, which spreads their transfers over all.
#[cfg(feature = "rdma")]
const LOCATION: &str = "cpu:0";

#[derive(Debug)]
pub(crate) struct Identity {
    name: String,
    data_host: String,
    data_port: u16,
    extents: Mutex<ExtentMap<RegionId>>,
    /// The devices of an engine over RDMA.
    #[cfg(feature = "rdma")]
    cards: Cards,
    /// The regions of `extents` that are published over devices. Locked after it.
    #[cfg(feature = "rdma")]
    registered: Mutex<BTreeSet<RegionId>>,
}

impl Identity {
    pub(crate) fn new(name: String, data_host: String, data_port: u16) -> Self {
        Self {
            name,
            data_host,
            data_port,
            extents: Mutex::default(),
            #[cfg(feature = "rdma")]
            cards: Cards::default(),
            #[cfg(feature = "rdma")]
            registered: Mutex::default(),
        }
    }

    /// Publishes the regions over devices too, if there are any.
    #[cfg(feature = "rdma")]
    pub(crate) fn with_cards(self, cards: Cards) -> Self {
        Self { cards, ..self }
    }

    /// Whether the regions are published over devices.
    #[cfg(feature = "rdma")]
    pub(crate) fn is_rdma(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Returns the current descriptor as the handshake port sends it to a peer with this transport. A stock engine
    /// reaches only peers whose descriptor names its own transport. Without a transport that is known, and for own
    /// requests: over RDMA, if there are devices.
    pub(crate) fn encoded_for(&self, protocol: Option<Protocol>) -> Vec<u8> {
        #[cfg(feature = "rdma")]
        if self.is_rdma() && protocol != Some(Protocol::Tcp) {
            return self.rdma_descriptor().encode();
        }
        let _always_tcp = protocol;
        self.descriptor().encode()
    }

    #[cfg(feature = "rdma")]
    fn rdma_descriptor(&self) -> proto::rdma::Descriptor {
        // Locked until the end: the keys of a former base end after its regions have moved to another.
        let extents = self.extents.lock();
        let regions = self.registered(&extents);
        let cards = self.cards.published(&regions);
        let devices: Vec<_> = cards.iter().map(|card| card.published()).collect();
        let registered = extents
            .iter()
            .filter(|(addr, _, region)| regions.contains(&(*region, *addr)));
        let buffers = registered.filter_map(|(addr, length, region)| {
            let keys = cards
                .iter()
                .map(|card| Some(card.key(region, addr)?.0))
                .collect::<Option<Vec<_>>>()?;
            Some(proto::rdma::Buffer {
                addr,
                length,
                lkey: keys.clone(),
                name: LOCATION.to_owned(),
                rkey: keys,
            })
        });
        // Stock readers number devices in the order of this list, and take the number for one in `devices`.
        let preferred = devices.iter().map(|device| device.name.clone()).collect();
        proto::rdma::Descriptor {
            buffers: buffers.collect(),
            priority_matrix: [(LOCATION.to_owned(), vec![preferred, Vec::new()])].into(),
            devices,
            name: self.name.clone(),
            protocol: proto::rdma::PROTOCOL.to_owned(),
            rdma_server_name: String::new(),
            tcp_data_port: 0,
            tcp_proto_version: 1,
            timestamp: now(),
        }
    }

    /// Returns the regions that are published over devices, with their wire bases.
    #[cfg(feature = "rdma")]
    fn registered(&self, extents: &ExtentMap<RegionId>) -> Vec<(RegionId, u64)> {
        let registered = self.registered.lock();
        let known = extents.iter().filter(|(_, _, id)| registered.contains(id));
        known.map(|(addr, _, id)| (id, addr)).collect()
    }

    /// Returns the other regions than this one that are published over devices, with their wire bases.
    #[cfg(feature = "rdma")]
    pub(crate) fn beside(&self, region: RegionId) -> Vec<(RegionId, u64)> {
        let mut others = self.registered(&self.extents.lock());
        others.retain(|(other, _)| *other != region);
        others
    }

    /// Returns why devices are not published, of those that do not serve all regions.
    #[cfg(feature = "rdma")]
    pub(crate) fn left_out(&self) -> Vec<String> {
        let regions = self.registered(&self.extents.lock());
        self.cards.left_out(&regions)
    }

    /// Returns the server name.
    #[cfg(feature = "rdma")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the passive side of RDMA connections; `None` without devices.
    #[cfg(feature = "rdma")]
    pub(crate) fn served(&self) -> Option<Arc<Served>> {
        self.is_rdma()
            .then(|| Arc::new(Served::new(&self.cards, &self.name)))
    }

    /// Publishes a region, unless it overlaps another.
    pub(crate) fn publish(&self, region: RegionId, base: u64, length: u64) -> Result<(), Error> {
        let mut extents = self.extents.lock();
        Ok(extents.insert(base, length, region)?)
    }

    /// Returns the wire base of a region.
    #[cfg(feature = "rdma")]
    pub(crate) fn base(&self, region: RegionId) -> Option<u64> {
        let extents = self.extents.lock();
        let found = extents.iter().find(|(_, _, id)| *id == region);
        found.map(|(addr, _, _)| addr)
    }

    /// Publishes a region over devices, too, which have registered it.
    #[cfg(feature = "rdma")]
    pub(crate) fn publish_over_devices(&self, region: RegionId) {
        let _extents = self.extents.lock();
        self.registered.lock().insert(region);
    }

    pub(crate) fn withdraw(&self, region: RegionId) {
        let mut extents = self.extents.lock();
        extents.remove(region);
        #[cfg(feature = "rdma")]
        self.registered.lock().remove(&region);
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

    /// Returns the current descriptor over TCP.
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

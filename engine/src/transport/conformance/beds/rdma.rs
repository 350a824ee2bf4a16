//! Two RDMA transports on one device, port 1, GID index 1.

#[path = "../../../../tests/fixture/verbs.rs"]
mod device;

use std::sync::Arc;
use std::time::Duration;

use slotmap::SlotMap;
use tokio::runtime::{Builder, Runtime};

use super::{BASE, Bed, OWN, Side};
use crate::transport::conformance::{LENGTH, Register};
use crate::transport::rdma::{Card, Port, Rdma, RdmaConnector, RdmaPeer, Served};
use crate::transport::reactor::Reactor;
use crate::transport::{PeerAddress, RegionId, Transport};

pub(in crate::transport) use device::with_device;

/// The target's region, as [`Side::new`] numbers it.
pub(in crate::transport) const SERVED: RegionId = RegionId(102);
pub(in crate::transport) fn card() -> Arc<Card> {
    Card::open(Port {
        device: device::name().to_owned(),
        number: 1,
        gid_index: 1,
    })
    .unwrap()
}

/// The control side of both ends.
pub(in crate::transport) struct Control {
    pub(in crate::transport) runtime: Runtime,
    pub(in crate::transport) near: Arc<Card>,
    pub(in crate::transport) far: Arc<Card>,
    pub(in crate::transport) served: Arc<Served>,
}

impl Control {
    pub(in crate::transport) fn new() -> Arc<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (near, far) = (card(), card());
        let served = Arc::new(Served::new(Arc::clone(&far), "target"));
        Arc::new(Self {
            runtime,
            near,
            far,
            served,
        })
    }

    fn transport(&self, card: &Arc<Card>) -> (Reactor, Box<dyn Transport>) {
        let reactor = Reactor::new().unwrap();
        let runtime = self.runtime.handle().clone();
        let connector = RdmaConnector::new(runtime, card, Duration::from_secs(30));
        let connector = connector.direct(Arc::clone(&self.served));
        let rdma = Rdma::new(card, Box::new(connector), &reactor.watcher()).unwrap();
        (reactor, Box::new(rdma))
    }

    /// The target's address, with what it serves now.
    pub(in crate::transport) fn peer(&self) -> RdmaPeer {
        let serves = |base| Some((base, LENGTH, self.far.key(SERVED, base)?.0));
        RdmaPeer {
            own: "initiator".into(),
            server: "target".into(),
            device: self.far.device().to_owned(),
            extents: [BASE, 2 * BASE].into_iter().filter_map(serves).collect(),
            handshake: (String::new(), 0),
            dialer: None,
        }
    }
}

pub(in crate::transport) fn bed() -> Bed {
    bed_of(&Control::new())
}

pub(in crate::transport) fn bed_of(control: &Arc<Control>) -> Bed {
    let register = |card: &Arc<Card>| -> Box<Register> {
        let card = Arc::clone(card);
        Box::new(move |region, memory, base| card.register(region, memory, base).unwrap())
    };
    let [initiator, target] = [&control.near, &control.far].map(|card| control.transport(card));
    let (near, far) = (register(&control.near), register(&control.far));
    let (addressed, ended) = (Arc::clone(control), Arc::clone(control));
    Bed {
        initiator: Side::new(initiator, 1, OWN, near),
        target: Side::new(target, 2, BASE, far),
        peer: Box::new(move || PeerAddress::Rdma(Arc::new(addressed.peer()))),
        control: Box::new(|_, _| {}),
        end_target: Box::new(move || ended.runtime.block_on(ended.served.close())),
        links: SlotMap::with_key(),
        pieces: SlotMap::with_key(),
    }
}

//! Two RDMA transports, port 1, GID index 1: an initiator on one device, and a target on two.

use std::sync::Arc;
use std::time::Duration;

use slotmap::SlotMap;
use sys::verbs::Class;
use tokio::runtime::{Builder, Runtime};

use super::{BASE, Bed, OWN, Side};
use crate::transport::conformance::{LENGTH, Register};
use crate::transport::rdma::{Card, Cards, Port, Rdma, RdmaConnector, RdmaPeer, Served, device};
use crate::transport::reactor::Reactor;
use crate::transport::{PeerAddress, RegionId, Transport};

pub(in crate::transport) use device::{calls, is_real, with_device};

/// The target's region, as [`Side::new`] numbers it.
pub(in crate::transport) const SERVED: RegionId = RegionId(102);
/// Of all packets.
const CLASS: Class = Class {
    traffic_class: 106,
    service_level: 3,
};

fn card(device: &str) -> Arc<Card> {
    Card::open(Port {
        device: device.to_owned(),
        number: 1,
        gid_index: 1,
        class: CLASS,
    })
    .unwrap()
}

/// The control side of both ends.
pub(in crate::transport) struct Control {
    pub(in crate::transport) runtime: Runtime,
    near: Arc<Card>,
    /// Both devices of the target.
    pub(in crate::transport) far: [Arc<Card>; 2],
    near_cards: Cards,
    pub(in crate::transport) far_cards: Cards,
    pub(in crate::transport) served: Arc<Served>,
}

impl Control {
    pub(in crate::transport) fn new() -> Arc<Self> {
        Self::from_device(0)
    }

    /// With the initiator on the first or the second device.
    pub(in crate::transport) fn from_device(near: usize) -> Arc<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let near = card(device::names()[near]);
        let far = device::names().map(card);
        let near_cards = Cards::from(std::slice::from_ref(&near));
        let far_cards = Cards::from(far.as_slice());
        let served = Arc::new(Served::new(&far_cards, "target"));
        Arc::new(Self {
            runtime,
            near,
            far,
            near_cards,
            far_cards,
            served,
        })
    }

    fn transport(&self, cards: &Cards, card: &Arc<Card>) -> (Reactor, Box<dyn Transport>) {
        let reactor = Reactor::new().unwrap();
        let runtime = self.runtime.handle().clone();
        let connector = RdmaConnector::new(runtime, card, Duration::from_secs(30));
        let connector = connector.direct(Arc::clone(&self.served));
        let rdma = Rdma::new(cards, card, Box::new(connector), &reactor.watcher()).unwrap();
        (reactor, Box::new(rdma))
    }

    /// The initiator's side as another data thread has it.
    pub(in crate::transport) fn other_thread(&self) -> Side {
        let cards = self.near_cards.clone();
        let register = Box::new(move |region, memory: &Arc<_>, base| {
            cards.register(region, memory, base, &[]).unwrap();
        });
        let transport = self.transport(&self.near_cards, &self.near);
        Side::new(transport, 3, 7 * BASE, register)
    }

    /// The target's address, with what it serves now.
    pub(in crate::transport) fn peer(&self) -> RdmaPeer {
        let serves = |base| {
            let keys = self.far.iter().map(|card| Some(card.key(SERVED, base)?.0));
            Some((base, LENGTH, keys.collect::<Option<_>>()?))
        };
        RdmaPeer {
            own: "initiator".into(),
            server: "target".into(),
            devices: self
                .far
                .iter()
                .map(|card| card.device().to_owned())
                .collect(),
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
    let register = |cards: &Cards| -> Box<Register> {
        let cards = cards.clone();
        Box::new(move |region, memory, base| cards.register(region, memory, base, &[]).unwrap())
    };
    let initiator = control.transport(&control.near_cards, &control.near);
    let target = control.transport(&control.far_cards, &control.far[0]);
    let (near, far) = (register(&control.near_cards), register(&control.far_cards));
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

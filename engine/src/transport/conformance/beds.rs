//! The pairs of transports that the cases run over.

#[cfg(feature = "rdma")]
pub(super) mod rdma;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, atomic::AtomicUsize};
use std::time::{Duration, Instant};

use proto::frame::Version;
use slotmap::SlotMap;
use sys::mem::{PageSize, Region, memfd};

use super::{BASE, Bed, Control, Side};
use crate::admission::{Admission, ConnectionLimit, PeerFilter, Targets};
use crate::connect::Dialer;
use crate::stats::Counters;
use crate::transport::fault::{Faulty, Policy};
use crate::transport::memory::{Fabric, Memory, Shape};
use crate::transport::reactor::Reactor;
use crate::transport::tcp::{Bounds, Connector, Tcp};
use crate::transport::{LinkId, NewSocket, PeerAddress, TcpPeer, Transport};

/// Wire address of the initiator's own memory.
const OWN: u64 = 5 * BASE;

/// Runs a case; one that needs an RDMA device runs in a process that finds one.
pub(super) fn run(test: &str, case: impl FnOnce()) {
    #[cfg(feature = "rdma")]
    if ["::rdma::", "::infiniband::"]
        .iter()
        .any(|of| test.contains(of))
    {
        return rdma::with_device(test, case);
    }
    let _same_process = test;
    case();
}

pub(super) fn region(length: u64) -> Arc<Region> {
    let fd = memfd::create("conformance", length, PageSize::Base).unwrap();
    Arc::new(Region::map(fd, length, PageSize::Base).unwrap())
}

/// Connects at once, as a data thread's control side does later.
#[derive(Debug)]
struct Direct(Sender<NewSocket>);

impl Connector for Direct {
    fn connect(&self, link: LinkId, to: &TcpPeer) {
        let stream = TcpStream::connect(to.data[0]).unwrap();
        stream.set_nonblocking(true).unwrap();
        let connected = NewSocket::Connected {
            link,
            socket: Ok(OwnedFd::from(stream)),
            version: to.version,
            pipeline_depth: to.pipeline_depth,
        };
        self.0.send(connected).unwrap();
    }
}

fn peer(listener: &TcpListener, pipeline_depth: u32) -> PeerAddress {
    let filter = PeerFilter::new(Admission::Anyone, Arc::new(Counters::default()));
    PeerAddress::Tcp(TcpPeer {
        name: "target".into(),
        data: vec![listener.local_addr().unwrap()],
        version: Version::V2,
        pipeline_depth,
        dialer: Arc::new(Dialer {
            network: None,
            filter: Arc::new(filter),
            targets: Targets::Anyone,
        }),
    })
}

fn bed(
    initiator: (Reactor, Box<dyn Transport>),
    target: (Reactor, Box<dyn Transport>),
    peer: PeerAddress,
    control: Box<Control>,
) -> Bed {
    Bed {
        initiator: Side::new(initiator, 1, OWN, Box::new(|_, _, _| {})),
        target: Side::new(target, 2, BASE, Box::new(|_, _, _| {})),
        peer: Box::new(move || peer.clone()),
        control,
        end_target: Box::new(|| {}),
        links: SlotMap::with_key(),
        pieces: SlotMap::with_key(),
    }
}

/// TCP to a peer that announces this depth.
pub(super) fn tcp(pipeline_depth: u32) -> Bed {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let bounds = Bounds {
        header: Duration::from_secs(60),
        stall: Duration::from_secs(60),
    };
    let (connected, sockets) = channel();
    let side = || {
        let reactor = Reactor::new().unwrap();
        let connector = Box::new(Direct(connected.clone()));
        let tcp = Tcp::new(bounds, connector, reactor.watcher());
        (reactor, Box::new(tcp) as Box<dyn Transport>)
    };
    let filter = PeerFilter::new(Admission::Anyone, Arc::new(Counters::default()));
    let limit = ConnectionLimit::new(1000, 1000, Arc::new(AtomicUsize::new(0)));
    let (initiator, target, to) = (side(), side(), peer(&listener, pipeline_depth));
    let control = move |initiator: &mut Side, target: &mut Side| {
        let now = Instant::now();
        for socket in sockets.try_iter() {
            initiator.transport.add_socket(socket, now);
        }
        while let Ok((stream, from)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            let accepted = NewSocket::Accepted {
                before: None,
                endpoint: target.endpoint,
                socket: OwnedFd::from(stream),
                permit: filter.check(from.ip(), &limit).unwrap(),
            };
            target.transport.add_socket(accepted, now);
        }
    };
    bed(initiator, target, to, Box::new(control))
}

fn in_memory((window, depth): (usize, usize), wrap: impl Fn(Memory) -> Box<dyn Transport>) -> Bed {
    let fabric = Fabric::default();
    let shape = Shape {
        window,
        depth,
        delay: 5,
        seed: 7,
    };
    let side = || {
        let transport = wrap(Memory::new(&fabric, shape));
        (Reactor::new().unwrap(), transport)
    };
    // The fabric needs no address.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    bed(side(), side(), peer(&listener, 0), Box::new(|_, _| {}))
}

pub(super) fn memory(window: usize, depth: usize) -> Bed {
    in_memory((window, depth), |memory| Box::new(memory))
}

pub(super) fn faulty(policy: Policy) -> Bed {
    in_memory((8, 8), |memory| Box::new(Faulty::new(memory, policy)))
}

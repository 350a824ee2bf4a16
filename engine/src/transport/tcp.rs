//! TCP: the stock engines' data plane as target and as initiator, payload received directly into
//! regions and sent directly from them.

mod outgoing;
mod served;
mod timer;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::arena::{Arena, Key};
use proto::extent::ExtentMap;
use proto::scheduler::{Effect, Failure, Slice};
use rustix::event::{Timespec, epoll};
use sys::mem::Region;

use super::{Event, HostId, Incoming, LinkError, LinkId, PeerCard, RegionId, Transport};
use crate::admission::Admission;
use crate::stats::{Counters, Ended};

use outgoing::Outgoing;
use served::Served;
use timer::Timers;

/// Bytes that one connection may move before the others have their turn.
const TURN_BYTES: u64 = 256 << 10;
/// Bytes given to the kernel in one call: a peer on the same machine then reads them while they
/// are still in the cache.
const SEND_BYTES: u64 = 64 << 10;
/// Connections looked at per call of the kernel.
const BATCH: usize = 128;
/// Stands for the bell where keys of connections stand; no connection has it.
const BELL: u64 = u64::MAX;

/// How a transport asks for connections to be made: on the control side, in the network namespace
/// of the host. The answer comes back as [`Incoming::Connected`].
pub trait Connector: std::fmt::Debug + Send {
    /// Starts to connect.
    fn connect(&self, link: LinkId, to: &PeerCard);
}

/// Bounds of served connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// For the first whole valid header.
    pub header: Duration,
    /// For a payload that does not move.
    pub stall: Duration,
}

/// See the module's description.
#[derive(Debug)]
pub struct Tcp {
    epoll: OwnedFd,
    connections: Arena<Connection>,
    links: HashMap<LinkId, Key<Connection>>,
    hosts: HashMap<HostId, HostSide>,
    regions: HashMap<RegionId, Arc<Region>>,
    timers: Timers,
    bounds: Bounds,
    connector: Box<dyn Connector>,
    /// Connections that the last wait found to have work.
    ready: Vec<Key<Connection>>,
    events: Vec<Event>,
}

/// What a host's served connections share.
#[derive(Debug)]
struct HostSide {
    extents: ExtentMap<RegionId>,
    admission: Admission,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// What the kernel was last told to watch for.
    interest: epoll::EventFlags,
    role: Role,
}

#[derive(Debug)]
enum Role {
    Served(Served),
    Outgoing(Outgoing),
}

/// What a connection needs after a turn.
#[derive(Debug)]
enum Turn {
    /// Bytes from the peer.
    Readable,
    /// Room in the socket's buffer.
    Writable,
    /// Either.
    Both,
    /// Nothing any more.
    Over,
}

impl Tcp {
    /// A transport that serves nobody yet.
    ///
    /// # Errors
    /// What the kernel says about a new epoll set.
    pub fn new(bounds: Bounds, connector: Box<dyn Connector>) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Arena::default(),
            links: HashMap::new(),
            hosts: HashMap::new(),
            regions: HashMap::new(),
            timers: Timers::default(),
            bounds,
            connector,
            ready: Vec::with_capacity(BATCH),
            events: Vec::new(),
        })
    }

    /// Watches a new connection.
    fn add(&mut self, socket: OwnedFd, role: Role) -> io::Result<Key<Connection>> {
        let interest = epoll::EventFlags::IN;
        let key = self.connections.insert(Connection {
            socket,
            interest,
            role,
        });
        let data = epoll::EventData::new_u64(key.to_bits());
        let Some(connection) = self.connections.get(key) else {
            return Ok(key);
        };
        if let Err(errno) = epoll::add(&self.epoll, &connection.socket, data, interest) {
            self.connections.remove(key);
            return Err(errno.into());
        }
        Ok(key)
    }

    /// Gives one connection its turn.
    fn turn(&mut self, key: Key<Connection>, now: Instant) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let socket = connection.socket.as_fd();
        let next = match &mut connection.role {
            Role::Served(served) => {
                let Some(host) = self.hosts.get(&served.host) else {
                    return;
                };
                let turn = served.turn(socket, host, &self.regions, now);
                match turn {
                    Ok(turn) => {
                        if let Some(due) = served.arm_timer(self.bounds.stall) {
                            self.timers.push(due, key.to_bits());
                        }
                        turn
                    }
                    Err(ended) => {
                        host.counters.ended(served.ticket.peer(), ended);
                        Turn::Over
                    }
                }
            }
            Role::Outgoing(link) => match link.turn(socket) {
                Ok((turn, done)) => {
                    if done {
                        self.events.push(Event::Done(link.link));
                    }
                    turn
                }
                Err(failure) => {
                    let id = link.link;
                    self.lose(id, failure);
                    return;
                }
            },
        };
        self.watch(key, &next);
    }

    /// Tells the kernel what a connection waits for, if that has changed.
    fn watch(&mut self, key: Key<Connection>, next: &Turn) {
        let interest = match next {
            Turn::Readable => epoll::EventFlags::IN,
            Turn::Writable => epoll::EventFlags::OUT,
            Turn::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Turn::Over => {
                self.drop_connection(key);
                return;
            }
        };
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.interest == interest {
            return;
        }
        connection.interest = interest;
        let data = epoll::EventData::new_u64(key.to_bits());
        let Err(errno) = epoll::modify(&self.epoll, &connection.socket, data, interest) else {
            return;
        };
        // Cannot be watched, so it would hang for ever.
        match &connection.role {
            Role::Served(_) => self.drop_connection(key),
            Role::Outgoing(out) => {
                let link = out.link;
                let cause = LinkError::io("watching a connection")(errno.into());
                let (effect, reply_seen) = (Effect::Unknown, true);
                self.lose(
                    link,
                    Failure {
                        cause,
                        effect,
                        reply_seen,
                    },
                );
            }
        }
    }

    /// Closes a connection; if it was a link, without a word to its scheduler.
    fn drop_connection(&mut self, key: Key<Connection>) {
        let Some(connection) = self.connections.remove(key) else {
            return;
        };
        if let Role::Outgoing(link) = &connection.role {
            self.links.remove(&link.link);
        }
        // The socket may be shared with nobody, but say so to the kernel before it is closed: a
        // description that lives on elsewhere would go on reporting to us.
        let _gone_with_the_socket = epoll::delete(&self.epoll, &connection.socket);
    }

    /// A link has failed: its connection is closed, and nothing of it touches memory any more.
    fn lose(&mut self, link: LinkId, failure: Failure<LinkError>) {
        if let Some(key) = self.links.get(&link).copied() {
            self.drop_connection(key);
        }
        self.events.push(Event::Down(link, failure));
        self.events.push(Event::Released(link));
    }

    /// Closes the served connections of a host that `which` names, counting why.
    fn cut_served(&mut self, host: HostId, why: Ended, which: impl Fn(&Served) -> bool) {
        let doomed: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| match &connection.role {
                Role::Served(served) => served.host == host && which(served),
                Role::Outgoing(_) => false,
            })
            .map(|(key, _)| key)
            .collect();
        for key in doomed {
            if let (Some(side), Some(connection)) =
                (self.hosts.get(&host), self.connections.get(key))
                && let Role::Served(served) = &connection.role
            {
                side.counters.ended(served.ticket.peer(), why);
            }
            self.drop_connection(key);
        }
    }

    /// Looks after connections whose time has come.
    fn expire(&mut self, now: Instant) {
        while let Some(bits) = self.timers.due(now) {
            let key = Key::from_bits(bits);
            // Bytes that were too few to be woken for have moved as well.
            self.turn(key, now);
            let Some(Connection {
                role: Role::Served(served),
                ..
            }) = self.connections.get_mut(key)
            else {
                continue;
            };
            match served.expire(now, self.bounds) {
                Ok(None) => {}
                Ok(Some(later)) => self.timers.push(later, bits),
                Err(ended) => {
                    if let Some(host) = self.hosts.get(&served.host) {
                        host.counters.ended(served.ticket.peer(), ended);
                    }
                    self.drop_connection(key);
                }
            }
        }
    }
}

impl Transport for Tcp {
    fn host(&mut self, host: HostId, admission: Admission, counters: Arc<Counters>) {
        let side = HostSide {
            extents: ExtentMap::default(),
            admission,
            counters,
        };
        self.hosts.insert(host, side);
    }

    fn forget(&mut self, host: HostId) {
        let doomed: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| match &connection.role {
                Role::Served(served) => served.host == host,
                Role::Outgoing(link) => link.link.host == host,
            })
            .map(|(key, _)| key)
            .collect();
        for key in doomed {
            self.drop_connection(key);
        }
        if let Some(side) = self.hosts.remove(&host) {
            for (_, _, region) in side.extents.iter() {
                self.regions.remove(&region);
            }
        }
    }

    fn admit(&mut self, host: HostId, admission: Admission) {
        self.cut_served(host, Ended::NotAdmitted, |served| {
            !admission.allows(served.ticket.peer().address())
        });
        if let Some(side) = self.hosts.get_mut(&host) {
            side.admission = admission;
        }
    }

    fn export(&mut self, host: HostId, region: RegionId, memory: &Arc<Region>, wire_base: u64) {
        let Some(side) = self.hosts.get_mut(&host) else {
            return;
        };
        match side.extents.insert(wire_base, memory.length(), region) {
            Ok(()) => {
                self.regions.insert(region, Arc::clone(memory));
            }
            // The host checks the same map first, so this is a fault of ours; refuse to serve.
            Err(error) => tracing::error!(?region, %error, "region not served"),
        }
    }

    fn withdraw(&mut self, host: HostId, region: RegionId, forget: bool) {
        if let Some(side) = self.hosts.get_mut(&host) {
            side.extents.remove(region);
        }
        self.cut_served(host, Ended::Withdrawn, |served| served.touches(region));
        if forget {
            self.regions.remove(&region);
        }
        self.events.push(Event::Withdrawn(host, region));
    }

    fn open(&mut self, link: LinkId, to: &PeerCard) {
        self.connector.connect(link, to);
    }

    fn adopt(&mut self, incoming: Incoming, now: Instant) {
        match incoming {
            Incoming::Accepted {
                host,
                socket,
                ticket,
            } => {
                let Some(side) = self.hosts.get(&host) else {
                    return;
                };
                // It may have been admitted while the answer was already changing.
                if !side.admission.allows(ticket.peer().address()) {
                    side.counters.ended(ticket.peer(), Ended::NotAdmitted);
                    return;
                }
                let served = Served::new(host, ticket, now);
                match self.add(socket, Role::Served(served)) {
                    Ok(key) => self.timers.push(now + self.bounds.header, key.to_bits()),
                    Err(error) => tracing::warn!(?host, %error, "connection not watched"),
                }
            }
            Incoming::Connected {
                link,
                socket,
                version,
            } => {
                if !self.hosts.contains_key(&link.host) {
                    return;
                }
                let added = socket.and_then(|socket| {
                    self.add(socket, Role::Outgoing(Outgoing::new(link, version)))
                        .map_err(LinkError::io("watching a connection"))
                });
                match added {
                    Ok(key) => {
                        self.links.insert(link, key);
                        self.events.push(Event::Up(link));
                    }
                    Err(cause) => self.lose(
                        link,
                        Failure {
                            cause,
                            effect: Effect::None,
                            reply_seen: false,
                        },
                    ),
                }
            }
        }
    }

    fn post(&mut self, link: LinkId, slice: &Slice<RegionId>) {
        let region = self.regions.get(&slice.memory).map(Arc::clone);
        let key = self.links.get(&link).copied();
        let connection = key.and_then(|key| self.connections.get_mut(key));
        match (key, connection, region) {
            (
                Some(key),
                Some(Connection {
                    role: Role::Outgoing(out),
                    ..
                }),
                Some(region),
            ) => {
                out.begin(slice, region);
                self.turn(key, Instant::now());
            }
            // Gone since the scheduler last heard of it; the news is on its way to it.
            _ => self.lose(
                link,
                Failure {
                    cause: LinkError::Closed,
                    effect: Effect::None,
                    reply_seen: false,
                },
            ),
        }
    }

    fn close(&mut self, link: LinkId) {
        if let Some(key) = self.links.get(&link).copied() {
            self.drop_connection(key);
        }
        self.events.push(Event::Released(link));
    }

    fn answer_to(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(BELL);
        Ok(epoll::add(&self.epoll, bell, data, epoll::EventFlags::IN)?)
    }

    // In this very set, and not in one around it: the kernel then knows that who sends wakes who
    // receives, and lets them take turns on one processor where there is no other.
    fn wait(&mut self, longest: Option<Duration>) -> io::Result<bool> {
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        let mut ready = [const { MaybeUninit::uninit() }; BATCH];
        let ready = match epoll::wait(&self.epoll, &mut ready[..], longest.as_ref()) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let mut rung = false;
        for event in ready {
            match event.data.u64() {
                BELL => rung = true,
                key => self.ready.push(Key::from_bits(key)),
            }
        }
        Ok(rung)
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        let mut ready = std::mem::take(&mut self.ready);
        for key in ready.drain(..) {
            self.turn(key, now);
        }
        self.ready = ready;
        self.expire(now);
        events.append(&mut self.events);
    }

    fn next_deadline(&self) -> Option<Instant> {
        // Events that were made outside of `progress` wait for it.
        if self.events.is_empty() {
            self.timers.next()
        } else {
            Some(Instant::now())
        }
    }
}

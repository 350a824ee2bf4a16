//! A served identity: its listeners, its regions, and the transfers in its name.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proto::address::ServerName;
use proto::frame::Op;
use proto::handshake::Notify;
use proto::metadata::RpcMeta;
use proto::scheduler::Request;
use sys::mem::Region;
use sys::net::Namespace;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::admission::{Admission, ConnectionLimit, PeerFilter, Targets};
use crate::batch::{Batch, Completions, Submission};
use crate::command::Command;
use crate::connect::{Dialer, outlast_gaps};
use crate::control::accept;
use crate::control::handshake::{self, HandshakeState};
use crate::engine_state::Shared;
use crate::error::{Error, TransferError};
use crate::identity::Identity;
#[cfg(not(feature = "rdma"))]
use crate::outstanding::Fitness;
use crate::outstanding::Outstanding;
use crate::peers::PeerFailures;
use crate::resolve::Resolver;
use crate::stats::{Counters, EndpointStats};
use crate::transport::{EndpointId, IdleConnection, NewSocket, RegionId};

/// The parameters of an endpoint.
#[derive(Debug)]
pub struct EndpointSpec {
    /// Server name, `ip:port` of the handshake listener; IPv6 in brackets. Also the name in a metadata service.
    pub name: String,
    /// Port of the data listener as peers reach it.
    pub data_port: u16,
    /// Host of the data listener as peers reach it; IPv6 without brackets.
    pub data_host: String,
    /// Listener for handshakes.
    pub handshake: TcpListener,
    /// Listener for data connections.
    pub data: TcpListener,
    /// Network namespace in which outgoing sockets are created and names are looked up. `None`: that of this
    /// process.
    pub network: Option<Arc<Namespace>>,
    /// Peers that may connect to the two listeners.
    pub admission: Admission,
    /// Peers to which transfers may go.
    pub targets: Targets,
    /// Metadata service that has the descriptors of peers. Only with `network: None`. `None`: peers return them.
    pub metadata: Option<metadata::Service>,
}

/// A transfer between a local region and a peer's memory.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// `Read` copies from the peer into the region, `Write` from the region to the peer.
    pub op: Op,
    /// Server name of the peer.
    pub peer: String,
    /// Wire address at the peer.
    pub remote: u64,
    /// The local region.
    pub local: RegionId,
    /// Offset of the first byte in the region.
    pub local_offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Transfer {
    fn request(&self) -> Request<RegionId> {
        Request {
            op: self.op,
            remote: self.remote,
            memory: self.local,
            offset: self.local_offset,
            length: self.length,
            // The data thread sets both.
            deadline: Duration::ZERO,
            token: 0,
        }
    }
}

/// A region of an endpoint.
#[derive(Debug)]
struct Added {
    memory: Arc<Region>,
    /// Held during each change, so that the descriptor and all data threads see the changes in one order.
    change: tokio::sync::Mutex<()>,
}

/// A served identity. Dropping it closes its listeners and connections and releases its memory;
/// [`Endpoint::close`] also waits for that.
#[derive(Debug)]
pub struct Endpoint {
    id: EndpointId,
    engine: Arc<Shared>,
    filter: Arc<PeerFilter>,
    limit: Arc<ConnectionLimit>,
    handshake: Arc<HandshakeState>,
    regions: Mutex<BTreeMap<RegionId, Arc<Added>>>,
    outstanding: Outstanding,
    completions: Completions,
    tasks: [JoinHandle<()>; 2],
    /// Ends the tasks of the listeners, which hold its receivers.
    stop: watch::Sender<bool>,
}

impl Endpoint {
    pub(crate) fn open(engine: Arc<Shared>, spec: EndpointSpec) -> Result<Self, Error> {
        let EndpointSpec {
            name,
            data_port,
            data_host,
            handshake,
            data,
            network,
            admission,
            targets,
            metadata,
        } = spec;
        #[cfg(feature = "rdma")]
        if !engine.cards.is_empty() && metadata.is_some() {
            return Err(Error::MetadataOverRdma);
        }
        let id = engine.new_endpoint();
        let settings = engine.settings;
        let counters = Arc::new(Counters::default());
        let identity = Identity::new(name, data_host, data_port);
        #[cfg(feature = "rdma")]
        let identity = identity.with_cards(engine.cards.clone());
        let identity = Arc::new(identity);
        let filter = Arc::new(PeerFilter::new(admission.clone(), Arc::clone(&counters)));
        let dialer = Arc::new(Dialer {
            network,
            filter: Arc::clone(&filter),
            targets,
        });
        let resolver = Arc::new(Resolver {
            runtime: engine.runtime.clone(),
            dialer,
            identity: Arc::clone(&identity),
            metadata,
            timeout: settings.connect_timeout,
        });
        let _in_runtime = engine.runtime.enter();
        let [handshake, data] = [handshake, data].map(|listener| {
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)
        });
        let listener = handshake.map_err(Error::io("cannot use the handshake listener"))?;
        let data = data.map_err(Error::io("cannot use the data listener"))?;
        engine.send(|| Command::Open {
            endpoint: id,
            admission: admission.clone(),
            counters: Arc::clone(&counters),
            resolver: Arc::clone(&resolver),
        })?;
        let limit = ConnectionLimit::new(
            settings.max_connections_per_address,
            settings.max_connections,
            Arc::clone(&engine.connections),
        );
        let handshake = Arc::new(HandshakeState::new(identity));
        let threads = engine.commands.len();
        let outstanding =
            Outstanding::new(settings.transfers_per_peer, settings.transfers, threads);
        #[cfg(feature = "rdma")]
        let outstanding = outstanding.with_threads_per_peer(engine.cards.threads_per_peer());
        let (stop, stopped) = watch::channel(false);
        let tasks = [
            engine.runtime.spawn(accept::data(
                data,
                id,
                Arc::clone(&filter),
                Arc::clone(&limit),
                Arc::clone(&engine.commands),
                stopped.clone(),
            )),
            engine.runtime.spawn(handshake::serve(
                listener,
                Arc::clone(&handshake),
                Arc::clone(&filter),
                settings.header_deadline,
                stopped,
            )),
        ];
        Ok(Self {
            id,
            engine,
            filter,
            limit,
            handshake,
            regions: Mutex::default(),
            outstanding,
            completions: Completions::default(),
            tasks,
            stop,
        })
    }

    /// Serves a region at a wire base and publishes it in the descriptor. Blocks while an RDMA device registers it.
    ///
    /// # Errors
    /// [`Error::Unmappable`] if the base is zero, the range wraps, or it overlaps another region;
    /// `Error::Card` if no RDMA device registers it, of those that serve the other regions; [`Error::Stopped`] if a data
    /// thread has ended.
    pub fn add_region(&self, region: Arc<Region>, wire_base: u64) -> Result<RegionId, Error> {
        let id = self.engine.new_region();
        #[cfg(feature = "rdma")]
        self.engine
            .cards
            .register(id, &region, wire_base, &self.handshake.identity.beside(id))?;
        self.publish_region(id, region, wire_base)
    }

    /// Serves a region over TCP, which needs no registration. [`Self::register_region`] is to follow.
    ///
    /// # Errors
    /// [`Error::Unmappable`] and [`Error::Stopped`], as [`Self::add_region`].
    #[cfg(feature = "rdma")]
    pub fn add_unregistered(&self, region: Arc<Region>, wire_base: u64) -> Result<RegionId, Error> {
        let id = self.engine.new_region();
        self.publish(id, &region, wire_base)?;
        self.engine.send(|| Command::AddUnregistered {
            endpoint: self.id,
            region: id,
            memory: Arc::clone(&region),
            wire_base,
        })?;
        Ok(id)
    }

    /// Registers a region of [`Self::add_unregistered`] with the RDMA devices, if there are any, which may take minutes, and
    /// serves it over them too. Later changes of the region wait for it. Another call registers it with the devices that have
    /// failed, which may be necessary for the next region.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`]; `Error::Card` and [`Error::Stopped`], as [`Self::add_region`]; it is served as before then, and
    /// the call can be made again.
    #[cfg(feature = "rdma")]
    pub async fn register_region(&self, region: RegionId) -> Result<(), Error> {
        if self.engine.cards.is_empty() {
            return Ok(());
        }
        let added = self.added(region)?;
        let _in_order = added.change.lock().await;
        let identity = &self.handshake.identity;
        // None if the earlier change has removed it.
        let wire_base = identity.base(region).ok_or(Error::UnknownRegion)?;
        self.engine
            .cards
            .register_in_tokio(region, &added.memory, wire_base, &identity.beside(region))
            .await?;
        identity.publish_over_devices(region);
        self.engine.send(|| Command::Registered {
            endpoint: self.id,
            region,
            memory: Arc::clone(&added.memory),
            wire_base,
        })
    }

    /// Publishes a region that is registered, and passes it to the data threads.
    fn publish_region(
        &self,
        id: RegionId,
        region: Arc<Region>,
        wire_base: u64,
    ) -> Result<RegionId, Error> {
        let published = self.publish(id, &region, wire_base);
        #[cfg(feature = "rdma")]
        match published {
            Ok(()) => self.handshake.identity.publish_over_devices(id),
            Err(_) => self.engine.cards.forget(id, wire_base),
        }
        published?;
        self.engine.send(|| Command::AddRegion {
            endpoint: self.id,
            region: id,
            memory: Arc::clone(&region),
            wire_base,
        })?;
        Ok(id)
    }

    fn publish(&self, id: RegionId, region: &Arc<Region>, wire_base: u64) -> Result<(), Error> {
        let mut regions = self.regions.lock();
        let identity = &self.handshake.identity;
        identity.publish(id, wire_base, region.length())?;
        let added = Added {
            memory: Arc::clone(region),
            change: tokio::sync::Mutex::default(),
        };
        regions.insert(id, Arc::new(added));
        Ok(())
    }

    /// Stops serving a region: its addresses are rejected, peers' requests in progress are cut, own
    /// transfers with it fail. Resolves when nothing can access its memory. Waits for an earlier change of
    /// the region.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`]; [`Error::Stopped`] if a data thread has ended; `Error::Card` if an RDMA device does not
    /// confirm the end: it may access the memory until this process ends.
    pub async fn remove_region(&self, region: RegionId) -> Result<(), Error> {
        let added = self.added(region)?;
        let _in_order = added.change.lock().await;
        let removed = self.regions.lock().remove(&region);
        // Removed by the earlier change.
        removed.ok_or(Error::UnknownRegion)?;
        self.handshake.identity.withdraw(region);
        self.engine
            .request(|done| Command::RemoveRegion {
                endpoint: self.id,
                region,
                done,
            })
            .await
    }

    /// Serves the same memory at another wire base. Peers' requests and own transfers in progress are cut.
    /// Resolves when no byte under the old base and none of these transfers can move. Waits for an earlier change of the region.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`]; [`Error::Unmappable`], after which nothing has changed;
    /// [`Error::Stopped`] if a data thread has ended; `Error::Card` if no RDMA device registers it, of those that serve
    /// the other regions, after which nothing has changed either, or if one does not confirm the end under the old base,
    /// whose addresses it may access then.
    pub async fn rebase_region(&self, region: RegionId, wire_base: u64) -> Result<(), Error> {
        let added = self.added(region)?;
        let _in_order = added.change.lock().await;
        // Fails if the earlier change has removed it.
        self.added(region)?;
        #[cfg(feature = "rdma")]
        self.engine
            .cards
            .register_in_tokio(
                region,
                &added.memory,
                wire_base,
                &self.handshake.identity.beside(region),
            )
            .await?;
        let rebased = self.handshake.identity.rebase(region, wire_base);
        #[cfg(feature = "rdma")]
        if rebased.is_err() {
            self.engine.cards.forget(region, wire_base);
        }
        rebased?;
        self.engine
            .request(|done| Command::RebaseRegion {
                endpoint: self.id,
                region,
                memory: Arc::clone(&added.memory),
                wire_base,
                done,
            })
            .await
    }

    /// Returns why RDMA devices do not serve all regions, and so are not published: the error of each, with its name.
    #[cfg(feature = "rdma")]
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        self.handshake.identity.left_out()
    }

    /// Returns what a metadata service has to hold of this endpoint; `None` with an RDMA device, see
    /// `Error::MetadataOverRdma`.
    pub fn metadata_entry(&self) -> Option<metadata::Entry> {
        #[cfg(feature = "rdma")]
        if self.handshake.identity.is_rdma() {
            return None;
        }
        let descriptor = self.handshake.identity.descriptor();
        let server = ServerName::parse(&descriptor.name);
        Some(metadata::Entry {
            rpc_meta: RpcMeta {
                ip_or_host_name: server.host,
                rpc_port: server.port,
            },
            descriptor,
        })
    }

    #[cfg(all(test, feature = "rdma"))]
    pub(crate) fn engine(&self) -> &Shared {
        &self.engine
    }

    fn added(&self, region: RegionId) -> Result<Arc<Added>, Error> {
        let added = self.regions.lock().get(&region).map(Arc::clone);
        added.ok_or(Error::UnknownRegion)
    }

    /// Replaces the admission. Connections of peers that are no longer admitted are closed at once.
    ///
    /// # Errors
    /// [`Error::Stopped`] if a data thread has ended.
    pub fn admit(&self, admission: Admission) -> Result<(), Error> {
        self.filter.set_admission(admission.clone());
        #[cfg(feature = "rdma")]
        if let Some(served) = self.handshake.served.clone() {
            let filter = Arc::clone(&self.filter);
            let ending = async move { served.admit(&filter).await };
            self.engine.runtime.spawn(ending);
        }
        self.engine.send(|| Command::SetAdmission {
            endpoint: self.id,
            admission: admission.clone(),
        })
    }

    /// Carries out one transfer and returns its outcome, at the latest at the deadline.
    ///
    /// # Errors
    /// See [`TransferError`]; [`TransferError::Indeterminate`] for a write whose outcome is unknown.
    pub async fn transfer(
        &self,
        transfer: Transfer,
        deadline: Instant,
    ) -> Result<(), TransferError> {
        self.submit(std::slice::from_ref(&transfer), deadline)
            .outcome()
            .await
    }

    /// Starts transfers that complete together: all of them, or none. Their memory is in use until
    /// [`Batch::released`]. Dropping the batch cancels them.
    pub fn submit(&self, transfers: &[Transfer], deadline: Instant) -> Batch {
        let completion = self.completions.next();
        completion.plan(|submissions| self.prepare(transfers, submissions));
        for (thread, commands) in self.engine.commands.iter().enumerate() {
            if !completion.is_for(thread) {
                continue;
            }
            let started = commands.send(Command::Submit {
                endpoint: self.id,
                batch: Arc::clone(&completion),
                deadline,
                thread,
            });
            if started.is_err() {
                completion.refuse(thread);
            }
        }
        Batch::new(completion, self.id, Arc::clone(&self.engine.commands))
    }

    /// Checks the ranges of all transfers, counts them, and lists them for their data threads.
    fn prepare(
        &self,
        transfers: &[Transfer],
        submissions: &mut Vec<Submission>,
    ) -> Result<(), TransferError> {
        let regions = self.regions.lock();
        for transfer in transfers {
            let Transfer {
                local,
                local_offset: offset,
                length,
                ..
            } = *transfer;
            let available = regions.get(&local);
            let available = available.map_or(0, |added| added.memory.length());
            if offset.checked_add(length).is_none_or(|end| end > available) {
                return Err(TransferError::LocalRange { offset, length });
            }
        }
        drop(regions);
        #[cfg(feature = "rdma")]
        let fitness = |thread, region| self.engine.cards.fitness(thread, region);
        #[cfg(not(feature = "rdma"))]
        let fitness = |_, _| Fitness::Good;
        let counted = transfers.iter().map(|one| {
            let local = one.local;
            (&*one.peer, one.length, move |thread| fitness(thread, local))
        });
        let mut next = transfers.iter();
        self.outstanding.count(counted, |share| {
            submissions.extend(next.next().map(|transfer| Submission {
                thread: share.thread(),
                share,
                request: transfer.request(),
            }));
        })
    }

    /// Closes the listeners and returns the served connections: each when the requests that have begun on it are
    /// complete. Those that are not within the deadline stay. Handshakes that were accepted are answered first, within the
    /// same deadline. Queue pairs of RDMA peers are not passed on.
    ///
    /// # Errors
    /// [`Error::Stopped`] if a data thread has ended.
    pub async fn pass_on(&self, within: Duration) -> Result<Vec<IdleConnection>, Error> {
        let deadline = tokio::time::Instant::now() + within;
        self.stop.send_replace(true);
        // A connection that was accepted is with a data thread then. Handshakes get half of the time: a peer may keep one open.
        let _in_time = tokio::time::timeout(within / 2, self.stop.closed()).await;
        let (to, mut passed) = mpsc::unbounded_channel();
        self.engine.send(|| Command::PassOn {
            endpoint: self.id,
            to: to.clone(),
        })?;
        drop(to);
        let mut connections = Vec::new();
        while let Ok(Some(one)) = tokio::time::timeout_at(deadline, passed.recv()).await {
            connections.push(one);
        }
        Ok(connections)
    }

    /// Serves connections on that another engine has passed on, those of admitted peers within the limits. Returns their
    /// number. Before the regions are added, requests on them would be rejected.
    ///
    /// # Errors
    /// [`Error::Stopped`] if a data thread has ended.
    pub fn take_over(&self, connections: Vec<IdleConnection>) -> Result<usize, Error> {
        let mut taken = 0;
        for one in connections {
            let Some(permit) = self.filter.check(one.peer, &self.limit) else {
                continue;
            };
            // Fails if the peer has already closed the connection.
            if outlast_gaps(&one.socket).is_err() {
                continue;
            }
            let threads = &self.engine.commands;
            threads[taken % threads.len()].send(Command::AddSocket(NewSocket::Accepted {
                endpoint: self.id,
                socket: one.socket,
                permit,
                before: Some(one.before),
            }))?;
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes the messages that peers have sent.
    #[must_use]
    pub fn notifies(&self) -> Vec<Notify> {
        self.handshake.notifies.lock().take()
    }

    /// Returns the counters since the endpoint was opened.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.filter.counters.read(self.limit.count())
    }

    /// Returns the peers with the most failed connections, by cause, highest count first.
    #[must_use]
    pub fn worst_peers(&self, most: usize) -> Vec<PeerFailures> {
        self.filter.counters.peers.worst(most)
    }

    /// Closes listeners and connections. Resolves when nothing can access any region's memory.
    ///
    /// # Errors
    /// [`Error::Stopped`] if a data thread has ended; `Error::Card` as [`Self::remove_region`].
    pub async fn close(mut self) -> Result<(), Error> {
        for task in &mut self.tasks {
            task.abort();
            // Aborted or ended before; its listener is closed in both cases.
            let _ended = task.await;
        }
        #[cfg(feature = "rdma")]
        if let Some(served) = &self.handshake.served {
            served.close().await;
        }
        self.engine
            .request(|done| Command::Close {
                endpoint: self.id,
                done,
            })
            .await
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        // A thread that has ended holds nothing.
        let _ended = self.engine.send(|| Command::Close {
            endpoint: self.id,
            done: oneshot::channel().0,
        });
    }
}

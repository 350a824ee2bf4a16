//! The deeds: each carries out one action and leaves the pod's facts as they then are.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crds::cluster;
use crds::node::MasterInstance;
use crds::reason::Reason;
use engine::{Admission, HostSpec};
use futures::future::join_all;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use store::{Origin, Session, Settings, Uuid, wire};
use sys::mem::{NumaPolicy, PageSize, Region};
use sys::net::Namespace;
use tokio::net::{TcpSocket, TcpStream};

use super::driver::{HEARTBEAT, Pod, Served};
use super::epoch::{Epoch, Place};
use super::failure::Failure;
use super::link;
use super::mover::{EngineMover, Mounted};
use super::record::Record;
use super::step::{Action, Step};
use crate::agent::admission::Admitted;
use crate::agent::numa;
use crate::handover::message::{ExtentState, Request};
use crate::handover::{self, Client, EXTENT_LIMIT};

/// How long a connection to the master may take where no session bounds it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

impl Pod {
    /// Carries one action out.
    pub(super) async fn act(&mut self, action: Action, step: &Step) -> Result<(), Failure> {
        match action {
            Action::Attach => self.attach().await,
            Action::ReadRecord => self.read_record().await,
            Action::ProveAddress => self.prove_address().await,
            Action::Grant => self.grant(step).await,
            Action::Map => self.map().await,
            Action::Touch(index) => {
                self.ask(Request::Touch { index }).await?;
                self.touching = Some(index);
                Ok(())
            }
            Action::Begin => self.begin().await,
            Action::Host => self.host().await,
            Action::StartSession => self.start_session().await,
            Action::RenewEpoch => self.renew_epoch().await,
            Action::ChangeMaster => self.change_master().await,
            Action::AdoptMaster => self.adopt_master().await,
            Action::TellServing(serving) => {
                let reason = self.serving_words();
                self.ask(Request::SetServing { serving, reason }).await?;
                self.told = Some(serving);
                Ok(())
            }
            Action::Unmount { graceful } => {
                self.unmount(graceful).await;
                Ok(())
            }
            Action::Release => self.release().await,
            Action::SayDrained => {
                self.ask(Request::Drained).await?;
                self.said_drained = true;
                Ok(())
            }
            Action::Finish => Ok(()),
        }
    }

    fn client(&mut self) -> Result<&mut Client, Failure> {
        self.client
            .as_mut()
            .ok_or_else(|| Failure::new(Reason::PoolPodNotReady, "not connected to the pool"))
    }

    /// Passes an answer on; a connection that failed is given up.
    fn heard<T>(&mut self, answer: Result<T, handover::Error>) -> Result<T, Failure> {
        answer.map_err(|error| {
            if !matches!(error, handover::Error::Refused { .. }) {
                self.detach(&error);
            }
            Failure::from(error)
        })
    }

    async fn ask(&mut self, request: Request) -> Result<(), Failure> {
        let answer = self.client()?.tell(request).await;
        self.heard(answer)
    }

    async fn attach(&mut self) -> Result<(), Failure> {
        let context = Arc::clone(&self.context);
        let connected = link::connect(&context.proc, &self.process, &self.network, &self.uid);
        let mut client = connected.await?;
        let attached = client.attach().await?;
        if attached.pod_uid != self.uid {
            let message = format!(
                "the process of pod {} says that it is of pod {:?}",
                self.uid, attached.pod_uid
            );
            return Err(Failure::new(Reason::ForeignProcess, message));
        }
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            pid = self.process.pid,
            address = attached.pod_ip,
            extents = attached.extents.len(),
            "attached"
        );
        if attached.extents.is_empty() && self.memory.is_empty() {
            context.ledger.has_nothing(&self.uid);
        }
        if self.memory.is_empty() {
            self.extents.clone_from(&attached.extents);
        } else {
            self.learn_touched(&attached.extents);
        }
        self.ending |= attached.ending;
        self.attached = Some(attached);
        self.client = Some(client);
        Ok(())
    }

    /// Memory that is mapped keeps its shape; only how much of it is touched is news.
    fn learn_touched(&mut self, now: &[ExtentState]) {
        for (extent, now) in self.extents.iter_mut().zip(now) {
            extent.touched = now.touched.min(extent.length);
        }
    }

    async fn read_record(&mut self) -> Result<(), Failure> {
        let answer = self.client()?.record().await;
        if let Some(sealed) = self.heard(answer)? {
            let record = Record::open(&self.context.key, &self.uid, &sealed)?;
            let (size, page_size, numa_policy) = (
                record.assignment.size,
                record.assignment.page_size,
                record.assignment.numa_policy,
            );
            self.assignment.size = size;
            self.assignment.page_size = page_size;
            self.assignment.numa_policy = numa_policy;
            if self.assignment.master.is_none() {
                self.assignment.master.clone_from(&record.mounted_in);
            }
            self.record = Some(record);
        }
        self.record_read = true;
        Ok(())
    }

    /// Shows by binding to it that the address which the pod claims is one of its namespace.
    async fn prove_address(&mut self) -> Result<(), Failure> {
        let claimed = self
            .attached
            .as_ref()
            .map(|attached| attached.pod_ip.clone());
        let claimed = claimed.unwrap_or_default();
        let refuse = |why: String| {
            let message = format!("the pod says that its address is {claimed:?}: {why}");
            Failure::new(Reason::AddressNotOwn, message)
        };
        let address: IpAddr = claimed
            .parse()
            .map_err(|_| refuse("that is no IP address".to_owned()))?;
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(refuse("no other machine can connect to it".to_owned()));
        }
        let network = Arc::clone(&self.network);
        let bound = tokio::task::spawn_blocking(move || {
            network.run(|| TcpListener::bind((address, 0)).map(drop))
        });
        bound
            .await
            .map_err(|error| refuse(error.to_string()))?
            .map_err(|error| refuse(format!("it is none of its network namespace ({error})")))?;
        self.address = Some(address);
        Ok(())
    }

    /// P2P server name, once the address is proven.
    pub(super) fn server_name(&self) -> Option<String> {
        let port = self.attached.as_ref()?.handshake_port;
        Some(SocketAddr::new(self.address?, port).to_string())
    }

    fn page_size(&self) -> PageSize {
        match self.assignment.page_size {
            cluster::PageSize::Base => PageSize::Base,
            cluster::PageSize::Huge2Mi => PageSize::Mib2,
            cluster::PageSize::Huge1Gi => PageSize::Gib1,
        }
    }

    fn plan(&self) -> Vec<numa::Extent> {
        let nodes = numa::nodes_with_memory(Path::new("/sys"));
        let policy = self.assignment.numa_policy;
        numa::plan(self.assignment.size.0, self.page_size(), policy, &nodes)
    }

    async fn grant(&mut self, step: &Step) -> Result<(), Failure> {
        if let Err(holder) = self.context.ledger.grant(&self.uid) {
            self.predecessor.get_or_insert_with(std::time::Instant::now);
            let message = format!(
                "pod {holder} of the same pool still holds memory on this node; \
                 it is given back when its process has ended and nothing of it is mapped"
            );
            return Err(Failure::new(step.reason, message));
        }
        self.predecessor = None;
        let lengths: Vec<u64> = self.plan().iter().map(|extent| extent.length).collect();
        let page_bytes = self.page_size().bytes();
        let extents = lengths.clone();
        self.ask(Request::Grant {
            extents,
            page_bytes,
        })
        .await?;
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            extents = lengths.len(),
            bytes = self.assignment.size.0,
            "memory granted"
        );
        self.extents = lengths
            .into_iter()
            .map(|length| ExtentState { length, touched: 0 })
            .collect();
        Ok(())
    }

    /// Takes the extents, checks and maps them, and says where their pages shall lie.
    async fn map(&mut self) -> Result<(), Failure> {
        let declared: Vec<u64> = self.extents.iter().map(|extent| extent.length).collect();
        let sum = declared
            .iter()
            .try_fold(0_u64, |sum, length| sum.checked_add(*length));
        if sum != Some(self.assignment.size.0) || declared.len() > EXTENT_LIMIT {
            let message = format!(
                "the pool has {} extents of {sum:?} bytes together, {} bytes were granted",
                declared.len(),
                self.assignment.size.0
            );
            return Err(Failure::new(Reason::DescriptorWrongSize, message));
        }
        let page = self.page_size();
        let mut memory = Vec::with_capacity(declared.len());
        for (index, length) in declared.iter().enumerate() {
            let request = Request::Extent { index };
            let answer = self.client()?.descriptors::<1>(request).await;
            let [fd] = self.heard(answer)?;
            memory.push(Arc::new(Region::map(fd, *length, page)?));
        }
        let plan = self.plan();
        let same_shape = plan.iter().map(|extent| extent.length).eq(declared);
        for (extent, region) in plan.iter().zip(&memory) {
            if let (Some(node), true) = (extent.node, same_shape) {
                region.set_numa_policy(&NumaPolicy::Prefer(node))?;
            }
        }
        self.context.ledger.mapped(&self.uid, &memory);
        self.memory = memory;
        Ok(())
    }

    fn lengths(&self) -> Vec<u64> {
        self.memory.iter().map(|region| region.length()).collect()
    }

    fn draw(&self, last: u32) -> Result<Epoch, Failure> {
        Epoch::draw(last, &self.lengths())
            .map_err(|error| Failure::new(Reason::PoolPodNotReady, error))
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        let client =
            store::random_id().map_err(|error| Failure::new(Reason::PoolPodNotReady, error))?;
        let record = Record::new(self.assignment.clone(), client, self.draw(0)?);
        self.write(record).await
    }

    /// Notes a change before it takes effect.
    async fn write(&mut self, record: Record) -> Result<(), Failure> {
        let sealed = record.seal(&self.context.key);
        self.ask(Request::PutRecord { record: sealed }).await?;
        self.record = Some(record);
        Ok(())
    }

    fn recorded(&self) -> Result<Record, Failure> {
        self.record
            .clone()
            .ok_or_else(|| Failure::new(Reason::PoolPodNotReady, "no record yet"))
    }

    async fn host(&mut self) -> Result<(), Failure> {
        let record = self.recorded()?;
        let answer = self.client()?.descriptors::<2>(Request::Listeners).await;
        let listeners = self.heard(answer)?;
        let attached = self.attached.clone();
        let (Some(attached), Some(name), Some(address)) =
            (attached, self.server_name(), self.address)
        else {
            return Err(Failure::new(Reason::PoolPodNotReady, "not attached"));
        };
        let [handshake, data] = listeners.map(TcpListener::from);
        checked(&handshake, attached.handshake_port)?;
        checked(&data, attached.data_port)?;
        if self.admission.is_none() {
            let kubernetes = self.context.kubernetes.as_ref();
            self.admission =
                kubernetes.map(|client| Admitted::watch(client.clone(), &self.assignment));
        }
        let admitted = self.wanted_admission();
        let failed = |error: engine::Error| Failure::new(Reason::PoolPodNotReady, error);
        let host = self.context.engine.host(HostSpec {
            name: name.clone(),
            data_port: attached.data_port,
            data_host: address.to_string(),
            handshake,
            data,
            network: Some(Arc::clone(&self.network)),
            admission: Admission::only(admitted.iter().copied()),
        });
        let host = Arc::new(host.map_err(failed)?);
        let places = record.epoch.places(self.memory.len());
        let mut regions = Vec::new();
        for (region, place) in self.memory.iter().zip(&places) {
            let added = host.add_region(Arc::clone(region), place.base);
            regions.push(added.map_err(failed)?);
        }
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            name,
            epoch = record.epoch.number,
            admitted = admitted.len(),
            "serving peers"
        );
        self.admitted = Some(admitted);
        self.served = Some(Served { host, regions });
        self.note_places(&places);
        Ok(())
    }

    fn note_places(&self, places: &[Place]) {
        let Some(served) = &self.served else { return };
        let mounted = self.memory.iter().zip(&served.regions).zip(places);
        let mounted = mounted.map(|((region, id), place)| Mounted {
            base: place.base,
            length: region.length(),
            region: *id,
        });
        self.places.set(mounted.collect());
    }

    /// Everybody who may connect by what is known now.
    fn wanted_admission(&self) -> BTreeSet<IpAddr> {
        let told = self.admission.as_ref().and_then(Admitted::now);
        let kept = || self.record.as_ref().map(Record::admitted);
        let mut wanted = told.or_else(kept).unwrap_or_default();
        let listed = self.assignment.addresses.iter();
        wanted.extend(listed.filter_map(|address| address.parse::<IpAddr>().ok()));
        // Copies between the pool's own extents.
        wanted.extend(self.address);
        wanted
    }

    /// Lets the engine and the record know who is admitted now.
    pub(super) async fn refresh_admission(&mut self) {
        let wanted = self.wanted_admission();
        let (Some(served), Some(before)) = (&self.served, &self.admitted) else {
            return;
        };
        if *before == wanted {
            return;
        }
        let admission = Admission::only(wanted.iter().copied());
        if let Err(error) = served.host.admit(admission) {
            return tracing::error!(uid = self.uid, %error, "the engine takes no admission");
        }
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            peers = wanted.len(),
            "admission changed"
        );
        let Ok(mut record) = self.recorded() else {
            return;
        };
        let left = record.set_admitted(&wanted);
        if left > 0 {
            tracing::warn!(
                uid = self.uid,
                left,
                "admitted peers that the record has no room for"
            );
        }
        record.assignment = self.assignment.clone();
        self.admitted = Some(wanted);
        if let Err(failure) = self.write(record).await {
            tracing::warn!(uid = self.uid, "{}", failure.message);
        }
    }

    fn segments(&self, record: &Record) -> Vec<wire::Segment> {
        let a = &self.assignment;
        let node = &self.context.node_name;
        let endpoint = self.server_name().unwrap_or_default();
        let places = record.epoch.places(self.memory.len());
        let numbered = self.memory.iter().zip(places).enumerate();
        let segment = |(index, (region, place)): (usize, (&Arc<Region>, Place))| wire::Segment {
            id: place.segment,
            name: crds::names::segment(&a.cluster, &a.pool, node, index),
            base: place.base,
            size: region.length(),
            te_endpoint: endpoint.clone(),
            protocol: "tcp".to_owned(),
            host_id: String::new(),
        };
        numbered.map(segment).collect()
    }

    fn ids(&self, epoch: &Epoch) -> Vec<Uuid> {
        let places = epoch.places(self.memory.len());
        places.iter().map(|place| place.segment).collect()
    }

    async fn start_session(&mut self) -> Result<(), Failure> {
        let mut record = self.recorded()?;
        let noted = record.mounted_in.clone();
        let Some(master) = noted.clone().or_else(|| self.assignment.master.clone()) else {
            return Err(Failure::new(Reason::MasterNotReady, "no master is named"));
        };
        let address = address_of(&master)?;
        let segments = self.segments(&record);
        let origin = if noted.is_some() {
            Origin::TakeOver(segments)
        } else {
            let former = record.former.as_ref();
            let former = former.map(|epoch| self.ids(epoch)).unwrap_or_default();
            record.mounted_in = Some(master.clone());
            record.assignment = self.assignment.clone();
            self.write(record.clone()).await?;
            Origin::Fresh { segments, former }
        };
        let Some(served) = &self.served else {
            return Err(Failure::new(Reason::PoolPodNotReady, "not served yet"));
        };
        let mover = EngineMover {
            host: Arc::clone(&served.host),
            extents: self.places.clone(),
        };
        let network = Arc::clone(&self.network);
        let connect = move || {
            let network = Arc::clone(&network);
            connect_inside(network, address)
        };
        tracing::info!(
            pod = self.assignment.pod_name, uid = self.uid, master = master.address,
            master_pod = master.pod_uid, client = %record.client, epoch = record.epoch.number,
            taken_over = noted.is_some(), "session started"
        );
        self.answered = None;
        self.session = Some(Session::start(
            Settings::default(),
            record.client,
            origin,
            master.address,
            connect,
            Arc::new(mover),
        ));
        Ok(())
    }

    /// New ids and wire bases, recorded first; no old address is answered when it returns.
    async fn next_epoch(&mut self, change: impl FnOnce(&mut Record)) -> Result<Record, Failure> {
        let mut record = self.recorded()?;
        let fresh = self.draw(record.epoch.number)?;
        record.former = Some(std::mem::replace(&mut record.epoch, fresh));
        record.assignment = self.assignment.clone();
        change(&mut record);
        self.write(record.clone()).await?;
        let places = record.epoch.places(self.memory.len());
        if let Some(served) = &self.served {
            for (region, place) in served.regions.iter().zip(&places) {
                let moved = served.host.rebase_region(*region, place.base).await;
                moved.map_err(|error| Failure::new(Reason::PoolPodNotReady, error))?;
            }
        }
        self.note_places(&places);
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            epoch = record.epoch.number,
            "new data epoch: old addresses are refused"
        );
        Ok(record)
    }

    async fn renew_epoch(&mut self) -> Result<(), Failure> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        let state = session.state().borrow().clone();
        let store::State::EpochLost { epoch, .. } = state else {
            return Ok(());
        };
        let record = self.next_epoch(|record| record.renewed = true).await?;
        let segments = self.segments(&record);
        if let Some(session) = &self.session {
            session.begin_epoch(epoch, segments);
            self.answered = Some(epoch);
        }
        Ok(())
    }

    async fn change_master(&mut self) -> Result<(), Failure> {
        // Dropping it unmounts nothing; the next session unmounts what the next master may have.
        self.session = None;
        let change = |record: &mut Record| {
            record.mounted_in = None;
            record.renewed = false;
        };
        self.next_epoch(change).await.map(|_| ())
    }

    async fn adopt_master(&mut self) -> Result<(), Failure> {
        let mut record = self.recorded()?;
        record.mounted_in.clone_from(&self.assignment.master);
        record.renewed = false;
        record.assignment = self.assignment.clone();
        self.write(record).await
    }

    /// Takes every segment out of the master. What fails is told in the log: the master gives the
    /// client up by itself when the pings have stopped for its client TTL.
    async fn unmount(&mut self, graceful: bool) {
        self.left = true;
        let session = self.session.take();
        let Some(record) = self.record.clone() else {
            return;
        };
        // A pool that is not mapped by us tells the count of its extents.
        let places = record.epoch.places(self.extents.len());
        let ids: Vec<Uuid> = places.iter().map(|place| place.segment).collect();
        let mut failed = match &session {
            Some(session) if graceful => self.drain(session, &ids).await,
            Some(session) => unmount_all(session, &ids, Duration::ZERO).await,
            None => ids.clone(),
        };
        if let (Some(master), false) = (&record.mounted_in, failed.is_empty()) {
            let network = Arc::clone(&self.network);
            match unmount_outside(master, network, record.client, &failed).await {
                Ok(()) => failed.clear(),
                Err(failure) => tracing::warn!(
                    uid = self.uid,
                    "left to the master's client TTL: {}",
                    failure.message
                ),
            }
        }
        tracing::info!(
            pod = self.assignment.pod_name,
            uid = self.uid,
            segments = ids.len(),
            failed = failed.len(),
            graceful,
            "left the master"
        );
    }

    /// Unmounts with the grace of the pool, and shows the pool meanwhile that its agent lives. The
    /// grace ends with the pool process. Returns what may still be mounted.
    async fn drain(&mut self, session: &Session, ids: &[Uuid]) -> Vec<Uuid> {
        let grace = Duration::from_secs(u64::from(self.assignment.drain_seconds));
        let mut unmounting = std::pin::pin!(unmount_all(session, ids, grace));
        loop {
            tokio::select! {
                failed = &mut unmounting => return failed,
                () = tokio::time::sleep(HEARTBEAT) => {}
            }
            self.beat().await;
            if !self.process.runs() {
                tracing::warn!(uid = self.uid, "the pool process ended within its drain");
                return unmount_all(session, ids, Duration::ZERO).await;
            }
        }
    }

    /// Serves no more, and unmaps once nothing can touch the memory.
    async fn release(&mut self) -> Result<(), Failure> {
        if let Some(served) = self.served.take() {
            for region in &served.regions {
                if let Err(error) = served.host.remove_region(*region).await {
                    tracing::warn!(uid = self.uid, %error, "removing a region");
                }
            }
        }
        self.places.set(Vec::new());
        self.memory.clear();
        self.admission = None;
        self.admitted = None;
        match self.context.ledger.still_mapped(&self.uid) {
            0 => {
                tracing::info!(
                    pod = self.assignment.pod_name,
                    uid = self.uid,
                    "memory released"
                );
                Ok(())
            }
            left => Err(Failure::new(
                Reason::PreviousPoolNotReleased,
                format!("{left} extents of this pod are still in use by transfers"),
            )),
        }
    }
}

/// A listener must be what the pool says that it is.
fn checked(listener: &TcpListener, port: u16) -> Result<(), Failure> {
    let found = listener.local_addr().map(|address| address.port());
    match found {
        Ok(found) if found == port => Ok(()),
        found => {
            let message = format!("the pool handed over {found:?} as its listener of port {port}");
            Err(Failure::new(Reason::HandoverFailed, message))
        }
    }
}

fn address_of(master: &MasterInstance) -> Result<SocketAddr, Failure> {
    master.address.parse().map_err(|_| {
        let message = format!("{:?} is no IP address with a port", master.address);
        Failure::new(Reason::MasterUnreachable, message)
    })
}

/// Unmounts by the session; returns what may still be mounted.
async fn unmount_all(session: &Session, ids: &[Uuid], grace: Duration) -> Vec<Uuid> {
    let unmounts = ids.iter().map(|segment| session.unmount(*segment, grace));
    let failed = join_all(unmounts).await.into_iter().filter_map(Result::err);
    let named = failed.map(|error| {
        tracing::warn!(%error, "the session could not unmount");
        error.segment
    });
    named.collect()
}

/// Unmounts without a session: from the pod's network namespace, or from our own where the pod's
/// has no network any more.
async fn unmount_outside(
    master: &MasterInstance,
    network: Arc<Namespace>,
    client: Uuid,
    segments: &[Uuid],
) -> Result<(), Failure> {
    let address = address_of(master)?;
    let failed = |error: &dyn std::fmt::Display| {
        let message = format!("unmounting at the master {address}: {error}");
        Failure::new(Reason::MasterUnreachable, message)
    };
    let inside = tokio::time::timeout(CONNECT_DEADLINE, connect_inside(network, address)).await;
    let stream = match inside {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) | Err(_) => {
            let outside = tokio::time::timeout(CONNECT_DEADLINE, TcpStream::connect(address));
            let outside = outside.await.map_err(|elapsed| failed(&elapsed))?;
            outside.map_err(|error| failed(&error))?
        }
    };
    let master = store::Master::connect(stream, address.to_string());
    for segment in segments {
        let unmounted = master.unmount(client, *segment).await;
        unmounted.map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// A connection whose socket lives in the pod's network namespace. The caller bounds it.
async fn connect_inside(network: Arc<Namespace>, address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = move || {
        network.run(|| -> io::Result<OwnedFd> {
            Ok(rustix::net::socket_with(
                family,
                SocketType::STREAM,
                flags,
                None,
            )?)
        })
    };
    let socket = tokio::task::spawn_blocking(make)
        .await
        .map_err(io::Error::other)??;
    TcpSocket::from_std_stream(std::net::TcpStream::from(socket))
        .connect(address)
        .await
}

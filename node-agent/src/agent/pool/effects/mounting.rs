//! A pool in its master: sessions, data epochs, and the end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crds::node::MasterInstance;
use crds::reason::Reason;
use futures::future::join_all;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use store::{Origin, Session, Settings, Uuid, wire};
use sys::mem::Region;
use sys::net::Namespace;
use tokio::net::{TcpSocket, TcpStream};

use crate::agent::orphans;
use crate::agent::pool::driver::{HEARTBEAT, Pod};
use crate::agent::pool::epoch::{Epoch, Place};
use crate::agent::pool::failure::Failure;
use crate::agent::pool::mover::EngineMover;
use crate::agent::pool::record::Record;

/// How long a connection to the master may take where no session bounds it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

impl Pod {
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

    pub(super) async fn start_session(&mut self) -> Result<(), Failure> {
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

    pub(super) async fn renew_epoch(&mut self) -> Result<(), Failure> {
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

    pub(super) async fn change_master(&mut self) -> Result<(), Failure> {
        // Dropping it unmounts nothing; the next session unmounts what the next master may have.
        self.session = None;
        let change = |record: &mut Record| {
            record.mounted_in = None;
            record.renewed = false;
        };
        self.next_epoch(change).await.map(|_| ())
    }

    pub(super) async fn adopt_master(&mut self) -> Result<(), Failure> {
        let mut record = self.recorded()?;
        record.mounted_in.clone_from(&self.assignment.master);
        record.renewed = false;
        record.assignment = self.assignment.clone();
        self.write(record).await
    }

    /// Takes every segment out of the master. What fails is told in the log: the master gives the
    /// client up by itself when the pings have stopped for its client TTL.
    pub(super) async fn unmount(&mut self, graceful: bool) {
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
        if failed.is_empty() {
            self.context.orphans.forget(record.client).await;
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
    let unmounted = orphans::unmount(stream, &master.address, client, segments).await;
    unmounted.map_err(|error| failed(&error))
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

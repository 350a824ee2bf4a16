//! Mounts a pool in its master: sessions, data epochs, unmount.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crds::node::MasterInstance;
use crds::reason::Reason;
use futures::future::join_all;
use store::{Origin, Session, Settings, Uuid, wire};
use sys::mem::Region;
use tokio::net::TcpStream;

use crate::pod::epoch::{Epoch, WireExtent};
use crate::pod::failure::Failure;
use crate::pod::mover::EngineMover;
use crate::pod::record::Record;
use crate::pod::{HEARTBEAT, Pod, changed};
use crate::unmount;

impl Pod {
    fn segments(&self, record: &Record) -> Vec<wire::Segment> {
        let a = &self.assignment;
        let node = &self.context.node_name;
        let endpoint = self.server_name().unwrap_or_default();
        let places = record.epoch.wire_extents(self.memory.len());
        if let Some(ledger) = &self.ledger {
            ledger.bind(places.iter().map(|place| place.segment));
        }
        let numbered = self.memory.iter().zip(places).enumerate();
        let segment =
            |(index, (region, place)): (usize, (&Arc<Region>, WireExtent))| wire::Segment {
                id: place.segment,
                name: crds::names::segment(&a.cluster, &a.pool, node, index),
                base: place.base,
                size: region.length(),
                te_endpoint: endpoint.clone(),
                protocol: self.context.protocol.to_owned(),
                host_id: String::new(),
            };
        numbered.map(segment).collect()
    }

    fn ids(&self, epoch: &Epoch) -> Vec<Uuid> {
        let places = epoch.wire_extents(self.memory.len());
        places.iter().map(|place| place.segment).collect()
    }

    pub(super) async fn start_session(&mut self) -> Result<(), Failure> {
        let mut record = self.recorded()?;
        let mounted_in = record.mounted_in.clone();
        let Some(master) = mounted_in
            .clone()
            .or_else(|| self.assignment.master.clone())
        else {
            return Err(Failure::new(
                Reason::MasterNotReady,
                "the spec names no master",
            ));
        };
        let address = address_of(&master)?;
        let segments = self.segments(&record);
        let former = record.former.iter().flat_map(|epoch| self.ids(epoch));
        let former = former.collect();
        let origin = if mounted_in.is_some() {
            Origin::TakeOver { segments, former }
        } else {
            record.mounted_in = Some(master.clone());
            record.assignment = self.assignment.clone();
            self.write(record.clone()).await?;
            Origin::Fresh { segments, former }
        };
        let Some(endpoint) = self.endpoint() else {
            return Err(Failure::new(
                Reason::PoolPodNotReady,
                "peers are not served yet",
            ));
        };
        let mover = EngineMover {
            endpoint,
            extents: self.mounted.clone(),
        };
        // This process is in the pod's network namespace.
        let connect = move || TcpStream::connect(address);
        tracing::info!(
            master = master.address,
            master_pod = master.pod_uid, client = %record.client, epoch = record.epoch.number,
            taken_over = mounted_in.is_some(), "session started"
        );
        self.replaced_epoch = None;
        self.session = Some(Session::start(
            Settings::default(),
            record.client,
            origin,
            master.address,
            connect,
            Arc::new(mover),
            self.ledger.clone(),
        ));
        Ok(())
    }

    /// Records and applies new ids and wire bases. Old addresses are rejected when it returns.
    async fn next_epoch(&mut self, change: impl FnOnce(&mut Record)) -> Result<Record, Failure> {
        let mut record = self.recorded()?;
        let fresh = self.draw(record.epoch.number)?;
        change(&mut record);
        record.begin(fresh);
        record.assignment = self.assignment.clone();
        self.write(record.clone()).await?;
        let places = record.epoch.wire_extents(self.memory.len());
        if let Some(served) = &self.served {
            let endpoint = Arc::clone(&served.endpoint);
            let moves: Vec<_> = served.regions.iter().copied().zip(&places).collect();
            for (index, (region, place)) in moves.into_iter().enumerate() {
                // RDMA devices pin the pages again.
                let rebased = self.with_heartbeats(endpoint.rebase_region(region, place.base));
                rebased.await.map_err(|error| {
                    let (epoch, count) = (record.epoch.number, places.len());
                    let what = format!("serving extent {index} of {count} in data epoch {epoch}");
                    Failure::unfenced(&what, &error)
                })?;
            }
        }
        self.set_wire_extents(&places);
        tracing::info!(
            epoch = record.epoch.number,
            "new data epoch: old addresses are rejected"
        );
        Ok(record)
    }

    /// Waits for the end of a call. Meanwhile sends heartbeats to the pool process and applies changes of the admission.
    pub(super) async fn with_heartbeats<T>(&mut self, call: impl Future<Output = T>) -> T {
        let mut call = std::pin::pin!(call);
        loop {
            tokio::select! {
                biased;
                ended = &mut call => return ended,
                () = changed(&mut self.admission) => self.refresh_admission().await,
                () = tokio::time::sleep(HEARTBEAT) => self.heartbeat().await,
            }
        }
    }

    pub(super) async fn renew_epoch(&mut self) -> Result<(), Failure> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        let state = session.state().borrow().clone();
        let store::State::EpochLost { epoch, stale, .. } = state else {
            return Ok(());
        };
        let count = self.memory.len();
        let may_be_mounted = |epoch: &Epoch| {
            let mut places = epoch.wire_extents(count).into_iter();
            places.any(|place| stale.contains(&place.segment))
        };
        let change = |record: &mut Record| {
            record.renewed = true;
            record.former.retain(may_be_mounted);
        };
        let begun = self.next_epoch(change).await;
        if begun.as_ref().is_err_and(|failure| failure.ends_process) {
            self.leave_unmounted().await;
        }
        let segments = self.segments(&begun?);
        if let Some(session) = &self.session {
            session.begin_epoch(epoch, segments);
            self.replaced_epoch = Some(epoch);
        }
        Ok(())
    }

    /// Records that no master has the recorded epoch: a successor that took it over would have to begin a next one.
    async fn leave_unmounted(&mut self) {
        let Some(mut record) = self.record.clone() else {
            return;
        };
        record.mounted_in = None;
        if let Err(failure) = self.write(record).await {
            tracing::warn!("the epoch is recorded as mounted: {}", failure.message);
        }
    }

    pub(super) async fn change_master(&mut self) -> Result<(), Failure> {
        // The drop unmounts nothing; the next session unmounts what the next master may have.
        self.session = None;
        let change = |record: &mut Record| {
            record.mounted_in = None;
            record.renewed = false;
        };
        let begun = self.next_epoch(change).await;
        if self.mounted_in().is_none() {
            // Recorded, even if the engine failed: what is mounted next is to be unmounted again.
            self.unmounted = false;
        }
        begun.map(|_| ())
    }

    pub(super) async fn adopt_master(&mut self) -> Result<(), Failure> {
        let mut record = self.recorded()?;
        record.mounted_in.clone_from(&self.assignment.master);
        record.renewed = false;
        record.assignment = self.assignment.clone();
        self.write(record).await
    }

    /// Lets the master move the objects of this pod to others. The session goes on meanwhile.
    pub(super) fn evacuate(&mut self) -> Result<(), Failure> {
        let (Some(session), Some(served), Some(deadline)) =
            (&self.session, &self.served, self.evacuation.deadline())
        else {
            return Ok(());
        };
        let attempt = store::random_id();
        let attempt = attempt.map_err(|error| Failure::new(Reason::PoolPodNotReady, error))?;
        let mover = EngineMover {
            endpoint: Arc::clone(&served.endpoint),
            extents: self.mounted.clone(),
        };
        let evacuating = session.evacuate(Arc::new(mover), attempt, deadline.into());
        self.evacuation.run(evacuating);
        Ok(())
    }

    /// Unmounts all segments. Failures are logged: the master drops the segments when it has received no
    /// ping for its client TTL.
    pub(super) async fn unmount(&mut self, graceful: bool) {
        self.unmounted = true;
        self.evacuation.stop();
        let session = self.session.take();
        let Some(record) = self.record.clone() else {
            return;
        };
        // Counts extents, not mappings: this agent may not have mapped the pool.
        let ids = record.segments(self.extents.len());
        let mut failed = match &session {
            Some(session) if graceful => self.drain(session, &ids).await,
            Some(session) => unmount_by_session(session, &ids, Duration::ZERO).await,
            None => ids.clone(),
        };
        if let (Some(master), false) = (&record.mounted_in, failed.is_empty()) {
            match unmount_without_session(master, record.client, &failed).await {
                Ok(()) => failed.clear(),
                Err(failure) => tracing::warn!(
                    "segments stay until the master's client TTL ends: {}",
                    failure.message
                ),
            }
        }
        if failed.is_empty() {
            self.context.agent.remove_mount(record.client).await;
        }
        tracing::info!(
            segments = ids.len(),
            failed = failed.len(),
            graceful,
            "unmounted"
        );
    }

    /// Unmounts after the drain period, or when the pool process ends. Meanwhile sends heartbeats to the pool process and
    /// applies changes of the admission. Returns the segments that may still be mounted.
    async fn drain(&mut self, session: &Session, ids: &[Uuid]) -> Vec<Uuid> {
        let mut unmounting = std::pin::pin!(unmount_by_session(session, ids, self.drain_period()));
        loop {
            tokio::select! {
                failed = &mut unmounting => return failed,
                () = changed(&mut self.admission) => {
                    self.refresh_admission().await;
                    continue;
                }
                () = tokio::time::sleep(HEARTBEAT) => self.heartbeat().await,
            }
            if !self.context.pool.runs() {
                tracing::warn!("the pool process ended during its drain");
                return unmount_by_session(session, ids, Duration::ZERO).await;
            }
        }
    }
}

fn address_of(master: &MasterInstance) -> Result<SocketAddr, Failure> {
    master.address.parse().map_err(|_| {
        let message = format!("{:?} is not an IP address with a port", master.address);
        Failure::new(Reason::MasterUnreachable, message)
    })
}

/// Unmounts through the session. Returns the segments that may still be mounted.
async fn unmount_by_session(session: &Session, ids: &[Uuid], grace: Duration) -> Vec<Uuid> {
    let unmounts = ids.iter().map(|segment| session.unmount(*segment, grace));
    let failed = join_all(unmounts).await.into_iter().filter_map(Result::err);
    let named = failed.map(|error| {
        tracing::warn!(%error, "cannot unmount a segment through the session");
        error.segment
    });
    named.collect()
}

/// Unmounts without a session.
async fn unmount_without_session(
    master: &MasterInstance,
    client: Uuid,
    segments: &[Uuid],
) -> Result<(), Failure> {
    let address = address_of(master)?;
    let failed = |error: &dyn std::fmt::Display| {
        let message = format!("cannot unmount from the master {address}: {error}");
        Failure::new(Reason::MasterUnreachable, message)
    };
    let stream = tokio::time::timeout(unmount::CONNECT_DEADLINE, TcpStream::connect(address));
    let stream = stream.await.map_err(|elapsed| failed(&elapsed))?;
    let stream = stream.map_err(|error| failed(&error))?;
    let unmounted = unmount::segments(stream, &master.address, client, segments).await;
    unmounted.map_err(|error| failed(&error))
}

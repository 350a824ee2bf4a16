//! One served identity: its listeners, its regions, and transfers in its name.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use proto::frame::Op;
use proto::handshake::Notify;
use proto::scheduler::Request;
use sys::mem::Region;
use sys::net::Namespace;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::admission::{Admission, Gate};
use crate::batch::{Batch, Cell};
use crate::command::{Command, Submission};
use crate::control::Outbound;
use crate::control::accept::{self, Door};
use crate::control::handshake::{self, Desk};
use crate::control::identity::Identity;
use crate::engine::Shared;
use crate::error::{Error, TransferError};
use crate::peers::PeerFailures;
use crate::stats::{Counters, HostStats};
use crate::transport::{HostId, RegionId};

/// What a host is opened with.
#[derive(Debug)]
pub struct HostSpec {
    /// P2P server name, `ip:port` of the handshake listener; IPv6 in brackets.
    pub name: String,
    /// Port of the data listener as peers reach it.
    pub data_port: u16,
    /// Host of the data listener as peers reach it; IPv6 without brackets.
    pub data_host: String,
    /// Listening for handshakes.
    pub handshake: TcpListener,
    /// Listening for data connections.
    pub data: TcpListener,
    /// Network namespace in which outgoing sockets are made; our own if there is none.
    pub network: Option<Arc<Namespace>>,
    /// Who may connect to the two listeners.
    pub admission: Admission,
}

/// A transfer between a region of ours and a peer's memory.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// `Read` fetches from the peer into the region, `Write` sends the region's bytes to it.
    pub op: Op,
    /// Server name of the peer.
    pub peer: String,
    /// Wire address at the peer.
    pub remote: u64,
    /// Our region.
    pub local: RegionId,
    /// First byte in it.
    pub local_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A served identity. Dropping it closes its listeners and connections and lets go of its memory;
/// [`Host::close`] also waits for that.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    engine: Arc<Shared>,
    door: Arc<Door>,
    gate: Arc<Gate>,
    desk: Arc<Desk>,
    regions: Mutex<BTreeMap<RegionId, Arc<Region>>>,
    tasks: [JoinHandle<()>; 2],
}

impl Host {
    pub(crate) fn open(engine: Arc<Shared>, spec: HostSpec) -> Result<Self, Error> {
        let HostSpec {
            name,
            data_port,
            data_host,
            handshake,
            data,
            network,
            admission,
        } = spec;
        let id = engine.new_host();
        let counters = Arc::new(Counters::default());
        let identity = Arc::new(Identity::new(name, data_host, data_port));
        let outbound = Arc::new(Outbound {
            runtime: engine.runtime.clone(),
            network,
            identity: Arc::clone(&identity),
            connect_timeout: engine.settings.connect_timeout,
        });
        let _in_runtime = engine.runtime.enter();
        let [handshake, data] = [handshake, data].map(|listener| {
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)
        });
        let handshake = handshake.map_err(Error::io("taking over the handshake listener"))?;
        let data = data.map_err(Error::io("taking over the data listener"))?;
        for lane in &engine.lanes {
            lane.send(Command::Open {
                host: id,
                admission: admission.clone(),
                counters: Arc::clone(&counters),
                outbound: Arc::clone(&outbound),
            })?;
        }
        let settings = engine.settings;
        let gate = Gate::new(
            settings.max_connections_per_address,
            settings.max_connections,
            Arc::clone(&engine.connections),
        );
        let door = Arc::new(Door::new(admission, counters));
        let desk = Arc::new(Desk::new(identity));
        let tasks = [
            engine.runtime.spawn(accept::data(
                data,
                id,
                Arc::clone(&door),
                Arc::clone(&gate),
                engine.lanes.clone(),
                settings.user_timeout,
            )),
            engine.runtime.spawn(handshake::serve(
                handshake,
                Arc::clone(&desk),
                Arc::clone(&door),
                settings.header_deadline,
            )),
        ];
        Ok(Self {
            id,
            engine,
            door,
            gate,
            desk,
            regions: Mutex::default(),
            tasks,
        })
    }

    /// Serves a region at a wire base, and has it in the descriptor, from now on.
    ///
    /// # Errors
    /// [`Error::Unmappable`] if the base is zero, wraps, or another region is there.
    pub fn add_region(&self, region: Arc<Region>, wire_base: u64) -> Result<RegionId, Error> {
        let id = self.engine.new_region();
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        self.desk.identity.publish(id, wire_base, region.length())?;
        regions.insert(id, Arc::clone(&region));
        for lane in &self.engine.lanes {
            let memory = Arc::clone(&region);
            lane.send(Command::Export {
                host: self.id,
                region: id,
                memory,
                wire_base,
            })?;
        }
        Ok(id)
    }

    /// Serves a region no more: its addresses are refused, requests that are under way in it are
    /// cut, our own transfers with it fail. Resolves when nothing can touch its memory any more.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`], [`Error::Stopped`].
    pub async fn remove_region(&self, region: RegionId) -> Result<(), Error> {
        let found = self
            .regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&region);
        if found.is_none() {
            return Err(Error::UnknownRegion);
        }
        self.desk.identity.withdraw(region);
        self.ask_all(|done| Command::Remove {
            host: self.id,
            region,
            done,
        })
        .await
    }

    /// Serves the same memory at another wire base. Resolves when no byte under the old one can
    /// move any more; requests that are under way are cut.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`], [`Error::Unmappable`] (nothing has changed then).
    pub async fn rebase_region(&self, region: RegionId, wire_base: u64) -> Result<(), Error> {
        let memory = self
            .regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&region)
            .map(Arc::clone)
            .ok_or(Error::UnknownRegion)?;
        self.desk.identity.rebase(region, wire_base)?;
        self.ask_all(|done| {
            let memory = Arc::clone(&memory);
            Command::Rebase {
                host: self.id,
                region,
                memory,
                wire_base,
                done,
            }
        })
        .await
    }

    /// Who may connect, from now on; connections of others are closed at once.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn admit(&self, admission: Admission) -> Result<(), Error> {
        self.door.admit(admission.clone());
        for lane in &self.engine.lanes {
            lane.send(Command::Admit {
                host: self.id,
                admission: admission.clone(),
            })?;
        }
        Ok(())
    }

    /// Carries out one transfer; the result is there by the deadline.
    ///
    /// # Errors
    /// Peer, stage and cause; [`TransferError::Indeterminate`] for a write whose end is unknown.
    pub async fn transfer(
        &self,
        transfer: Transfer,
        deadline: Instant,
    ) -> Result<(), TransferError> {
        self.submit(std::slice::from_ref(&transfer), deadline)
            .outcome()
            .await
    }

    /// Starts transfers that end together. Their memory is in use until [`Batch::released`].
    pub fn submit(&self, transfers: &[Transfer], deadline: Instant) -> Batch {
        let cell = Cell::new(transfers.len());
        for transfer in transfers {
            if let Err(error) = self.submit_one(transfer, deadline, &cell) {
                cell.end(Err(error));
                cell.release();
            }
        }
        Batch::new(cell)
    }

    fn submit_one(
        &self,
        transfer: &Transfer,
        deadline: Instant,
        cell: &Arc<Cell>,
    ) -> Result<(), TransferError> {
        let Transfer {
            op,
            peer,
            remote,
            local,
            local_offset: offset,
            length,
        } = transfer;
        let known = self
            .regions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(local)
            .map_or(0, |region| region.length());
        if offset.checked_add(*length).is_none_or(|end| end > known) {
            return Err(TransferError::LocalRange {
                offset: *offset,
                length: *length,
            });
        }
        let request = Request {
            op: *op,
            remote: *remote,
            memory: *local,
            offset: *offset,
            length: *length,
            // Both are the data thread's to say.
            deadline: std::time::Duration::ZERO,
            token: 0,
        };
        let cell = Arc::clone(cell);
        let submission = Submission {
            peer: peer.as_str().into(),
            request,
            deadline,
            cell,
        };
        // One peer always meets the same data thread, which owns the links to it.
        let sum = peer.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        let lane = &self.engine.lanes[sum % self.engine.lanes.len()];
        lane.try_send(Command::Submit {
            host: self.id,
            submission,
        })
        .map_err(|_| TransferError::Busy { peer: peer.clone() })
    }

    /// Takes the messages that peers have left.
    #[must_use]
    pub fn notifies(&self) -> Vec<Notify> {
        self.desk
            .inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Counters since the host began.
    #[must_use]
    pub fn stats(&self) -> HostStats {
        self.door.counters.read(self.gate.count())
    }

    /// The peers whose connections end most, each cause by itself, the worst first.
    #[must_use]
    pub fn worst_peers(&self, most: usize) -> Vec<PeerFailures> {
        self.door.counters.peers.worst(most)
    }

    /// Closes listeners and connections; resolves when nothing can touch any region's memory.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the data threads had gone before.
    pub async fn close(mut self) -> Result<(), Error> {
        for task in &mut self.tasks {
            task.abort();
            // Ended by us or before: either way its listener is closed now.
            let _ended = task.await;
        }
        self.ask_all(|done| Command::Close {
            host: self.id,
            done,
        })
        .await
    }

    /// Sends a command to every data thread and waits for all of them.
    async fn ask_all(&self, command: impl Fn(oneshot::Sender<()>) -> Command) -> Result<(), Error> {
        let mut answers = Vec::new();
        for lane in &self.engine.lanes {
            let (done, answer) = oneshot::channel();
            lane.send(command(done))?;
            answers.push(answer);
        }
        for answer in answers {
            answer.await.map_err(|_| Error::Stopped)?;
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for lane in &self.engine.lanes {
            let (done, _nobody_waits) = oneshot::channel();
            // A thread that is gone holds nothing.
            let _gone = lane.send(Command::Close {
                host: self.id,
                done,
            });
        }
    }
}

//! The deeds: each carries out one action and leaves the pod's facts as they then are. Here is
//! what passes between agent and pool process; memory, peers and the master have files of their own.

mod memory;
mod mounting;
mod serving;

pub(super) use memory::to_touch;

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use crds::reason::Reason;

use super::driver::Pod;
use super::epoch::Epoch;
use super::failure::Failure;
use super::link;
use super::record::Record;
use super::step::{Action, Step};
use crate::agent::orphans::Note;
use crate::handover::message::{ExtentState, Request};
use crate::handover::{self, Client};

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
        self.count_untouched();
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
            self.context.orphans.hold(record.client);
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
        Some(std::net::SocketAddr::new(self.address?, port).to_string())
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
        let note = self.note(&record);
        self.record = Some(record);
        if let Some(note) = note {
            self.context.orphans.keep(note).await;
        }
        Ok(())
    }

    /// What the master of this record has, or may have, of the pool; nothing once it was left.
    fn note(&self, record: &Record) -> Option<Note> {
        if self.left {
            return None;
        }
        let epochs = [Some(&record.epoch), record.former.as_ref()];
        let places = epochs.into_iter().flatten();
        let places = places.flat_map(|epoch| epoch.places(self.extents.len()));
        Some(Note {
            pod_uid: self.uid.clone(),
            pod_name: self.assignment.pod_name.clone(),
            pid: self.process.pid,
            client: record.client,
            segments: places.map(|place| place.segment).collect(),
            master: record.mounted_in.clone()?,
        })
    }

    fn recorded(&self) -> Result<Record, Failure> {
        self.record
            .clone()
            .ok_or_else(|| Failure::new(Reason::PoolPodNotReady, "no record yet"))
    }
}

//! Carries out the actions of a step. This file has those between agent and pool process; `memory`,
//! `serving` (peers) and `mounting` (master) have the others.

mod memory;
mod mounting;
mod serving;

use std::net::{IpAddr, TcpListener};

use crds::reason::Reason;

use crate::control::message::Mount;
use crate::pod::epoch::Epoch;
use crate::pod::failure::Failure;
use crate::pod::record::{Record, RecordError};
use crate::pod::step::{Action, Step};
use crate::pod::{Pod, keep_memory};
use pool::handover::message::{ExtentState, Request};
use pool::handover::{self, Client, Connection, EXTENT_LIMIT};

impl Pod {
    /// Carries out one action.
    pub(super) async fn act(&mut self, action: Action, step: &Step) -> Result<(), Failure> {
        match action {
            Action::Attach => self.attach().await,
            Action::ReadRecord => self.read_record().await,
            Action::VerifyAddress => self.verify_address().await,
            Action::Grant => self.grant(step).await,
            Action::Map => self.map().await,
            Action::Touch(index) => {
                self.request(Request::Touch { index }).await?;
                self.touching = Some(index);
                Ok(())
            }
            Action::CreateRecord => self.create_record().await,
            Action::ServePeers => self.serve_peers().await,
            Action::StartSession => self.start_session().await,
            Action::RenewEpoch => self.renew_epoch().await,
            Action::ChangeMaster => self.change_master().await,
            Action::AdoptMaster => self.adopt_master().await,
            Action::ReportServing(serving) => {
                let reason = self.serving_reason();
                self.request(Request::SetServing { serving, reason })
                    .await?;
                self.reported_serving = Some(serving);
                Ok(())
            }
            Action::Evacuate => self.evacuate(),
            Action::Unmount { graceful } => {
                self.unmount(graceful).await;
                Ok(())
            }
            Action::Release => self.release().await,
            Action::ReportDrained => {
                self.request(Request::Drained).await?;
                self.drained_reported = true;
                Ok(())
            }
            Action::Finish => Ok(()),
        }
    }

    fn client(&mut self) -> Result<&mut Client, Failure> {
        self.client.as_mut().ok_or_else(|| {
            Failure::new(
                Reason::PoolPodNotReady,
                "there is no connection to the pool process",
            )
        })
    }

    /// Returns the answer, and closes the connection after any error but a rejection.
    fn checked_answer<T>(&mut self, answer: Result<T, handover::Error>) -> Result<T, Failure> {
        answer.map_err(|error| {
            if !matches!(error, handover::Error::Refused { .. }) {
                self.detach(&error);
            }
            Failure::from(error)
        })
    }

    async fn request(&mut self, request: Request) -> Result<(), Failure> {
        let answer = self.client()?.request(request).await;
        self.checked_answer(answer)
    }

    async fn attach(&mut self) -> Result<(), Failure> {
        let socket = self.context.agent.connect().await?;
        let mut client = Client::new(Connection::new(socket)?);
        let attached = client.attach().await?;
        if attached.pod_uid != self.context.uid {
            let message = format!(
                "the process of pod {} reports the UID of pod {:?}",
                self.context.uid, attached.pod_uid
            );
            return Err(Failure::new(Reason::ForeignProcess, message));
        }
        check_extents(&attached.extents, self.assignment.size.0)?;
        tracing::info!(
            address = attached.pod_ip,
            extents = attached.extents.len(),
            "attached to the pool process"
        );
        if attached.extents.is_empty() && self.memory.is_empty() {
            self.holds = false;
        }
        if self.memory.is_empty() {
            self.extents.clone_from(&attached.extents);
        } else {
            self.update_touched(&attached.extents);
        }
        if attached.ending {
            self.begin_drain();
        }
        self.attached = Some(attached);
        self.client = Some(client);
        Ok(())
    }

    /// Updates the touched bytes of mapped extents. Their lengths do not change.
    fn update_touched(&mut self, now: &[ExtentState]) {
        for (extent, now) in self.extents.iter_mut().zip(now) {
            extent.touched = now.touched.min(extent.length);
        }
    }

    async fn read_record(&mut self) -> Result<(), Failure> {
        let answer = self.client()?.record().await;
        if let Some(sealed) = self.checked_answer(answer)? {
            let text = self.context.agent.open(sealed).await?;
            let text = text.ok_or(RecordError::Forged)?;
            let record = Record::read(&self.context.uid, &text)?;
            keep_memory(&mut self.assignment, &record.assignment);
            if self.assignment.master.is_none() {
                self.assignment.master.clone_from(&record.mounted_in);
            }
            self.record = Some(record);
        }
        self.record_read = true;
        Ok(())
    }

    /// Binds to the address that the pod reports, to verify that it is in the pod's network namespace.
    async fn verify_address(&mut self) -> Result<(), Failure> {
        let claimed = self
            .attached
            .as_ref()
            .map(|attached| attached.pod_ip.clone());
        let claimed = claimed.unwrap_or_default();
        let refuse = |why: String| {
            let message = format!("the pod reports the address {claimed:?}: {why}");
            Failure::new(Reason::AddressNotOwn, message)
        };
        let address: IpAddr = claimed
            .parse()
            .map_err(|_| refuse("not an IP address".to_owned()))?;
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(refuse("other nodes cannot connect to it".to_owned()));
        }
        TcpListener::bind((address, 0)).map_err(|error| {
            refuse(format!("not in the network namespace of the pod ({error})"))
        })?;
        self.address = Some(address);
        Ok(())
    }

    /// Returns the P2P server name, once the address is verified.
    pub(super) fn server_name(&self) -> Option<String> {
        let port = self.attached.as_ref()?.handshake_port;
        Some(std::net::SocketAddr::new(self.address?, port).to_string())
    }

    fn draw(&self, last: u32) -> Result<Epoch, Failure> {
        Epoch::draw(last, &self.lengths())
            .map_err(|error| Failure::new(Reason::PoolPodNotReady, error))
    }

    async fn create_record(&mut self) -> Result<(), Failure> {
        let client =
            store::random_id().map_err(|error| Failure::new(Reason::PoolPodNotReady, error))?;
        let record = Record::new(self.assignment.clone(), client, self.draw(0)?);
        self.write(record).await
    }

    /// Writes the record of a change before the change takes effect.
    async fn write(&mut self, record: Record) -> Result<(), Failure> {
        let sealed = self.context.agent.seal(record.text()).await?;
        self.request(Request::PutRecord { record: sealed }).await?;
        let mount = self.mount(&record);
        self.record = Some(record);
        if let Some(mount) = mount {
            self.context.agent.save_mount(mount).await;
        }
        Ok(())
    }

    /// Returns the segments that the master of the record may have; none after an unmount.
    fn mount(&self, record: &Record) -> Option<Mount> {
        if self.unmounted {
            return None;
        }
        Some(Mount {
            client: record.client,
            segments: record.segments(self.extents.len()),
            master: record.mounted_in.clone()?,
        })
    }

    fn recorded(&self) -> Result<Record, Failure> {
        self.record
            .clone()
            .ok_or_else(|| Failure::new(Reason::PoolPodNotReady, "the pod has no record yet"))
    }
}

/// Checks that a pool process has no more memory than its assignment. The agent reserves what it has not touched.
fn check_extents(extents: &[ExtentState], assigned: u64) -> Result<(), Failure> {
    let lengths = extents.iter().map(|extent| extent.length);
    let sum = lengths.fold(0, u64::saturating_add);
    if sum <= assigned && extents.len() <= EXTENT_LIMIT {
        return Ok(());
    }
    let message = format!(
        "the pool process reports {} extents with {sum} bytes in total; the assignment of the pod has {assigned} bytes",
        extents.len()
    );
    Err(Failure::new(Reason::DescriptorWrongSize, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_beyond_the_assignment_are_rejected_without_overflow() {
        let check = |lengths: &[u64]| {
            let extent = |length: &u64| ExtentState {
                length: *length,
                touched: 0,
            };
            let extents: Vec<_> = lengths.iter().map(extent).collect();
            check_extents(&extents, 4096).map_err(|failure| failure.reason)
        };
        let rejected = Err(Reason::DescriptorWrongSize);
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[2048, 2048]), Ok(()));
        assert_eq!(check(&[2048, 2049]), rejected);
        assert_eq!(check(&[1 << 62]), rejected);
        assert_eq!(check(&[u64::MAX, 4097]), rejected);
        assert_eq!(check(&[0; EXTENT_LIMIT + 1]), rejected);
    }
}

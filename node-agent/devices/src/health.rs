//! Reports device health to the kubelet, which copies it to the status of the pods with the devices (KEP 4680).
//! A report contains all devices; it is sent at each change and repeated, since the kubelet drops it after 30 s.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::Reason;
use futures::stream::{self, Stream};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::claim_store::ClaimStore;
use super::message::{DeviceHealth, DeviceId, HealthReport, HealthStatus};
use super::{Inputs, Snapshots, UnhealthyDevices, rpc, slice};
use host::Facts;

/// Time between two equal reports.
const REPEAT: Duration = Duration::from_secs(10);

/// Validity of a report in seconds.
const VALIDITY: i64 = 30;

/// Time after the start within which the checks find unhealthy devices.
const FIRST_LOOK: Duration = Duration::from_secs(60);

/// Health of a device, with the cause as text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceState {
    status: HealthStatus,
    why: String,
}

/// Health of each published slot, and of prepared slots that are no longer published. `held` maps prepared
/// slots to RDMA devices; `looked` is true after [`FIRST_LOOK`].
fn device_states(
    facts: Option<&Facts>,
    slots_per_hca: u8,
    held: &BTreeMap<String, String>,
    unhealthy: &UnhealthyDevices,
    looked: bool,
) -> BTreeMap<String, DeviceState> {
    let published = facts.map(|facts| slice::slots(facts, slots_per_hca));
    let published = published.into_iter().flatten();
    let mut devices: BTreeMap<String, String> = published
        .map(|slot| (slot.name, slot.hca.name.clone()))
        .collect();
    devices.extend(held.clone());
    let of = |hca: &str| {
        let failed = |why: Reason| DeviceState {
            status: HealthStatus::Unhealthy,
            why: format!("{why}: {}", why.about()),
        };
        let unknown = |why: &str| DeviceState {
            status: HealthStatus::Unknown,
            why: why.to_owned(),
        };
        if let Some(why) = unhealthy.get(hca) {
            return failed(*why);
        }
        let Some(facts) = facts else {
            return unknown("the agent has not read the node's devices yet");
        };
        let mut there = facts.hcas.iter();
        if !there.any(|known| known.name == hca && known.device_file.is_some()) {
            return failed(Reason::DeviceMissing);
        }
        if !looked {
            return unknown("the agent has just started and probes the device");
        }
        DeviceState {
            status: HealthStatus::Healthy,
            why: String::new(),
        }
    };
    let devices = devices.into_iter();
    devices.map(|(name, hca)| (name, of(&hca))).collect()
}

/// The source of health reports.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) node: String,
    pub(super) slots_per_hca: u8,
    pub(super) snapshots: Snapshots,
    pub(super) unhealthy: watch::Receiver<UnhealthyDevices>,
    pub(super) store: Arc<ClaimStore>,
    /// End of [`FIRST_LOOK`].
    pub(super) looked: Instant,
    pub(super) repeat: Duration,
    pub(super) end: watch::Receiver<bool>,
}

impl Health {
    pub(super) fn new(inputs: &Inputs, store: Arc<ClaimStore>) -> Self {
        Self {
            node: inputs.settings.node_name.clone(),
            slots_per_hca: inputs.settings.slots_per_hca,
            snapshots: inputs.snapshots.clone(),
            unhealthy: inputs.unhealthy.clone(),
            store,
            looked: Instant::now() + FIRST_LOOK,
            repeat: REPEAT,
            end: inputs.stopped.clone(),
        }
    }

    /// Reports until the agent ends or the facts are no longer updated.
    pub(super) fn reports(
        &self,
    ) -> impl Stream<Item = Result<HealthReport, Status>> + Send + use<> {
        let first = (self.clone(), None);
        stream::unfold(first, |(mut health, last)| async move {
            let now = health.next(last.as_ref()).await?;
            let report = report(&health.node, &now, Timestamp::now());
            Some((Ok(report), (health, Some(now))))
        })
    }

    /// Waits for the next report; the first is immediate.
    async fn next(
        &mut self,
        last: Option<&BTreeMap<String, DeviceState>>,
    ) -> Option<BTreeMap<String, DeviceState>> {
        let due = Instant::now() + self.repeat;
        loop {
            let states = self.look().await;
            let now = Instant::now();
            if last != Some(&states) || now >= due {
                return Some(states);
            }
            let next = if now < self.looked {
                due.min(self.looked)
            } else {
                due
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                changed = self.snapshots.changed() => changed.ok()?,
                // Without further checks the last result stays valid.
                Ok(()) = self.unhealthy.changed() => {}
                () = rpc::ended(&mut self.end) => return None,
            }
        }
    }

    async fn look(&mut self) -> BTreeMap<String, DeviceState> {
        let snapshot = self.snapshots.borrow_and_update().clone();
        let unhealthy = self.unhealthy.borrow_and_update().clone();
        let store = Arc::clone(&self.store);
        // The store is locked while a checkpoint is written.
        let held = tokio::task::spawn_blocking(move || store.devices()).await;
        device_states(
            snapshot.as_ref().map(|snapshot| &snapshot.facts),
            self.slots_per_hca,
            &held.unwrap_or_default(),
            &unhealthy,
            Instant::now() >= self.looked,
        )
    }
}

fn report(node: &str, states: &BTreeMap<String, DeviceState>, at: Timestamp) -> HealthReport {
    let devices = states.iter().map(|(name, state)| DeviceHealth {
        device: Some(DeviceId {
            pool_name: node.to_owned(),
            device_name: name.clone(),
        }),
        health: state.status.into(),
        last_updated_time: at.as_second(),
        health_check_timeout_seconds: VALIDITY,
        message: state.why.clone(),
    });
    HealthReport {
        devices: devices.collect(),
    }
}

#[cfg(test)]
mod tests;

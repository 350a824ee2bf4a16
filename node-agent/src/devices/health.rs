//! What the kubelet is told of the devices' health, for the status of the pods that have them (KEP 4680): of
//! all of them at once, when it changes and again and again, since it is believed for half a minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::Reason;
use futures::stream::{self, Stream};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::holdings::Holdings;
use super::message::{DeviceHealth, DeviceId, HealthReport, HealthStatus};
use super::{offer, rpc};
use crate::agent::hardware::Known;
use crate::checks::sickness::Sick;
use crate::host::Facts;

/// Between two reports that say the same.
const AGAIN: Duration = Duration::from_secs(10);

/// How long a report is believed, in seconds.
const BELIEVED: i64 = 30;

/// How long an agent that has just started may take to find what is sick.
const FIRST_LOOK: Duration = Duration::from_secs(60);

/// How a device is, and why in words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    status: HealthStatus,
    why: String,
}

/// What is said of each device that is offered, and of those that are held though they are offered no
/// longer. `held` has the RDMA device of each; `looked` is whether there was time to find what is sick.
fn told(
    facts: Option<&Facts>,
    slots_per_hca: u8,
    held: &BTreeMap<String, String>,
    sick: &Sick,
    looked: bool,
) -> BTreeMap<String, Told> {
    let offered = facts.map(|facts| offer::slots(facts, slots_per_hca));
    let offered = offered.into_iter().flatten();
    let mut devices: BTreeMap<String, String> = offered
        .map(|slot| (slot.name, slot.hca.name.clone()))
        .collect();
    devices.extend(held.clone());
    let of = |hca: &str| {
        let unhealthy = |why: Reason| Told {
            status: HealthStatus::Unhealthy,
            why: format!("{why}: {}", why.about()),
        };
        let unknown = |why: &str| Told {
            status: HealthStatus::Unknown,
            why: why.to_owned(),
        };
        if let Some(why) = sick.get(hca) {
            return unhealthy(*why);
        }
        let Some(facts) = facts else {
            return unknown("the agent has not looked at the node yet");
        };
        let mut there = facts.hcas.iter();
        if !there.any(|known| known.name == hca && known.device_file.is_some()) {
            return unhealthy(Reason::DeviceMissing);
        }
        if !looked {
            return unknown("the agent has just started, and tries the device");
        }
        Told {
            status: HealthStatus::Healthy,
            why: String::new(),
        }
    };
    let devices = devices.into_iter();
    devices.map(|(name, hca)| (name, of(&hca))).collect()
}

/// What health is made of.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) node: String,
    pub(super) slots_per_hca: u8,
    pub(super) known: Known,
    pub(super) sick: watch::Receiver<Sick>,
    pub(super) holdings: Arc<Holdings>,
    /// When there was time to find what is sick.
    pub(super) looked: Instant,
    pub(super) again: Duration,
    pub(super) end: watch::Receiver<bool>,
}

impl Health {
    /// Of a driver that starts now.
    pub(super) fn new(
        settings: &super::Settings,
        known: Known,
        sick: watch::Receiver<Sick>,
        holdings: Arc<Holdings>,
        end: watch::Receiver<bool>,
    ) -> Self {
        Self {
            node: settings.node_name.clone(),
            slots_per_hca: settings.slots_per_hca,
            known,
            sick,
            holdings,
            looked: Instant::now() + FIRST_LOOK,
            again: AGAIN,
            end,
        }
    }

    /// Reports until the end, or until nobody looks at the node any more.
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

    /// What is to be said next: at once where nothing was said yet.
    async fn next(
        &mut self,
        last: Option<&BTreeMap<String, Told>>,
    ) -> Option<BTreeMap<String, Told>> {
        let due = Instant::now() + self.again;
        loop {
            let told = self.look().await;
            let now = Instant::now();
            if last != Some(&told) || now >= due {
                return Some(told);
            }
            let next = if now < self.looked {
                due.min(self.looked)
            } else {
                due
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                changed = self.known.changed() => changed.ok()?,
                // Where nobody judges any more, what was judged last stands.
                Ok(()) = self.sick.changed() => {}
                () = rpc::told(&mut self.end) => return None,
            }
        }
    }

    async fn look(&mut self) -> BTreeMap<String, Told> {
        let facts = self.known.borrow_and_update().clone();
        let sick = self.sick.borrow_and_update().clone();
        let holdings = Arc::clone(&self.holdings);
        // Whoever writes down what is held has it to himself for as long as the disk takes.
        let held = tokio::task::spawn_blocking(move || holdings.devices()).await;
        told(
            facts.as_deref(),
            self.slots_per_hca,
            &held.unwrap_or_default(),
            &sick,
            Instant::now() >= self.looked,
        )
    }
}

fn report(node: &str, told: &BTreeMap<String, Told>, at: Timestamp) -> HealthReport {
    let devices = told.iter().map(|(name, told)| DeviceHealth {
        device: Some(DeviceId {
            pool_name: node.to_owned(),
            device_name: name.clone(),
        }),
        health: told.status.into(),
        last_updated_time: at.as_second(),
        health_check_timeout_seconds: BELIEVED,
        message: told.why.clone(),
    });
    HealthReport {
        devices: devices.collect(),
    }
}

#[cfg(test)]
mod tests;

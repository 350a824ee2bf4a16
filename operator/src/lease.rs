//! Leader election by a Lease, with fencing: a leader that could not renew stops writing before
//! another can take over. It uses only its own clock, never the times in the Lease.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::metrics::Metrics;

mod election;

pub use election::{Election, Record, Step};

/// A follower takes a Lease that it has seen unchanged for this long.
pub const DURATION: Duration = Duration::from_secs(15);
/// Period of renewals and reads of the Lease.
const PERIOD: Duration = Duration::from_secs(3);
/// Deadline of one request for the Lease.
const CALL_LIMIT: Duration = Duration::from_secs(3);

/// Deadline of one write to the API server. A write that starts at the last permitted moment ends before another replica
/// may write.
pub const WRITE_LIMIT: Duration = Duration::from_secs(5);
const _: () =
    assert!(election::MAY_START_WRITES.as_secs() + WRITE_LIMIT.as_secs() <= DURATION.as_secs());

/// This replica does not lead, or does not know whether it still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica holds no Lease that is certain to last until the write ends")]
pub struct Deposed;

/// Permission to write, with a time limit.
#[derive(Clone, Debug)]
pub struct Fence {
    until: watch::Receiver<Option<Instant>>,
}

impl Fence {
    /// Checks whether a write may start now.
    pub fn permit(&self) -> Result<(), Deposed> {
        match *self.until.borrow() {
            Some(until) if Instant::now() < until => Ok(()),
            _ => Err(Deposed),
        }
    }

    /// Resolves when writes may start.
    pub async fn raised(&mut self) {
        loop {
            if self.permit().is_ok() {
                return;
            }
            if self.until.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Resolves when no more writes may start.
    pub async fn lowered(&mut self) {
        loop {
            let Some(until) = *self.until.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {
                    if *self.until.borrow() == Some(until) {
                        return;
                    }
                }
                changed = self.until.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// A fence that permits writes for `span`. For tools and tests without a second replica.
    pub fn alone(span: Duration) -> Self {
        let (_, until) = watch::channel(Some(Instant::now() + span));
        Self { until }
    }
}

/// The Lease and the holder's identity.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    pub identity: String,
}

/// The task that keeps the Lease.
pub struct Keeper {
    api: Api<Lease>,
    settings: Settings,
    election: Election,
    until: watch::Sender<Option<Instant>>,
    metrics: Metrics,
    /// When the loop last completed a round, for the liveness probe.
    turned: watch::Sender<Instant>,
}

impl Keeper {
    pub fn new(client: Client, settings: Settings, metrics: Metrics) -> (Self, Fence) {
        let (sender, until) = watch::channel(None);
        let (turned, _) = watch::channel(Instant::now());
        let keeper = Self {
            api: Api::namespaced(client, &settings.namespace),
            election: Election::new(settings.identity.clone()),
            settings,
            until: sender,
            metrics,
            turned,
        };
        (keeper, Fence { until })
    }

    /// When the loop last completed a round.
    pub fn turned(&self) -> watch::Receiver<Instant> {
        self.turned.subscribe()
    }

    /// Acquires and renews the Lease until `stop`, then releases it, so that another replica need not wait. The caller
    /// stops writing first.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
            self.turn().await;
        }
        self.resign().await;
    }

    async fn turn(&mut self) {
        let led = self.election.leads_until().is_some();
        if let Err(error) = self.attempt().await {
            tracing::warn!(lease = %self.settings.name, %error, "lease not renewed");
        }
        let until = self
            .election
            .leads_until()
            .filter(|until| Instant::now() < *until);
        if led != until.is_some() {
            tracing::info!(lease = %self.settings.name, leads = until.is_some(), "leadership changed");
        }
        self.metrics.set_leader(until.is_some());
        self.until.send_replace(until);
        self.turned.send_replace(Instant::now());
    }

    async fn attempt(&mut self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let found = timed(self.api.get_opt(&self.settings.name)).await?;
        let record = found.as_ref().map(record_of);
        let started = Instant::now();
        match self.election.look(record.as_ref(), started) {
            Step::Wait => Ok(()),
            Step::Write { transitions } => {
                let lease = self.lease(found, transitions, &self.settings.identity);
                let written = timed(self.write(lease)).await?;
                self.election.wrote(&record_of(&written), started);
                Ok(())
            }
        }
    }

    /// Create and replace fail if another replica wrote in between.
    async fn write(&self, lease: Lease) -> kube::Result<Lease> {
        let parameters = PostParams::default();
        if lease.metadata.resource_version.is_some() {
            self.api
                .replace(&self.settings.name, &parameters, &lease)
                .await
        } else {
            self.api.create(&parameters, &lease).await
        }
    }

    fn lease(&self, found: Option<Lease>, transitions: i32, holder: &str) -> Lease {
        let now = Timestamp::now();
        let mut lease = found.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.settings.name.clone()),
                namespace: Some(self.settings.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let before = lease.spec.take().unwrap_or_default();
        let kept = before.holder_identity.as_deref() == Some(holder);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            lease_transitions: Some(transitions),
            acquire_time: before
                .acquire_time
                .filter(|_| kept)
                .or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        });
        lease
    }

    async fn resign(mut self) {
        self.until.send_replace(None);
        if self.election.leads_until().is_none() {
            return;
        }
        let outcome = async {
            let found = timed(self.api.get_opt(&self.settings.name)).await?;
            let Some(found) =
                found.filter(|lease| record_of(lease).holder == self.settings.identity)
            else {
                return Ok(());
            };
            let transitions = record_of(&found).transitions;
            let lease = self.lease(Some(found), transitions, "");
            timed(self.write(lease)).await.map(|_| ())
        };
        let outcome: Result<(), Box<dyn std::error::Error + Send + Sync>> = outcome.await;
        self.election.resigned();
        match outcome {
            Ok(()) => tracing::info!(lease = %self.settings.name, "lease given up"),
            Err(error) => {
                tracing::warn!(lease = %self.settings.name, %error, "lease left to run out");
            }
        }
    }
}

async fn timed<T>(
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(format!(
            "no answer from the API server in {} s",
            CALL_LIMIT.as_secs()
        )
        .into()),
    }
}

fn record_of(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    Record {
        holder: spec
            .and_then(|spec| spec.holder_identity.clone())
            .unwrap_or_default(),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or(0),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

//! MooncakeCluster: observe, validate, desired, apply, status. The middle is pure.
//!
//! Nothing of a cluster needs the operator in order to go: owner references remove its objects, and
//! its pool pods drain by themselves. So there is no finalizer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::{MooncakeCluster, MooncakeClusterStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::apply::{Error as WriteError, Writer};
use crate::cache::{Caches, ClusterName};
use crate::domain::view;
use crate::event::Events;
use crate::metrics::Metrics;

pub mod admin;
pub mod apply;
pub mod desired;
pub mod eviction;
pub mod fit;
pub mod injected;
pub mod instance;
pub mod mirror;
pub mod mnnvl;
pub mod observe;
pub mod preflight;
pub mod rollout;
pub mod status;
pub mod usage;
pub mod validate;
pub mod verdict;

use observe::Observed;
use validate::{Settings, Valid};
use verdict::{Service, Verdict};

/// How often a cluster at rest is looked at: use moves without any event.
const LOOK: Duration = Duration::from_secs(60);

/// What every reconcile of a cluster uses.
pub struct Context {
    pub client: Client,
    pub caches: Caches,
    pub writer: Arc<Writer>,
    pub events: Events,
    pub metrics: Metrics,
    pub settings: Settings,
    pub usage: usage::Meter,
}

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MooncakeCluster {0} has no namespace: it did not come from an API server")]
    NoNamespace(String),
    #[error("MooncakeCluster {cluster}: {source}")]
    Apply { cluster: String, source: WriteError },
}

/// Brings one cluster closer to its spec.
pub async fn reconcile(
    object: Arc<DeserializeGuard<MooncakeCluster>>,
    context: Arc<Context>,
) -> Result<Action, Error> {
    let cluster = match &object.0 {
        Ok(cluster) => cluster,
        Err(invalid) => {
            context.metrics.count_undecodable("MooncakeCluster");
            let namespace = object.namespace().unwrap_or_default();
            tracing::warn!(%namespace, name = %object.name_any(), error = %invalid.error,
                "MooncakeCluster not understood; it waits for a change");
            return Ok(Action::await_change());
        }
    };
    let name = ClusterName {
        namespace: cluster
            .namespace()
            .ok_or_else(|| Error::NoNamespace(cluster.name_any()))?,
        name: cluster.name_any(),
    };
    let mut session = Session {
        context: &context,
        cluster,
        old: cluster.status.clone().unwrap_or_default(),
        lags: context.writer.status_lags(cluster),
        name,
    };
    session.reconcile().await.map_err(|source| Error::Apply {
        cluster: format!("{}/{}", session.name.namespace, session.name.name),
        source,
    })
}

struct Session<'a> {
    context: &'a Context,
    cluster: &'a MooncakeCluster,
    old: MooncakeClusterStatus,
    /// `old` is not what was written last.
    lags: bool,
    name: ClusterName,
}

impl Session<'_> {
    async fn reconcile(&mut self) -> Result<Action, WriteError> {
        if self.cluster.meta().deletion_timestamp.is_some() {
            let message = "the cluster is being deleted; pool pods drain first";
            self.give_up(Reason::Deleting, message, false).await?;
            return Ok(Action::await_change());
        }
        let observed = observe::observe(&self.context.caches, &self.name);
        let valid = match validate::validate(self.cluster) {
            Ok(valid) => valid,
            Err(error) => {
                self.give_up(error.reason(), &error.to_string(), true)
                    .await?;
                return Ok(Action::await_change());
            }
        };
        match self.carry_out(&valid, &observed).await {
            Ok(action) => Ok(action),
            Err(WriteError::NamespaceTerminating { .. }) => {
                let message = "the namespace is being deleted; pool pods drain first";
                self.give_up(Reason::Deleting, message, false).await?;
                Ok(Action::await_change())
            }
            Err(error) => {
                // A deposed replica says nothing more.
                if !matches!(error, WriteError::Deposed { .. }) {
                    let reason = if error.is_permanent() {
                        Reason::InvalidSpec
                    } else {
                        Reason::ApiFailed
                    };
                    self.give_up(reason, &error.to_string(), error.is_permanent())
                        .await?;
                }
                Err(error)
            }
        }
    }

    async fn carry_out(
        &mut self,
        valid: &Valid,
        observed: &Observed,
    ) -> Result<Action, WriteError> {
        let context = self.context;
        let peers = observed.foreign_peers(&valid.namespace, &valid.name);
        let desired = desired::desired(valid, &context.settings, &peers);
        if self.old.observed_generation != Some(valid.generation) {
            self.begin(valid).await?;
        }
        let applied = apply::apply(
            &context.client,
            &context.writer,
            &valid.namespace,
            desired,
            &observed.existing,
        )
        .await?;
        let pools: Vec<Option<DaemonSet>> = applied
            .pools
            .into_iter()
            .map(|pool| pool.object.filter(|_| !pool.changed))
            .collect();

        let master = observed.ready_master();
        let master_uid = master.and_then(|pod| pod.uid());
        let verdicts: Vec<Verdict> = observed
            .pool_pods
            .iter()
            .map(|pod| {
                let node = observe::node_of(pod).unwrap_or_default();
                verdict::judge(pod, observed.reports.get(&node), master_uid.as_deref())
            })
            .collect();
        let step = self.roll(valid, observed, &pools, &verdicts).await?;
        let mnnvl = mnnvl::look(context, self.cluster, &self.old).await?;
        let used = context.usage.read(&valid.uid, master).await;
        let told = eviction::explain(
            &observed.evictions,
            &observed.pool_pods,
            &verdicts,
            Instant::now(),
        );
        let facts = status::Facts {
            cluster: valid,
            observed,
            pools: &pools,
            verdicts: &told,
            rollout: &step,
            used,
            mnnvl: mnnvl.as_ref(),
        };
        self.write(status::compute(&facts, &self.old, Timestamp::now()))
            .await?;
        mirror::tell(
            &context.client,
            &context.writer,
            &context.events,
            valid,
            observed,
        )
        .await;
        let serves = |verdict: &Verdict| matches!(verdict.service, Service::Serving { .. });
        let asked_in_vain = used.is_none() && verdicts.iter().any(serves);
        // By the clock alone: nothing moves when a daemon's time is up, or when what was just made is
        // gone again.
        let waits = mnnvl.as_ref().is_some_and(|outlook| {
            let reason = outlook.finding.reason;
            matches!(
                reason,
                Reason::DomainNotReady | Reason::Progressing | Reason::ApiFailed
            )
        });
        let looks = [
            Some(LOOK),
            asked_in_vain.then_some(usage::UNKNOWN_PERIOD),
            waits.then_some(view::LOOK_AGAIN),
        ];
        Ok(Action::requeue(
            looks.into_iter().flatten().min().unwrap_or(LOOK),
        ))
    }

    /// `Ready` goes before the work on a new generation begins, so that nobody takes the old verdict
    /// for the new spec's.
    async fn begin(&mut self, valid: &Valid) -> Result<(), WriteError> {
        let message = format!("generation {} is being carried out", valid.generation);
        self.write(status::failed(
            &self.old,
            valid.generation,
            Reason::Progressing,
            &message,
            false,
            Timestamp::now(),
        ))
        .await
    }

    async fn roll(
        &self,
        valid: &Valid,
        observed: &Observed,
        pools: &[Option<DaemonSet>],
        verdicts: &[Verdict],
    ) -> Result<rollout::Step, WriteError> {
        let pods: Vec<rollout::Pod> = observed
            .pool_pods
            .iter()
            .zip(verdicts)
            .map(|(pod, verdict)| candidate(valid, pod, verdict))
            .collect();
        let step = rollout::next(&pods, missing(pools));
        if let rollout::Step::Replace { pod, .. } = &step
            && let Some(victim) = observed
                .pool_pods
                .iter()
                .find(|found| found.uid().as_deref() == Some(&pod.uid))
        {
            let api = Api::<Pod>::namespaced(self.context.client.clone(), &valid.namespace);
            tracing::info!(namespace = %valid.namespace, cluster = %valid.name, pod = %pod.name,
                node = %pod.node, "pool pod is outdated, replacing it");
            self.context.writer.delete(&api, victim.as_ref()).await?;
        }
        Ok(step)
    }

    async fn give_up(
        &mut self,
        reason: Reason,
        message: &str,
        stalled: bool,
    ) -> Result<(), WriteError> {
        let generation = self.cluster.meta().generation.unwrap_or_default();
        self.write(status::failed(
            &self.old,
            generation,
            reason,
            message,
            stalled,
            Timestamp::now(),
        ))
        .await
    }

    /// Writes the status if it is news, and one Event for each transition in it.
    async fn write(&mut self, new: MooncakeClusterStatus) -> Result<(), WriteError> {
        if self.lags || new == self.old {
            return Ok(());
        }
        let ClusterName { namespace, name } = &self.name;
        let api = Api::<MooncakeCluster>::namespaced(self.context.client.clone(), namespace);
        let body = json!({
            "apiVersion": MooncakeCluster::api_version(&()),
            "kind": MooncakeCluster::kind(&()),
            "metadata": { "name": name, "uid": self.cluster.uid() },
            "status": new,
        });
        self.context.writer.apply_status(&api, name, &body).await?;
        self.context
            .events
            .transitions(
                &self.context.writer,
                self.cluster.object_ref(&()),
                &self.old.conditions,
                &new.conditions,
            )
            .await;
        self.old = new;
        Ok(())
    }
}

fn candidate(valid: &Valid, pod: &Pod, verdict: &Verdict) -> rollout::Pod {
    let label = pod.labels().get(crds::names::LABEL_POOL);
    let pool = valid.pools.iter().find(|pool| label == Some(&pool.name));
    let wish = pod.annotations().get(desired::pool::ANNOTATION_WISH);
    rollout::Pod {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        node: verdict.node.clone(),
        // A pod of a removed pool goes with its DaemonSet.
        outdated: pool.is_some_and(|pool| wish != Some(&desired::pool::wish(pool))),
        leaving: pod.meta().deletion_timestamp.is_some(),
        serving: match verdict.service {
            Service::Serving { .. } => Some(true),
            Service::Not { .. } => Some(false),
            Service::Unknown { .. } => None,
        },
    }
}

/// Pods that DaemonSets want but have not made; `None` where one has not looked at its spec yet.
fn missing(pools: &[Option<DaemonSet>]) -> Option<usize> {
    let mut missing = 0;
    for pool in pools {
        let scheduled = status::scheduled(pool.as_ref()?)?;
        missing += scheduled.desired.saturating_sub(scheduled.current);
    }
    Some(missing)
}

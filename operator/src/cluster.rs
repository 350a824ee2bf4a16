//! MooncakeCluster: observe, validate, desired, apply, status. The middle is pure.
//!
//! There is no finalizer: owner references delete the objects of a cluster, and its pool pods drain by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::update::PoolPlace;
use crds::{MooncakeCluster, MooncakeClusterStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};

use crate::apply::{Error as WriteError, Writer};
use crate::cache::{Caches, ClusterName};
use crate::controller::Failure;
use crate::cordon_state::is_cordoned;
use crate::event::Events;
use crate::metrics::Metrics;
use crate::pod::master_instance;
use crate::untyped;

pub mod admin;
pub mod apply;
pub mod container_compatibility;
pub mod cordoned;
pub mod desired;
pub mod drained;
pub mod eviction;
pub mod guards;
pub mod injection;
pub mod instance;
pub mod mnnvl;
pub mod observe;
pub mod pod_condition;
pub mod pod_conditions;
pub mod pool_pod;
pub mod preflight;
pub mod refused;
pub mod rollout;
pub mod status;
pub mod transport;
pub mod undecodable;
pub mod usage;
pub mod validate;

use apply::AppliedPool;
use cordoned::{Decision, Stored};
use desired::pool::excluded;
use observe::Observed;
use pool_pod::{PoolPodStatus, PoolService};
use refused::Refused;
use validate::{Settings, Valid};

/// When to reconcile again if the cache did not show the last status yet.
const CACHE_LAG: Duration = Duration::from_secs(1);

/// Shared by all reconciles of clusters.
pub struct Context {
    pub client: Client,
    pub caches: Caches,
    pub writer: Arc<Writer>,
    pub events: Events,
    pub metrics: Metrics,
    pub settings: Settings,
    pub usage: Arc<usage::Meter>,
    /// Latest decisions on cordoned nodes.
    pub drains: cordoned::Recent,
}

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("MooncakeCluster {0} has no namespace: it did not come from an API server")]
    NoNamespace(String),
    #[error("MooncakeCluster {cluster}: {source}")]
    Apply { cluster: String, source: WriteError },
}

impl Failure for Error {
    fn is_permanent(&self) -> bool {
        match self {
            Self::NoNamespace(_) => true,
            Self::Apply { source, .. } => source.is_permanent(),
        }
    }
}

/// Reconciles one cluster.
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
                "cannot decode MooncakeCluster; waiting for a change");
            return undecodable::report(&object, &context)
                .await
                .map(|()| Action::await_change())
                .map_err(|source| Error::Apply {
                    cluster: format!("{namespace}/{}", object.name_any()),
                    source,
                });
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
    let outcome = session.reconcile().await;
    match outcome {
        // Nothing was written, and the watch triggers nothing when it shows that status.
        Ok(_) if session.lags => Ok(Action::requeue(CACHE_LAG)),
        Ok(action) => Ok(action),
        Err(source) => Err(Error::Apply {
            cluster: format!("{}/{}", session.name.namespace, session.name.name),
            source,
        }),
    }
}

/// What a rollout is decided from.
struct Rollout<'a> {
    pools: &'a [AppliedPool],
    pod_statuses: &'a [PoolPodStatus],
    /// Nodes that are drained because they are cordoned.
    excluded: &'a BTreeSet<String>,
}

struct Session<'a> {
    context: &'a Context,
    cluster: &'a MooncakeCluster,
    old: MooncakeClusterStatus,
    /// `old` is older than the last write.
    lags: bool,
    name: ClusterName,
}

impl Session<'_> {
    async fn reconcile(&mut self) -> Result<Action, WriteError> {
        if self.cluster.meta().deletion_timestamp.is_some() {
            let message = "the cluster is being deleted; its pool pods end first";
            self.give_up(Reason::Deleting, message, false).await?;
            return Ok(Action::await_change());
        }
        let uid = self.cluster.uid();
        let observed = observe::observe(&self.context.caches, &self.name, uid.as_deref());
        let valid = match validate::validate(self.cluster) {
            Ok(valid) => valid,
            Err(error) => {
                self.give_up(error.reason(), &error.to_string(), true)
                    .await?;
                return Ok(Action::await_change());
            }
        };
        match self.carry_out(&valid, &observed).await {
            Ok((action, None)) => Ok(action),
            // The status has it.
            Ok((_, Some(refused))) => Err(refused),
            Err(WriteError::NamespaceTerminating { .. }) => {
                let message = "the namespace is being deleted; the pool pods end first";
                self.give_up(Reason::Deleting, message, false).await?;
                Ok(Action::await_change())
            }
            Err(error) => {
                // A deposed replica writes nothing.
                if !matches!(error, WriteError::Deposed { .. }) {
                    self.give_up(error.reason(), &error.to_string(), error.is_permanent())
                        .await?;
                }
                Err(error)
            }
        }
    }

    /// Returns also the first write that was refused: what does not depend on it is carried out.
    async fn carry_out(
        &mut self,
        valid: &Valid,
        observed: &Observed,
    ) -> Result<(Action, Option<WriteError>), WriteError> {
        let context = self.context;
        let mut refused = Refused::default();
        let writer = context.writer.pausing(valid.paused);
        let begins = self.old.observed_generation != Some(valid.generation);
        if begins && !writer.is_paused() {
            self.begin(valid).await?;
        }
        let now = now();
        let peers = observed.foreign_peers(&valid.namespace, &valid.name);
        let master = observed.serving_master(&valid.name);
        let master_uid = master_instance(self.cluster, master);
        let pod_statuses = pod_statuses(observed, master_uid.as_deref(), now);
        let (paused, settling) = (writer.is_paused(), context.settings.rdma_settling);
        let transport = transport::Facts::of(
            valid,
            observed,
            &pod_statuses,
            &self.old,
            paused,
            settling,
            now,
        );
        let claims = transport::has_claims(transport.decide(), transport.before);
        let cordons = self.cordons(valid, observed, &pod_statuses);
        let excluded = &cordons.excluded;
        let desired = desired::desired(valid, &context.settings, &peers, claims, excluded);
        let pools = apply::apply(
            &context.client,
            &writer,
            &self.name,
            desired,
            &observed.existing,
            &mut refused,
        )
        .await?;
        // A cordon changes no spec: the cluster is as Ready as before.
        let same_pods = valid.drains_cordoned() && !begins;
        let counted: Vec<Option<DaemonSet>> =
            pools.iter().map(|pool| pool.counted(same_pods)).collect();

        let (unguarded, guards_open) = self.guard(&writer, valid, observed, &cordons).await?;
        let rollout = Rollout {
            pools: &pools,
            pod_statuses: &pod_statuses,
            excluded,
        };
        let rollout = self
            .roll(&writer, valid, observed, rollout, &mut refused)
            .await?;
        let mnnvl = mnnvl::reconcile(context, &writer, self.cluster, &self.old).await?;
        let (used, drains) = context.usage.last(&valid.uid, master);
        let explained = eviction::explain(
            &observed.evictions,
            &observed.pool_pods,
            &pod_statuses,
            Instant::now(),
        );
        let finding = refused.finding();
        let facts = status::Facts {
            cluster: valid,
            observed,
            pools: &counted,
            pod_statuses: &explained,
            transport: &transport,
            rollout: &rollout,
            withheld: writer.is_paused().then(|| writer.withheld()),
            used,
            drains,
            cordons: &cordons,
            unguarded: unguarded.as_ref(),
            refused: finding.as_ref(),
            mnnvl: mnnvl.as_ref(),
        };
        self.write(status::compute(&facts, &self.old, now)).await?;
        let all_written = pod_conditions::write(
            &context.client,
            &context.writer,
            &context.events,
            valid,
            observed,
        )
        .await;
        let open = guards_open || !all_written;
        let next = status::next_reconcile(&facts, &self.old.conditions, open);
        let action = next.map_or_else(Action::await_change, Action::requeue);
        Ok((action, refused.into_first()))
    }

    /// Decides what happens to cordoned nodes.
    fn cordons(
        &self,
        valid: &Valid,
        observed: &Observed,
        pod_statuses: &[PoolPodStatus],
    ) -> Decision {
        let context = self.context;
        if !valid.drains_cordoned() {
            return Decision::default();
        }
        let now = Timestamp::now();
        let made = |pod: &Pod| desired::pool::made(pod).map_or(0, |made| made.bytes);
        let pods = observed.pool_pods.iter().zip(pod_statuses);
        let pods = pods.filter_map(|(pod, status)| cordoned::stored(pod, status, made(pod), now));
        let mut pods: Vec<Stored> = pods.collect();
        let limit = valid.update.max_unavailable.of(pods.len());
        let former = observed.former_pool_pods.iter();
        pods.extend(former.filter_map(|pod| cordoned::former(pod, made(pod), now)));
        let nodes = context.caches.nodes.state();
        let relevant = |node: &&Arc<Node>| {
            is_cordoned(node)
                && (cordoned::is_selected(node, &valid.pools)
                    || pods.iter().any(|pod| pod.node == node.name_any()))
        };
        let nodes = nodes.iter().filter(relevant);
        let nodes = nodes.map(|node| node.name_any()).collect();
        let sets = observed.existing.daemon_sets.iter();
        let mut before: BTreeSet<String> = sets.flat_map(|set| excluded(set)).collect();
        before.extend(context.drains.of(&valid.uid, Instant::now()));
        let rollout = self.old.rollout.as_ref();
        let master = observed.serving_master(&valid.name);
        let bytes = context.usage.bytes(&valid.uid, master);
        let decision = cordoned::decide(&cordoned::Facts {
            cordoned: &nodes,
            before: &before,
            pods: &pods,
            limit,
            replaced: &cordoned::replaced(rollout, &observed.pool_pods, now),
            used: bytes.and_then(|bytes| cordoned::used(bytes, &pods)),
            watermark: valid.master.eviction_watermark,
        });
        let drains = &context.drains;
        drains.note(&valid.uid, &decision.excluded, Instant::now());
        decision
    }

    /// Creates and deletes guards. Returns why one could not be written or does not run, and whether something is left to do without an
    /// event. A cluster without guards serves, so that is no error.
    async fn guard(
        &self,
        writer: &Writer,
        valid: &Valid,
        observed: &Observed,
        cordons: &Decision,
    ) -> Result<(Option<(Reason, String)>, bool), WriteError> {
        let context = self.context;
        let now = Timestamp::now();
        let (client, settings) = (&context.client, &context.settings);
        let plan = guards::plan(valid, settings, cordons, &observed.guards, now);
        match guards::carry_out(client, writer, valid, settings, &plan).await {
            Ok(()) => {
                let idle = plan.idle_message();
                Ok((idle.map(|why| (Reason::GuardNotRunning, why)), plan.recheck))
            }
            Err(error @ (WriteError::Deposed { .. } | WriteError::NamespaceTerminating { .. })) => {
                Err(error)
            }
            Err(error) => Ok((Some((error.reason(), error.to_string())), true)),
        }
    }

    /// Clears `Ready` before the work on a new generation, so that the old status is not taken for the
    /// new spec's.
    async fn begin(&mut self, valid: &Valid) -> Result<(), WriteError> {
        let message = format!("reconciling generation {}", valid.generation);
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

    /// Decides on the rollout, stores the decision, and only then deletes pods.
    async fn roll(
        &mut self,
        writer: &Writer,
        valid: &Valid,
        observed: &Observed,
        of: Rollout<'_>,
        refused: &mut Refused,
    ) -> Result<rollout::Decision, WriteError> {
        let pods: Vec<rollout::Pod> = observed
            .pool_pods
            .iter()
            .zip(of.pod_statuses)
            .filter_map(|(pod, pod_status)| candidate(valid, pod, pod_status))
            .collect();
        let outdated = pods.iter().filter(|pod| pod.outdated).count();
        let wait = |on, record| rollout::Decision::wait(outdated, on, record);
        let before = self.old.rollout.clone();
        if writer.is_paused() {
            return Ok(wait("the end of the pause", before));
        }
        if self.lags {
            // The record in the cache is not the latest one.
            return Ok(wait("the cache to show the last status", before));
        }
        let decision = self.next_step(valid, &of, &pods);
        let rollout::Step::Replace { pods: victims, .. } = &decision.step else {
            return Ok(decision);
        };
        if decision.record != before {
            self.write(MooncakeClusterStatus {
                rollout: decision.record.clone(),
                ..self.old.clone()
            })
            .await?;
        }
        if self.old.rollout.is_none() {
            let on = "the CRD MooncakeCluster of this release: the API server does not store status.rollout";
            return Ok(wait(on, None));
        }
        self.replace(writer, observed, victims, refused).await?;
        Ok(decision)
    }

    /// Decides on the rollout.
    fn next_step(
        &self,
        valid: &Valid,
        of: &Rollout<'_>,
        pods: &[rollout::Pod],
    ) -> rollout::Decision {
        let pools = of.pools.iter();
        let counts: Option<Vec<status::Scheduled>> = pools
            .map(|pool| status::scheduled(pool.current()?))
            .collect();
        let counts_of = |count: fn(&status::Scheduled) -> usize| {
            let counts = counts.as_ref()?.iter();
            Some(counts.map(count).sum::<usize>())
        };
        let drain_seconds = valid
            .pools
            .iter()
            .map(|pool| (pool.name.clone(), pool.drain_seconds))
            .collect();
        let facts = rollout::Facts {
            revision: &desired::pool::revision(&valid.pools),
            pods,
            desired: counts_of(|count| count.desired).unwrap_or(0),
            missing: counts_of(|count| count.desired.saturating_sub(count.current)),
            update: &valid.update,
            drain_seconds: &drain_seconds,
            given_up: &self.given_up(valid, of.excluded),
            now: now(),
        };
        rollout::next(&facts, self.old.rollout.as_ref())
    }

    /// Deletes pods that a rollout replaces.
    async fn replace(
        &self,
        writer: &Writer,
        observed: &Observed,
        victims: &[rollout::Pod],
        refused: &mut Refused,
    ) -> Result<(), WriteError> {
        let client = self.context.client.clone();
        let ClusterName { namespace, name } = &self.name;
        let api = untyped::api::<Pod>(client, &(), Some(namespace));
        for pod in victims {
            let mut found = observed.pool_pods.iter();
            if let Some(victim) = found.find(|found| found.uid().as_deref() == Some(&pod.uid)) {
                tracing::info!(%namespace, cluster = %name, pod = %pod.name,
                    node = %pod.place.node, "pool pod is outdated, replacing it");
                refused.pass(writer.delete(&api, victim.as_ref()).await)?;
            }
        }
        Ok(())
    }

    /// Places of the recorded rollout on nodes that are gone, that no pool of that name selects, or that are drained.
    fn given_up(&self, valid: &Valid, excluded: &BTreeSet<String>) -> BTreeSet<PoolPlace> {
        let recorded = self.old.rollout.iter().flat_map(rollout::recorded);
        let wanted = |place: &PoolPlace| {
            let nodes = &self.context.caches.nodes;
            let node = nodes.get(&ObjectRef::new(&place.node))?;
            let pool = valid.pools.iter().find(|pool| pool.name == place.pool)?;
            let selected = cordoned::is_selected(&node, std::slice::from_ref(pool));
            Some(selected && !desired::pool::is_drained(&node) && !excluded.contains(&place.node))
        };
        recorded
            .filter(|place| wanted(place) != Some(true))
            .collect()
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

    /// Writes the status if it changed, and one Event per transition.
    async fn write(&mut self, new: MooncakeClusterStatus) -> Result<(), WriteError> {
        if self.lags || new == self.old {
            return Ok(());
        }
        let client = self.context.client.clone();
        let api = Api::<MooncakeCluster>::namespaced(client, &self.name.namespace);
        let metadata = self.cluster.meta();
        let stored = self
            .context
            .writer
            .apply_status(&api, metadata, &new)
            .await?;
        self.context
            .events
            .transitions(
                &self.context.writer,
                self.cluster.object_ref(&()),
                &self.old.conditions,
                &new.conditions,
            )
            .await;
        self.old = MooncakeClusterStatus {
            // An older CRD drops it.
            rollout: stored.status.and_then(|status| status.rollout),
            ..new
        };
        Ok(())
    }
}

/// The time. Statuses store whole seconds.
fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default()
}

/// What is known of each pool pod, in the order of `observed`.
fn pod_statuses(
    observed: &Observed,
    master_uid: Option<&str>,
    now: Timestamp,
) -> Vec<PoolPodStatus> {
    let pods = observed.pool_pods.iter();
    pods.map(|pod| {
        let node = crate::pod::node_of(pod).unwrap_or_default();
        pool_pod::evaluate(pod, observed.mooncake_node(&node), master_uid, now)
    })
    .collect()
}

/// The pod in the rollout. A pod of a removed pool is not part of it: it goes with its DaemonSet.
fn candidate(valid: &Valid, pod: &Pod, pod_status: &PoolPodStatus) -> Option<rollout::Pod> {
    let label = pod.labels().get(crds::names::LABEL_POOL);
    let pool = valid.pools.iter().find(|pool| label == Some(&pool.name))?;
    let fingerprint = pod.annotations().get(desired::pool::ANNOTATION_SPEC);
    Some(rollout::Pod {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        place: PoolPlace {
            pool: pool.name.clone(),
            node: pod_status.node.clone(),
        },
        outdated: fingerprint != Some(&desired::pool::spec_fingerprint(pool)),
        leaving: pod.meta().deletion_timestamp.is_some(),
        serving: match pod_status.service {
            PoolService::Serving { .. } => Some(true),
            PoolService::NotServing { .. } => Some(false),
            PoolService::Unknown { .. } => None,
        },
    })
}

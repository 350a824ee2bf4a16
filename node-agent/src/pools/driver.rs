//! The task of one pool pod: decides the next step, carries it out, and waits for events.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::node::PoolAssignment;
use crds::reason::Reason;
use engine::{Endpoint, Engine, RegionId};
use store::Session;
use sys::mem::Region;
use sys::net::Namespace;
use tokio::sync::watch;

use super::failure::{Backoff, Failure};
use super::mover::MountedExtents;
use super::record::Record;
use super::step::{self, Action, Listed};
use crate::pools::admission::Admitted;
use crate::pools::memory_budget::{MemoryBudget, PoolId, to_touch};
use crate::pools::mounts::Mounts;
use crate::pools::processes::{PoolProcess, Process};
use crate::publish::report::Reporter;
use pool::handover::client::Event;
use pool::handover::message::{Attached, ExtentState, Request};
use pool::handover::record::Key;
use pool::handover::{self, Client};

/// Period of the heartbeat to the pool process, and of the check that it runs.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);

/// Shared by the tasks of all pool pods.
pub(crate) struct Context {
    pub(crate) node_name: String,
    pub(crate) proc: PathBuf,
    pub(crate) key: Key,
    pub(crate) engine: Engine,
    pub(crate) budget: MemoryBudget,
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) reporter: Reporter,
    /// Absent without Kubernetes.
    pub(crate) kubernetes: Option<kube::Client>,
}

/// Assignment of one pod in the node's spec.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PodAssignment {
    /// No spec was read yet.
    Unknown,
    Assigned(Box<PoolAssignment>),
    /// The spec does not assign the pod.
    Unassigned,
}

/// Endpoint and regions that peers can use.
pub(super) struct Served {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) regions: Vec<RegionId>,
}

/// State of one pool pod.
pub(super) struct Pod {
    pub(super) context: Arc<Context>,
    pub(super) uid: String,
    pub(super) assignment: PoolAssignment,
    pub(super) listed: Listed,
    pub(super) process: Process,
    pub(super) network: Arc<Namespace>,
    pub(super) client: Option<Client>,
    pub(super) attached: Option<Attached>,
    pub(super) address: Option<IpAddr>,
    pub(super) record: Option<Record>,
    pub(super) record_read: bool,
    pub(super) predecessor: Option<Instant>,
    pub(super) extents: Vec<ExtentState>,
    pub(super) touching: Option<usize>,
    pub(super) memory: Vec<Arc<Region>>,
    pub(super) served: Option<Served>,
    pub(super) mounted: MountedExtents,
    pub(super) session: Option<Session>,
    /// The lost epoch that a new one already replaces.
    pub(super) replaced_epoch: Option<u64>,
    pub(super) reported_serving: Option<bool>,
    pub(super) draining: bool,
    /// Its segments were unmounted for good.
    pub(super) unmounted: bool,
    pub(super) drained_reported: bool,
    pub(super) admission: Option<Admitted>,
    /// Addresses admitted now.
    pub(super) admitted: Option<BTreeSet<IpAddr>>,
    pub(super) failure: Option<(Action, Failure)>,
    backoff: Backoff,
    next_heartbeat: Instant,
}

/// Serves one pool pod until its process has ended and its memory is released.
pub(crate) async fn run(
    context: Arc<Context>,
    found: PoolProcess,
    known: PoolAssignment,
    mut assigned: watch::Receiver<PodAssignment>,
) {
    let uid = found.pod_uid.clone();
    let opened = Process::open(&context.proc, found.pid)
        .and_then(|process| Ok((process.network()?, process)));
    let (network, process) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            return tracing::info!(pid = found.pid, %error, "the pool process has ended");
        }
    };
    let pool = PoolId {
        namespace: known.namespace.clone(),
        cluster: known.cluster.clone(),
        pool: known.pool.clone(),
    };
    let untouched = to_touch(&known, known.size.0);
    context.budget.add(&uid, pool, &known.pod_name, untouched);
    tracing::info!(
        namespace = known.namespace,
        pid = found.pid,
        "found a pool pod"
    );
    let mut pod = Pod {
        context: Arc::clone(&context),
        uid: uid.clone(),
        assignment: known,
        listed: Listed::Unknown,
        process,
        network: Arc::new(network),
        client: None,
        attached: None,
        address: None,
        record: None,
        record_read: false,
        predecessor: None,
        extents: Vec::new(),
        touching: None,
        memory: Vec::new(),
        served: None,
        mounted: MountedExtents::default(),
        session: None,
        replaced_epoch: None,
        reported_serving: None,
        draining: false,
        unmounted: false,
        drained_reported: false,
        admission: None,
        admitted: None,
        failure: None,
        backoff: Backoff::default(),
        next_heartbeat: Instant::now(),
    };
    while pod.take_step(&mut assigned).await {}
    if let Some(record) = &pod.record {
        context.mounts.set_unserved(record.client);
    }
    context.budget.ended(&uid);
    context.reporter.retain_pools(|known| *known != uid);
    tracing::info!("the pool pod has ended");
}

impl Pod {
    /// Takes one step or waits once. Returns false when nothing remains to do.
    async fn take_step(&mut self, assigned: &mut watch::Receiver<PodAssignment>) -> bool {
        let assignment = assigned.borrow_and_update().clone();
        self.apply_assignment(assignment);
        let facts = self.facts();
        let step = step::step(&facts);
        self.publish(&step);
        let Some(action) = step.action else {
            self.clear_failure();
            self.wait(assigned).await;
            return true;
        };
        if action == Action::Finish {
            return false;
        }
        // A new attach does not clear the failure of another action: a pool process with invalid answers
        // would receive requests without a pause.
        let failed = self.failure.as_ref().map(|(failed, _)| *failed);
        let again = action == Action::Attach && failed != Some(Action::Attach);
        if !again && failed.is_some_and(|failed| failed != action) {
            self.clear_failure();
        }
        if self.backoff.left(Instant::now()).is_some() {
            self.wait(assigned).await;
            return true;
        }
        match self.act(action, &step).await {
            Ok(()) => {
                tracing::debug!(?action, "done");
                if !again {
                    self.clear_failure();
                }
            }
            Err(failure) => {
                let logged = self.failure.as_ref().map(|(_, failure)| failure);
                if logged != Some(&failure) {
                    tracing::warn!(?action, reason = %failure.reason, "{}", failure.message);
                }
                if failure.is_refusal() {
                    // A rejected pod touches nothing.
                    self.context.budget.set_untouched(&self.uid, 0);
                }
                self.fail(action, failure);
            }
        }
        true
    }

    fn fail(&mut self, action: Action, failure: Failure) {
        self.failure = Some((action, failure));
        self.backoff.fail(Instant::now());
    }

    fn clear_failure(&mut self) {
        self.failure = None;
        self.backoff = Backoff::default();
    }

    fn apply_assignment(&mut self, assigned: PodAssignment) {
        match assigned {
            PodAssignment::Unknown => {}
            PodAssignment::Unassigned => self.listed = Listed::No,
            PodAssignment::Assigned(assignment) => {
                self.listed = Listed::Yes;
                let mut assignment = *assignment;
                if !self.extents.is_empty() || self.record.is_some() {
                    // The spec cannot change memory that exists.
                    keep_memory(&mut assignment, &self.assignment);
                }
                if assignment.master.is_none() {
                    // A missing master does not end the session.
                    assignment.master.clone_from(&self.assignment.master);
                }
                self.assignment = assignment;
            }
        }
    }

    /// Waits for an event, at most until the next retry or heartbeat.
    async fn wait(&mut self, assigned: &mut watch::Receiver<PodAssignment>) {
        self.refresh_admission().await;
        let now = Instant::now();
        let due = self.next_heartbeat.saturating_duration_since(now);
        let wait = self.backoff.left(now).map_or(due, |left| left.min(due));
        let event = tokio::select! {
            event = next(&mut self.client) => Some(event),
            changed = assigned.changed() => {
                if changed.is_err() {
                    // The agent ends and unmounts nothing.
                    std::future::pending::<()>().await;
                }
                None
            }
            () = or_pending(self.session.as_mut().map(Session::changed)) => None,
            () = or_pending(self.admission.as_mut().map(Admitted::changed)) => None,
            () = tokio::time::sleep(wait) => None,
        };
        match event {
            Some(Ok(event)) => self.on_event(event),
            Some(Err(error)) => self.detach(&error),
            None => {}
        }
        if Instant::now() >= self.next_heartbeat {
            self.next_heartbeat = Instant::now() + HEARTBEAT;
            self.heartbeat().await;
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::DrainRequest => {
                tracing::info!("the pool process requests a drain");
                self.draining = true;
            }
            Event::Touched {
                index,
                bytes,
                failure,
            } => {
                let Some(extent) = self.extents.get_mut(index) else {
                    return;
                };
                extent.touched = bytes.min(extent.length);
                if failure.is_some() || extent.touched == extent.length {
                    self.touching = None;
                }
                self.count_untouched();
                if let Some(message) = failure {
                    let failure = Failure::new(Reason::MemoryUnavailable, message);
                    self.fail(Action::Touch(index), failure);
                }
            }
        }
    }

    /// Sends the heartbeat to the pool process.
    pub(super) async fn heartbeat(&mut self) {
        let reason = self.serving_reason();
        let Some(client) = &mut self.client else {
            return;
        };
        let sent = match self.reported_serving {
            Some(serving) => {
                client
                    .request(Request::SetServing { serving, reason })
                    .await
            }
            None => client.record().await.map(|_| ()),
        };
        if let Err(error) = sent {
            self.detach(&error);
        }
    }

    pub(super) fn serving_reason(&self) -> String {
        match (&self.failure, &self.session) {
            (Some((_, failure)), _) => failure.message.clone(),
            (None, Some(session)) => session.state().borrow().to_string(),
            (None, None) => "waiting for a ready master".to_owned(),
        }
    }

    /// Closes the hand-over connection. Memory and endpoint stay.
    pub(super) fn detach(&mut self, error: &handover::Error) {
        if self.client.take().is_some() && self.process.runs() {
            tracing::warn!(
                %error,
                "hand-over connection lost"
            );
        }
        self.attached = None;
        self.touching = None;
    }
}

/// Copies what describes allocated memory.
pub(super) fn keep_memory(assignment: &mut PoolAssignment, from: &PoolAssignment) {
    assignment.size = from.size;
    assignment.page_size = from.page_size;
    assignment.numa_policy = from.numa_policy;
}

/// Waits for the next event; forever without a connection.
async fn next(client: &mut Option<Client>) -> Result<Event, handover::Error> {
    match client {
        Some(client) => client.event().await,
        None => std::future::pending().await,
    }
}

/// Waits for `future`; forever if absent.
pub(super) async fn or_pending(future: Option<impl Future<Output = ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

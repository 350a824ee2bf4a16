//! The pool pod: decides the next step from its facts, carries it out, and waits for events. `step` decides,
//! `actions` carries out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crds::node::PoolAssignment;
use crds::reason::Reason;
use engine::{Endpoint, Engine, RegionId};
use metadata::Credentials;
use store::{Ledger, Session};
use sys::mem::Region;
use tokio::sync::watch;

use crate::control::agent::Agent;
use crate::control::link::Counted;
use crate::control::message::{Listed, PodAssignment};
use crate::control::succession::Inherited;
use crate::pidfd::Pidfd;
use pool::handover::client::Event;
use pool::handover::message::{Attached, ExtentState, Request};
use pool::handover::{self, Client};

mod actions;
mod epoch;
mod evacuation;
mod facts;
pub(crate) mod failure;
mod ledger;
mod mover;
pub(crate) mod numa;
mod publication;
mod record;
mod registering;
mod report;
mod step;

use evacuation::Evacuation;
use failure::{Backoff, Failure};
use mover::MountedExtents;
use publication::Publication;
use record::Record;
use registering::{Registered, Registering};
use step::Action;

/// Period of the heartbeat to the pool process, and of the check that it runs.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The protocol of an engine with RDMA devices.
pub(crate) const RDMA: &str = "rdma";

/// How long this process waits for its first assignment.
const ASSIGNMENT_DEADLINE: Duration = Duration::from_secs(60);

/// How long after its sockets a process may end.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// What the pod is served with.
pub(crate) struct Context {
    pub(crate) node_name: String,
    /// UID of the pod.
    pub(crate) uid: String,
    /// NUMA nodes with memory.
    pub(crate) memory_nodes: Vec<u32>,
    pub(crate) pool: Pidfd,
    pub(crate) engine: Engine,
    /// The protocol of the engine, as descriptors and segments name it.
    pub(crate) protocol: &'static str,
    /// Why RDMA devices could not be opened, of those that could not.
    pub(crate) left_out: Vec<String>,
    pub(crate) agent: Agent,
    pub(crate) counted: Counted,
    pub(crate) inherited: Inherited,
}

/// Endpoint and regions that peers can use.
struct Served {
    endpoint: Arc<Endpoint>,
    regions: Vec<RegionId>,
}

/// State of the pool pod.
struct Pod {
    context: Context,
    assignment: PoolAssignment,
    listed: Listed,
    client: Option<Client>,
    attached: Option<Attached>,
    address: Option<IpAddr>,
    record: Option<Record>,
    record_read: bool,
    predecessor: Option<Instant>,
    extents: Vec<ExtentState>,
    /// The pool process has, or may have, allocated memory.
    holds: bool,
    touching: Option<usize>,
    memory: Vec<Arc<Region>>,
    /// Absent if the pool pod is of an earlier release.
    ledger: Option<Arc<Ledger>>,
    /// Mappings of memory that was released but may still be used.
    mapped: Vec<Weak<Region>>,
    served: Option<Served>,
    /// Until RDMA devices have registered the memory, also between two attempts.
    registering: Option<Registering>,
    /// Since peers were served last.
    registration_failed: bool,
    /// How long RDMA devices took to register the memory.
    registration_seconds: Option<u64>,
    /// Of an etcd with TLS, once peers are served.
    credentials: Option<Arc<Credentials>>,
    /// `None` without a metadata service.
    publication: Option<Publication>,
    mounted: MountedExtents,
    session: Option<Session>,
    /// The lost epoch that a new one already replaces.
    replaced_epoch: Option<u64>,
    reported_serving: Option<bool>,
    draining: bool,
    evacuation: Evacuation,
    /// The segments of the recorded epoch were unmounted.
    unmounted: bool,
    drained_reported: bool,
    /// An agent of another release may serve the pod.
    superseded: bool,
    /// Addresses that the agent admits; `None` until it has read them.
    admission: watch::Receiver<Option<BTreeSet<IpAddr>>>,
    /// Addresses admitted now.
    admitted: Option<BTreeSet<IpAddr>>,
    failure: Option<(Action, Failure)>,
    backoff: Backoff,
    next_heartbeat: Instant,
}

/// Serves the pool pod until its process has ended and its memory is released.
///
/// # Errors
/// A failure after which this process must end at once.
pub(crate) async fn run(
    context: Context,
    mut assigned: watch::Receiver<Option<PodAssignment>>,
    admission: watch::Receiver<Option<BTreeSet<IpAddr>>>,
) -> Result<(), Failure> {
    let Some(PodAssignment { listed, pool }) = first_assignment(&context, &mut assigned).await
    else {
        return Ok(());
    };
    let mut pod = Pod {
        context,
        assignment: pool,
        listed,
        client: None,
        attached: None,
        address: None,
        record: None,
        record_read: false,
        predecessor: None,
        extents: Vec::new(),
        holds: true,
        touching: None,
        memory: Vec::new(),
        ledger: None,
        mapped: Vec::new(),
        served: None,
        registering: None,
        registration_failed: false,
        registration_seconds: None,
        credentials: None,
        publication: None,
        mounted: MountedExtents::default(),
        session: None,
        replaced_epoch: None,
        reported_serving: None,
        draining: false,
        evacuation: Evacuation::default(),
        unmounted: false,
        drained_reported: false,
        superseded: false,
        admission,
        admitted: None,
        failure: None,
        backoff: Backoff::default(),
        next_heartbeat: Instant::now(),
    };
    while pod.take_step(&mut assigned).await? {}
    tracing::info!("this process no longer serves the pool pod");
    Ok(())
}

/// Waits for the assignment with which the agent started this process; `None` if the pool process ends before, or the agent
/// ended and another one has started another process.
async fn first_assignment(
    context: &Context,
    assigned: &mut watch::Receiver<Option<PodAssignment>>,
) -> Option<PodAssignment> {
    let begun = Instant::now();
    loop {
        if let Some(assignment) = &*assigned.borrow_and_update() {
            return Some(assignment.clone());
        }
        if !context.pool.runs() || begun.elapsed() > ASSIGNMENT_DEADLINE {
            return None;
        }
        // A change or the next look at the pool process.
        let _ = tokio::time::timeout(HEARTBEAT, assigned.changed()).await;
    }
}

impl Pod {
    /// Takes one step or waits once. Returns false when nothing remains to do.
    ///
    /// # Errors
    /// A failure that ends this process.
    async fn take_step(
        &mut self,
        assigned: &mut watch::Receiver<Option<PodAssignment>>,
    ) -> Result<bool, Failure> {
        let assignment = assigned.borrow_and_update().clone();
        self.apply_assignment(assignment);
        if std::mem::take(&mut self.superseded) {
            // A pool process that ends closes its sockets a moment before.
            tokio::time::sleep(CLOSE_GRACE).await;
            if self.context.pool.runs() && !self.context.agent.is_connected() {
                return Ok(false);
            }
        }
        if let Some((_, failure)) = self.failure.as_ref().filter(|(_, of)| of.ends_process) {
            return Err(failure.clone());
        }
        let facts = self.facts();
        let step = step::step(&facts);
        self.publish(&step);
        let Some(action) = step.action else {
            // While the memory is registered again, the failure of before is the status.
            if self.registering.is_none() {
                self.clear_failure();
            }
            self.wait(assigned).await;
            return Ok(true);
        };
        if action == Action::Finish {
            return Ok(false);
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
            return Ok(true);
        }
        match self.act(action, &step).await {
            Ok(()) => {
                tracing::debug!(?action, "done");
                if !again && action != Action::ServePeers {
                    self.clear_failure();
                }
            }
            Err(failure) if failure.ends_process => return Err(failure),
            Err(failure) => {
                let logged = self.failure.as_ref().map(|(_, failure)| failure);
                if logged != Some(&failure) {
                    tracing::warn!(?action, reason = %failure.reason, "{}", failure.message);
                }
                self.fail(action, failure);
            }
        }
        Ok(true)
    }

    fn fail(&mut self, action: Action, failure: Failure) {
        self.failure = Some((action, failure));
        self.backoff.fail(Instant::now());
    }

    fn clear_failure(&mut self) {
        self.failure = None;
        self.backoff = Backoff::default();
    }

    fn apply_assignment(&mut self, assigned: Option<PodAssignment>) {
        let Some(PodAssignment { listed, pool }) = assigned else {
            return;
        };
        // A new agent that has not read the spec yet knows nothing new.
        if listed != Listed::Unknown {
            self.listed = listed;
        }
        if listed != Listed::Yes {
            return;
        }
        let mut assignment = pool;
        if !self.extents.is_empty() || self.record.is_some() {
            // The spec cannot change memory that exists.
            keep_memory(&mut assignment, &self.assignment);
        }
        if assignment.master.is_none() {
            // A missing master does not end the session.
            assignment.master.clone_from(&self.assignment.master);
        }
        self.assignment = assignment;
        self.evacuation.shorten(self.drain_period());
    }

    fn drain_period(&self) -> Duration {
        Duration::from_secs(self.assignment.drain_seconds.into())
    }

    /// Waits for an event, at most until the next retry or heartbeat.
    async fn wait(&mut self, assigned: &mut watch::Receiver<Option<PodAssignment>>) {
        self.refresh_admission().await;
        let now = Instant::now();
        let due = self.next_heartbeat.saturating_duration_since(now);
        let wait = self.backoff.left(now).map_or(due, |left| left.min(due));
        let drained = self.evacuation.deadline().filter(|end| *end > now);
        let wait = drained.map_or(wait, |end| wait.min(end.saturating_duration_since(now)));
        let event = tokio::select! {
            event = next(&mut self.client) => Some(event),
            changed = assigned.changed() => {
                if changed.is_err() {
                    // The process ends.
                    std::future::pending::<()>().await;
                }
                None
            }
            () = or_pending(self.publication.as_mut().map(Publication::changed)) => None,
            () = or_pending(self.session.as_mut().map(Session::changed)) => None,
            () = self.evacuation.ended() => None,
            registered = ended(&mut self.registering) => {
                self.serve_registered(registered);
                None
            }
            () = changed(&mut self.admission) => {
                // Before the next step, which may take minutes.
                self.refresh_admission().await;
                None
            }
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
                self.begin_drain();
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
                if let Some(message) = failure {
                    let failure = Failure::new(Reason::MemoryUnavailable, message);
                    self.fail(Action::Touch(index), failure);
                }
            }
        }
    }

    /// The pod terminates: the drain period begins.
    fn begin_drain(&mut self) {
        self.draining = true;
        self.evacuation.begin(self.drain_period());
    }

    /// Sends the heartbeat to the pool process.
    async fn heartbeat(&mut self) {
        let reason = self.serving_reason();
        let Some(client) = &mut self.client else {
            return;
        };
        let registering = self.registering.as_ref();
        let registering = registering.map(Registering::unregistered_for);
        self.reported_serving = reported(self.reported_serving, registering);
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
        self.refresh_credentials().await;
    }

    fn serving_reason(&self) -> String {
        match (&self.failure, &self.session) {
            (Some((_, failure)), _) => failure.message.clone(),
            (None, _) if self.registering.is_some() => self.progress(),
            (None, Some(session)) => failure::bounded(session.state().borrow().to_string()),
            (None, None) => "waiting for a ready master".to_owned(),
        }
    }

    /// Closes the hand-over connection. Memory and endpoint stay.
    fn detach(&mut self, error: &handover::Error) {
        let granted = !self.extents.is_empty();
        if keeps(error, granted, self.context.agent.is_connected()) {
            return tracing::warn!(%error, "the pool process does not answer");
        }
        let attached = self.client.take().is_some();
        // A pool process closes the connection for a newer one; one of release 0.1.0 also after 10 s without a request, and it is
        // not known for which of the two. Without an agent of this release the newer one is of an agent of release 0.1.0, after a
        // rollback: it serves the pod itself, and may begin a new epoch. Only an agent can connect again.
        let closed = attached && matches!(error, handover::Error::Closed { .. });
        self.superseded |= closed && self.context.pool.runs() && !self.context.agent.is_connected();
        if attached && self.context.pool.runs() {
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
fn keep_memory(assignment: &mut PoolAssignment, from: &PoolAssignment) {
    assignment.size = from.size;
    assignment.page_size = from.page_size;
    assignment.numa_policy = from.numa_policy;
}

/// Whether the connection to a pool process with granted memory stays after an error: one that gets no processor time answers late,
/// and only an agent can connect again. Of a grant without an answer only the next connection learns.
fn keeps(error: &handover::Error, granted: bool, agent: bool) -> bool {
    granted && !agent && matches!(error, handover::Error::TimedOut { .. })
}

/// What to report to the pool process about serving. Without a report it stays ready, as it was with the engine process before
/// this one: for as long as without a heartbeat.
fn reported(before: Option<bool>, registering: Option<Duration>) -> Option<bool> {
    let long = registering.is_some_and(|registering| registering >= handover::AGENT_SILENCE);
    before.or_else(|| long.then_some(false))
}

/// Waits for the next event; forever without a connection.
async fn next(client: &mut Option<Client>) -> Result<Event, handover::Error> {
    match client {
        Some(client) => client.event().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of an attempt to register the memory; forever if there is none.
async fn ended(registering: &mut Option<Registering>) -> Result<Registered, engine::Error> {
    match registering {
        Some(registering) => registering.ended().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change; forever when the process ends.
async fn changed<T>(watched: &mut watch::Receiver<T>) {
    if watched.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for `future`; forever if absent.
async fn or_pending(future: Option<impl Future<Output = ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_pod_is_not_ready_while_its_memory_is_registered_for_long() {
        let [short, long] = [5, 10].map(|seconds| Some(Duration::from_secs(seconds)));
        assert_eq!(reported(None, None), None);
        assert_eq!(reported(None, short), None);
        assert_eq!(reported(None, long), Some(false));
        assert_eq!(reported(Some(true), long), Some(true));
    }
    #[test]
    fn a_late_answer_ends_the_connection_if_another_one_can_follow_or_must() {
        let late = handover::Error::TimedOut {
            stage: "waiting for the answer",
            deadline: Duration::from_secs(5),
        };
        assert!(keeps(&late, true, false));
        assert!(!keeps(&late, true, true));
        assert!(!keeps(&late, false, false), "the grant may have been made");
    }
}

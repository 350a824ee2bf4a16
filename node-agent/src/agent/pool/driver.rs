//! The task of one pool pod: gathers facts, takes the next step, and waits for news.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::node::{MasterInstance, PoolAssignment, PoolReport, PoolState};
use engine::{Engine, Host, RegionId};
use store::{EpochEnd, Session, State};
use sys::mem::Region;
use sys::net::Namespace;
use tokio::sync::watch;

use super::effects::to_touch;
use super::failure::{Backoff, Failure};
use super::mover::Extents;
use super::record::Record;
use super::step::{self, Action, Facts, Listed, MasterFact, RecordFact, SessionFact, Step};
use crate::agent::admission::Admitted;
use crate::agent::census::{Found, Process};
use crate::agent::ledger::{Ledger, PoolId};
use crate::agent::orphans::Orphans;
use crate::agent::report::Board;
use crate::handover::client::Event;
use crate::handover::message::{Attached, ExtentState, Request};
use crate::handover::record::Key;
use crate::handover::{self, Client};

/// How often the agent shows the pool that it lives, and looks whether the process does.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(2);

/// What every pool pod's task needs.
pub(crate) struct Context {
    pub(crate) node_name: String,
    pub(crate) proc: PathBuf,
    pub(crate) key: Key,
    pub(crate) engine: Engine,
    pub(crate) ledger: Ledger,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) board: Board,
    /// Absent when there is no Kubernetes.
    pub(crate) kubernetes: Option<kube::Client>,
}

/// What the node's spec says about one pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wish {
    /// The spec was not read yet.
    Unknown,
    Serve(Box<PoolAssignment>),
    /// The spec does not name it.
    Gone,
}

/// Peers can connect.
pub(super) struct Served {
    pub(super) host: Arc<Host>,
    pub(super) regions: Vec<RegionId>,
}

/// Everything about one pool pod.
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
    pub(super) places: Extents,
    pub(super) session: Option<Session>,
    /// The lost epoch that was answered already.
    pub(super) answered: Option<u64>,
    pub(super) told: Option<bool>,
    pub(super) ending: bool,
    /// Its segments were taken out of the master, for good.
    pub(super) left: bool,
    pub(super) said_drained: bool,
    pub(super) admission: Option<Admitted>,
    /// Who is admitted now.
    pub(super) admitted: Option<BTreeSet<IpAddr>>,
    failure: Option<(Action, Failure)>,
    backoff: Backoff,
    heartbeat: Instant,
}

/// Serves one pool pod until its process has ended and nothing of it is left here.
pub(crate) async fn run(
    context: Arc<Context>,
    found: Found,
    known: PoolAssignment,
    mut wish: watch::Receiver<Wish>,
) {
    let uid = found.pod_uid.clone();
    let opened = Process::open(&context.proc, found.pid)
        .and_then(|process| Ok((process.network()?, process)));
    let (network, process) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            return tracing::info!(pod = uid, pid = found.pid, %error, "the pool process is gone");
        }
    };
    let pool = PoolId {
        namespace: known.namespace.clone(),
        cluster: known.cluster.clone(),
        pool: known.pool.clone(),
    };
    let untouched = to_touch(&known, known.size.0);
    context.ledger.enter(&uid, pool, &known.pod_name, untouched);
    tracing::info!(
        pod = known.pod_name,
        namespace = known.namespace,
        uid,
        pid = found.pid,
        "pool pod found"
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
        places: Extents::default(),
        session: None,
        answered: None,
        told: None,
        ending: false,
        left: false,
        said_drained: false,
        admission: None,
        admitted: None,
        failure: None,
        backoff: Backoff::default(),
        heartbeat: Instant::now(),
    };
    while pod.turn(&mut wish).await {}
    if let Some(record) = &pod.record {
        context.orphans.let_go(record.client);
    }
    context.ledger.ended(&uid);
    context.board.remove(&uid);
    tracing::info!(pod = pod.assignment.pod_name, uid, "pool pod ended");
}

impl Pod {
    /// One decision and its deed, or one wait. False when all is over.
    async fn turn(&mut self, wish: &mut watch::Receiver<Wish>) -> bool {
        let wished = wish.borrow_and_update().clone();
        self.hear(wished);
        let facts = self.facts();
        let step = step::step(&facts);
        self.publish(&step);
        let Some(action) = step.action else {
            self.failure = None;
            self.backoff.succeed();
            self.rest(wish).await;
            return true;
        };
        if action == Action::Finish {
            return false;
        }
        // To be attached again says nothing about what had failed on the connection before: a pool
        // that answers nonsense would be asked without a pause.
        let failed = self.failure.as_ref().map(|(failed, _)| *failed);
        let again = action == Action::Attach && failed != Some(Action::Attach);
        if !again && failed.is_some_and(|failed| failed != action) {
            self.failure = None;
            self.backoff.succeed();
        }
        if self.backoff.left(Instant::now()).is_some() {
            self.rest(wish).await;
            return true;
        }
        match self.act(action, &step).await {
            Ok(()) => {
                tracing::debug!(pod = self.assignment.pod_name, ?action, "done");
                if !again {
                    self.failure = None;
                    self.backoff.succeed();
                }
            }
            Err(failure) => {
                let news = self
                    .failure
                    .as_ref()
                    .is_none_or(|(_, before)| *before != failure);
                if news {
                    tracing::warn!(
                        pod = self.assignment.pod_name, uid = self.uid, ?action,
                        reason = %failure.reason, "{}", failure.message
                    );
                }
                if failure.is_refusal() {
                    // It is not asked to touch anything.
                    self.context.ledger.untouched(&self.uid, 0);
                }
                self.failure = Some((action, failure));
                self.backoff.fail(Instant::now());
            }
        }
        true
    }

    fn hear(&mut self, wish: Wish) {
        match wish {
            Wish::Unknown => {}
            Wish::Gone => self.listed = Listed::No,
            Wish::Serve(assignment) => {
                self.listed = Listed::Yes;
                let mut assignment = *assignment;
                if !self.extents.is_empty() || self.record.is_some() {
                    // Memory that exists keeps its shape, whatever the spec says by now.
                    assignment.size = self.assignment.size;
                    assignment.page_size = self.assignment.page_size;
                    assignment.numa_policy = self.assignment.numa_policy;
                }
                if assignment.master.is_none() {
                    // Absence alone ends nothing.
                    assignment.master.clone_from(&self.assignment.master);
                }
                self.assignment = assignment;
            }
        }
    }

    fn facts(&self) -> Facts {
        let record = match (&self.record, self.record_read) {
            (Some(_), _) => RecordFact::Ours,
            (None, true) => RecordFact::None,
            (None, false) => RecordFact::Unread,
        };
        Facts {
            listed: self.listed,
            runs: self.process.runs(),
            ending: self.ending,
            attached: self.attached.is_some(),
            record,
            address_proven: self.address.is_some(),
            granted: !self.extents.is_empty(),
            predecessor: self.predecessor.map(|since| since.elapsed()),
            mapped: !self.memory.is_empty(),
            untouched: self.extents.iter().position(|e| e.touched < e.length),
            touching: self.touching.is_some(),
            hosted: self.served.is_some(),
            master: self.master(),
            session: self.session(),
            in_master: !self.left && (self.session.is_some() || self.was_mounted()),
            said_drained: self.said_drained,
            told_serving: self.told,
        }
    }

    fn was_mounted(&self) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.mounted_in.is_some())
    }

    fn master(&self) -> MasterFact {
        let noted = self
            .record
            .as_ref()
            .and_then(|record| record.mounted_in.as_ref());
        match (&self.assignment.master, noted) {
            (None, None) => MasterFact::None,
            (Some(_), None) => MasterFact::Fresh,
            (None, Some(_)) => MasterFact::Same,
            (Some(wanted), Some(noted)) if wanted.address != noted.address => MasterFact::Other,
            (Some(wanted), Some(noted)) if wanted.pod_uid == noted.pod_uid => MasterFact::Same,
            _ if self.record.as_ref().is_some_and(|record| record.renewed) => MasterFact::Adoptable,
            _ => MasterFact::Other,
        }
    }

    fn session(&self) -> SessionFact {
        let Some(session) = &self.session else {
            return SessionFact::None;
        };
        match &*session.state().borrow() {
            State::Connecting | State::Ready => SessionFact::Connecting,
            State::Mounted { refused, .. } if !refused.is_empty() => SessionFact::Refused,
            State::Mounted { mounted, .. } if mounted.len() >= self.memory.len() => {
                SessionFact::Mounted
            }
            State::Mounted { .. } => SessionFact::Connecting,
            State::EpochLost { epoch, .. } if self.answered == Some(*epoch) => {
                SessionFact::Connecting
            }
            State::EpochLost {
                reason: EpochEnd::Forgotten,
                ..
            } => SessionFact::Lost,
            State::EpochLost {
                reason: EpochEnd::Refused(_),
                ..
            } => SessionFact::LostByRefusal,
            State::Skew(_) => SessionFact::Skew,
            State::Unreachable { .. } => SessionFact::Unreachable,
        }
    }

    fn publish(&self, step: &Step) {
        let report = self.report(step);
        let host = self.served.as_ref().map(|served| &served.host);
        self.context.board.set(report, &self.assignment, host);
    }

    fn report(&self, step: &Step) -> PoolReport {
        let (state, reason, message) = match &self.failure {
            Some((_, failure)) => (
                failure.state(step.state),
                failure.reason,
                failure.message.clone(),
            ),
            None => (step.state, step.reason, self.words(step)),
        };
        let serving = state == PoolState::Serving;
        let epoch = self.record.as_ref().map(|record| &record.epoch);
        let count = self.memory.len();
        let name = |index| {
            let a = &self.assignment;
            crds::names::segment(&a.cluster, &a.pool, &self.context.node_name, index)
        };
        let mounted_in: Option<&MasterInstance> = self
            .record
            .as_ref()
            .and_then(|record| record.mounted_in.as_ref());
        PoolReport {
            pod_uid: self.uid.clone(),
            namespace: self.assignment.namespace.clone(),
            pod_name: self.assignment.pod_name.clone(),
            state,
            reason,
            message,
            endpoint: self.server_name().unwrap_or_default(),
            master_pod_uid: mounted_in
                .filter(|_| serving)
                .map(|master| master.pod_uid.clone())
                .unwrap_or_default(),
            data_epoch: epoch.map_or(0, |epoch| epoch.number),
            segments: if serving {
                (0..count).map(name).collect()
            } else {
                Vec::new()
            },
            mounted: serving.then_some(self.assignment.size),
            page_size_obtained: self
                .memory
                .first()
                .map(|region| crds::ByteSize(region.page_size().bytes())),
        }
    }

    /// The reason in words.
    fn words(&self, step: &Step) -> String {
        let session = self.session.as_ref().map(Session::state);
        let told = session.map(|state| state.borrow().to_string());
        match step.state {
            PoolState::Waiting if step.action.is_none() => {
                "waiting for the operator to assign this pod".to_owned()
            }
            PoolState::Waiting => "the agent is getting to know the pool process".to_owned(),
            PoolState::Preparing => {
                let whole: u64 = self.extents.iter().map(|e| e.length).sum();
                let done: u64 = self.extents.iter().map(|e| e.touched).sum();
                let percent = done.saturating_mul(10).checked_div(whole).unwrap_or(0) * 10;
                format!("{percent} % of the memory is there")
            }
            PoolState::Mounting => match (step.reason, told) {
                (crds::reason::Reason::MasterNotReady, _) => {
                    "the memory is there; waiting for a master that serves".to_owned()
                }
                // States that pass within a second are not worth a write to the API each.
                (crds::reason::Reason::Mounting, _) | (_, None) => {
                    "mounting in the master".to_owned()
                }
                (_, Some(told)) => told,
            },
            PoolState::Serving => "mounted and served".to_owned(),
            PoolState::Draining => "told to end: leaving the master".to_owned(),
            PoolState::Released | PoolState::Refused => "nothing of it is mounted".to_owned(),
        }
    }

    /// Waits for news, at most until something is due.
    async fn rest(&mut self, wish: &mut watch::Receiver<Wish>) {
        self.refresh_admission().await;
        let now = Instant::now();
        let due = self.heartbeat.saturating_duration_since(now);
        let wait = self.backoff.left(now).map_or(due, |left| left.min(due));
        let event = tokio::select! {
            event = next(&mut self.client) => Some(event),
            changed = wish.changed() => {
                if changed.is_err() {
                    // The fleet is gone: the agent ends, and unmounts nothing.
                    std::future::pending::<()>().await;
                }
                None
            }
            () = told_or_never(self.session.as_mut().map(Session::changed)) => None,
            () = told_or_never(self.admission.as_mut().map(Admitted::changed)) => None,
            () = tokio::time::sleep(wait) => None,
        };
        match event {
            Some(Ok(event)) => self.on_event(event),
            Some(Err(error)) => self.detach(&error),
            None => {}
        }
        if Instant::now() >= self.heartbeat {
            self.heartbeat = Instant::now() + HEARTBEAT;
            self.beat().await;
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::DrainRequest => {
                tracing::info!(
                    pod = self.assignment.pod_name,
                    uid = self.uid,
                    "told to end"
                );
                self.ending = true;
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
                    let reason = crds::reason::Reason::MemoryUnavailable;
                    let failure = Failure::new(reason, message);
                    self.failure = Some((Action::Touch(index), failure));
                    self.backoff.fail(Instant::now());
                }
            }
        }
    }

    /// Shows the pool that its agent lives.
    pub(super) async fn beat(&mut self) {
        let request = match self.told {
            Some(serving) => Request::SetServing {
                serving,
                reason: self.serving_words(),
            },
            None => Request::GetRecord,
        };
        let Some(client) = &mut self.client else {
            return;
        };
        let beaten = match request {
            Request::GetRecord => client.record().await.map(|_| ()),
            request => client.tell(request).await,
        };
        if let Err(error) = beaten {
            self.detach(&error);
        }
    }

    pub(super) fn serving_words(&self) -> String {
        match (&self.failure, &self.session) {
            (Some((_, failure)), _) => failure.message.clone(),
            (None, Some(session)) => session.state().borrow().to_string(),
            (None, None) => "waiting for a master that serves".to_owned(),
        }
    }

    /// The hand-over connection is of no more use; the memory and what is served stay.
    pub(super) fn detach(&mut self, error: &handover::Error) {
        if self.client.take().is_some() && self.process.runs() {
            tracing::warn!(
                pod = self.assignment.pod_name, uid = self.uid, %error,
                "hand-over connection lost"
            );
        }
        self.attached = None;
        self.touching = None;
    }
}

/// The next event of a connection, or never.
async fn next(client: &mut Option<Client>) -> Result<Event, handover::Error> {
    match client {
        Some(client) => client.event().await,
        None => std::future::pending().await,
    }
}

/// News, or never where there is nobody to bring any.
async fn told_or_never(news: Option<impl Future<Output = ()>>) {
    match news {
        Some(news) => news.await,
        None => std::future::pending().await,
    }
}

//! The task of one pool pod: keeps an engine process running for it, sends it the assignment and the admitted
//! addresses, answers its calls, and passes its reports on. Parses nothing that the pod sends.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use admitted::{Admitted, members};
use crds::cluster;
use crds::node::{PoolAssignment, PoolReport};
use crds::reason::Reason;
use devices::backoff::WatchBackoff;
use engine_process::control::message::{
    ADDRESSES_LIMIT, Listed, PodAssignment, SilentThread, ToEngine,
};
use host::snapshot::{self, Shortage};
use pool::handover::record::Key;
use sys::net::Namespace;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::Level;

use super::engine_process::liveness::{SilentProcess, SilentThreads};
use super::engine_process::oom_kills;
use super::engine_process::{EngineProcess, EngineProcesses, PoolPod, StartError};
use super::lost_devices::LostDevices;
use super::memory_budget::{MemoryBudget, PoolId, to_touch};
use super::mounts::Mounts;
use super::pauses::Pauses;
use super::processes::{PoolProcess, Process};
use super::transport::{self, NodePorts, Running, Transport, Verdict};
use crate::facts::inbox::Inbox;
use crate::publish::report::Reporter;

mod calls;
mod messages;
mod pace;

use pace::Pace;

/// Silence after which an engine process is watched, and the period of the looks. It sends its counters every 2 seconds.
const SILENCE: Duration = Duration::from_secs(8);
const LOOKS: Duration = Duration::from_secs(2);

/// How long a killed engine process is waited for before the next start is tried.
const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// How long an engine process may take to unmount and end after its pool process.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// How long the end of a process may come after that of its connection.
const END_LAG: Duration = Duration::from_millis(100);

/// The same for one that the kernel ends: it may close the devices after the connection, and releases the registered memory then.
const DEVICES_LAG: Duration = Duration::from_secs(10);

/// Period in which an engine process follows the processors of its pool pod.
const CPUSET_PERIOD: Duration = Duration::from_secs(10);

/// Shared by the tasks of all pool pods.
pub(crate) struct Context {
    pub(crate) proc: PathBuf,
    pub(crate) key: Key,
    pub(crate) engines: EngineProcesses,
    pub(crate) budget: MemoryBudget,
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) reporter: Reporter,
    /// Where the processor time of engine processes is delivered. Absent without Kubernetes.
    pub(crate) inbox: Option<Inbox>,
    /// Absent without Kubernetes.
    pub(crate) kubernetes: Option<kube::Client>,
}

/// State of one pool pod.
struct Pod {
    context: Arc<Context>,
    uid: String,
    process: Process,
    network: Arc<Namespace>,
    assignment: PodAssignment,
    admission: Option<Admitted>,
    /// The last report of the engine process.
    reported: Option<PoolReport>,
    /// Its silent data threads, as reported since the last look.
    silent: Option<Vec<SilentThread>>,
    /// RDMA devices that do not work any more in the engine process.
    lost: LostDevices,
    /// Since when the policy excludes an RDMA device over which the pod is served.
    excluded_since: Option<Instant>,
    /// How long the engine process took to register the pool.
    registration_seconds: Option<u64>,
    /// Why the last engine process was killed, until another one serves.
    hung: Option<String>,
    /// The ID of the engine process that is to be replaced, and why, until another one serves.
    replace: Option<(u32, String)>,
    /// How much more its engine processes may send.
    pace: Pace,
    /// When an engine process has served the pod last, or was found, as far as this agent knows.
    last_served: Option<Instant>,
}

/// Why an engine process no longer serves.
enum End {
    /// It has ended.
    Ended,
    /// It, or one of its data threads, is silent for this cause.
    Hung(String),
    /// Another one is to serve, for this cause: for example, its ports have changed.
    Replaced(String),
    /// Its connection failed; it may still run.
    Disconnected(pool::handover::Error),
}

/// Serves one pool pod until its process has ended and its memory is released. `known` is its last assignment.
pub(crate) async fn run(
    context: Arc<Context>,
    found: PoolProcess,
    known: PoolAssignment,
    mut assigned: watch::Receiver<Option<PodAssignment>>,
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
    let pid = found.pid;
    // Masters may have keys of it, also if the engine process ended without an agent.
    let last_served = context.mounts.has(&uid, pid).then(Instant::now);
    context.mounts.set_served(&uid, pid, true);
    context.engines.folders().save(&known).await;
    tracing::info!(
        namespace = known.namespace,
        pid = found.pid,
        "found a pool pod"
    );
    let mut pod = Pod {
        uid: uid.clone(),
        process,
        network: Arc::new(network),
        assignment: PodAssignment {
            listed: Listed::Unknown,
            pool: known,
        },
        admission: None,
        reported: None,
        silent: None,
        lost: LostDevices::default(),
        excluded_since: None,
        registration_seconds: None,
        hung: None,
        replace: None,
        pace: Pace::default(),
        last_served,
        context: Arc::clone(&context),
    };
    pod.keep_served(&mut assigned).await;
    context.engines.wait_for_end(&uid).await;
    context.mounts.set_served(&uid, pid, false);
    context.budget.ended(&uid);
    context.engines.folders().remove(&uid);
    context.reporter.retain_pools(|known| *known != uid);
    tracing::info!("the pool pod has ended");
}

impl Context {
    /// Delivers what is known of the engine process of a pod; `None` while it has none.
    fn deliver(&self, pod_uid: &str, engine: Option<snapshot::Engine>) {
        let Some(inbox) = &self.inbox else { return };
        inbox.send_if_modified(|observed| {
            let engines = &mut observed.engines;
            if engines.get(pod_uid) == engine.as_ref() {
                return false;
            }
            match engine {
                Some(engine) => engines.insert(pod_uid.to_owned(), engine),
                None => engines.remove(pod_uid),
            };
            true
        });
    }
}

impl Pod {
    async fn keep_served(&mut self, assigned: &mut watch::Receiver<Option<PodAssignment>>) {
        let now = assigned.borrow_and_update().clone();
        self.assign(now).await;
        let client = self.context.kubernetes.clone();
        let of = &self.assignment.pool;
        let selector = members(&of.cluster);
        self.admission = client.map(|client| {
            let backoff = WatchBackoff::default();
            Admitted::watch(client, &of.namespace, &selector, backoff)
        });
        let mut pauses = Pauses::default();
        let mut failures = Failures::default();
        while self.process.runs() {
            let pod = PoolPod {
                uid: &self.uid,
                process: &self.process,
                size: self.assignment.pool.size.0,
                page_size: self.assignment.pool.page_size,
                transport: self.transport(),
                replace: self.replace.as_ref(),
            };
            let obtained = self.context.engines.obtain(&pod, &mut self.last_served);
            let engine = match obtained.await {
                Ok(engine) => engine,
                Err(error) => {
                    failures.log(&error);
                    let message = not_served(&error, self.hung.as_deref());
                    self.report(reason(&error), message);
                    let pause = match error {
                        // `obtain` has waited, and goes on to.
                        StartError::Starved => Duration::ZERO,
                        _ => pauses.after_failed_start(),
                    };
                    self.pause(pause, assigned).await;
                    continue;
                }
            };
            tracing::info!(
                pid = engine.pid,
                adopted = engine.adopted,
                "an engine process serves the pool pod"
            );
            failures = Failures::default();
            self.hung = None;
            self.replace = None;
            let begun = Instant::now();
            let kills = self.context.engines.oom_kills(&engine);
            let end = self.serve(&engine, assigned).await;
            self.last_served = Some(Instant::now());
            self.context.deliver(&self.uid, None);
            match end {
                End::Ended if !self.process.runs() => return,
                End::Ended => {
                    let cause = match kills.rose() {
                        true => oom_kills::KILLED.to_owned(),
                        false => engine.panic_message().unwrap_or_default(),
                    };
                    tracing::warn!(
                        pid = engine.pid,
                        cause,
                        "the engine process ended: replacing it"
                    );
                    let message = format!("the engine process ended and is replaced. {cause}");
                    self.report(Reason::EngineNotRunning, message.trim().to_owned());
                }
                End::Hung(cause) => {
                    let cause = engine.hung(cause);
                    let message = self.killed(&cause);
                    tracing::warn!(pid = engine.pid, message);
                    self.report(Reason::EngineHung, message);
                    self.hung = Some(cause);
                    engine.kill();
                    let _ = timeout(KILL_DEADLINE, engine.ended()).await;
                }
                // Ended by `obtain`.
                End::Replaced(cause) => {
                    self.lost.replaced(Instant::now());
                    self.replace = Some((engine.pid, cause));
                }
                End::Disconnected(error) => {
                    tracing::warn!(pid = engine.pid, %error, "the connection to the engine process failed: connecting again");
                }
            }
            self.pause(pauses.after(begun.elapsed()), assigned).await;
        }
    }

    /// Waits before the next start.
    async fn pause(
        &mut self,
        pause: Duration,
        assigned: &mut watch::Receiver<Option<PodAssignment>>,
    ) {
        sleep(pause).await;
        let now = assigned.borrow_and_update().clone();
        self.assign(now).await;
    }

    /// Serves with one engine process until it ends.
    async fn serve(
        &mut self,
        engine: &EngineProcess,
        assigned: &mut watch::Receiver<Option<PodAssignment>>,
    ) -> End {
        match self.exchange(engine, assigned).await {
            // A process that has ended has closed its connection too.
            Err(error) => {
                let mut ended = timeout(END_LAG, engine.ended()).await;
                if ended.is_err() && engine.is_exiting() {
                    ended = timeout(DEVICES_LAG, engine.ended()).await;
                }
                match ended {
                    Ok(()) => End::Ended,
                    Err(_) => End::Disconnected(error),
                }
            }
            Ok(end) => end,
        }
    }

    async fn exchange(
        &mut self,
        engine: &EngineProcess,
        assigned: &mut watch::Receiver<Option<PodAssignment>>,
    ) -> Result<End, pool::handover::Error> {
        self.send_assignment(engine).await?;
        self.send_admission(engine).await?;
        self.reported = None;
        self.lost.forget();
        self.registration_seconds = None;
        let mut last_message = Instant::now();
        let mut threads = SilentThreads::default();
        let mut process: Option<SilentProcess> = None;
        let mut next_look = last_message + SILENCE;
        let mut pool_ended = None;
        let mut withheld = None;
        let mut processor_time = self.context.engines.processor_time(engine);
        let mut next_cpuset = Instant::now();
        loop {
            tokio::select! {
                received = self.pace.receive(engine.receive()) => {
                    last_message = Instant::now();
                    next_look = last_message + SILENCE;
                    process = None;
                    self.receive(engine, received?).await?;
                    let silent = self.silent.take();
                    let hung = match silent {
                        Some(silent) => threads.look(engine.pid, silent).await,
                        None => None,
                    };
                    if let Some(hung) = hung {
                        return Ok(End::Hung(hung.describe(engine.pid).await));
                    }
                }
                changed = assigned.changed() => {
                    if changed.is_err() {
                        // This agent ends. The engine process goes on.
                        return std::future::pending().await;
                    }
                    let now = assigned.borrow_and_update().clone();
                    self.assign(now).await;
                    self.send_assignment(engine).await?;
                }
                () = changed(self.admission.as_mut()) => self.send_admission(engine).await?,
                () = tokio::time::sleep_until(next_look) => {
                    next_look += LOOKS;
                    let hung = match &mut process {
                        Some(watched) => watched.look(engine.pid, last_message.elapsed()),
                        None => {
                            process = Some(SilentProcess::begin(engine.pid));
                            None
                        }
                    };
                    if let Some(hung) = hung {
                        return Ok(End::Hung(hung.describe(engine.pid).await));
                    }
                }
            }
            self.deliver_shortage(processor_time.look(std::time::Instant::now()));
            if next_cpuset <= Instant::now() && self.process.runs() {
                self.context.engines.follow_cpuset(&self.process);
                next_cpuset = Instant::now() + CPUSET_PERIOD;
            }
            let verdict = self.judge(engine);
            match &verdict {
                Verdict::Replace(cause) => return Ok(End::Replaced(cause.clone())),
                // A former agent may have withheld others.
                Verdict::Keep {
                    withheld: devices, ..
                } if withheld.as_ref() != Some(devices) => {
                    self.withhold(engine, devices).await?;
                    withheld = Some(devices.clone());
                }
                Verdict::Keep { .. } | Verdict::Unproved(_) => {}
            }
            self.publish(engine, verdict);
            if !self.process.runs() {
                let since = *pool_ended.get_or_insert_with(Instant::now);
                if since.elapsed() > END_DEADLINE {
                    let cause = format!(
                        "the engine process did not end within {END_DEADLINE:?} after its pool process"
                    );
                    return Ok(End::Hung(cause));
                }
            }
        }
    }

    /// Judges the engine process by what is known of it and of the ports of the node.
    fn judge(&mut self, engine: &EngineProcess) -> Verdict {
        let (transport, now) = (self.transport(), Instant::now());
        self.lost.leave(transport.left(&engine.rdma), now);
        if !transport.excludes(&engine.rdma) {
            self.excluded_since = None;
        } else if self.excluded_since.is_none() {
            self.excluded_since = Some(now);
        }
        let delay = transport::exclusion_delay(self.context.engines.node_name(), &self.uid);
        transport.judge(Running {
            ports: &engine.rdma,
            outdated: engine.outdated,
            lost: &self.lost,
            since: engine.connected,
            now,
            registration_seconds: self.registration_seconds,
            exclusion_due: (self.excluded_since)
                .is_some_and(|since| now.duration_since(since) >= delay),
        })
    }

    /// Delivers why its engine process gets too little processor time.
    fn deliver_shortage(&self, shortage: Option<Shortage>) {
        let of = &self.assignment.pool;
        let engine = snapshot::Engine {
            namespace: of.namespace.clone(),
            pod: of.pod_name.clone(),
            shortage,
        };
        self.context.deliver(&self.uid, Some(engine));
    }

    /// Lets a process publish its devices without these.
    async fn withhold(
        &self,
        engine: &EngineProcess,
        devices: &BTreeSet<String>,
    ) -> Result<(), pool::handover::Error> {
        if engine.rdma.is_empty() {
            return Ok(());
        }
        if !devices.is_empty() {
            tracing::warn!(
                pid = engine.pid,
                ?devices,
                "peers may not reach these RDMA devices: no longer published"
            );
        }
        let devices = devices.clone();
        engine.send(&ToEngine::Withhold { devices }, None).await
    }

    /// How peers are to be served now. A transport that this release does not know is TCP.
    fn transport(&self) -> Transport {
        let assigned = self.assignment.pool.transport.and_then(|word| word.known());
        match assigned {
            Some(cluster::Transport::Rdma) => {
                let report = self.context.reporter.subscribe();
                let report = report.borrow();
                let blocking = self.context.engines.blocking(&self.uid);
                let node = report.hcas.as_ref().map(|(lines, _)| NodePorts {
                    lines: transport::without_blocking(lines.clone(), &blocking),
                    devices: report.present.clone(),
                    policy_known: report.policy_known,
                    awaited: report.awaits(Instant::now()).map(str::to_owned),
                });
                Transport::Rdma(node, self.context.engines.rdma_class())
            }
            Some(cluster::Transport::Tcp) | None => Transport::Tcp,
        }
    }

    /// Applies an assignment, and stores it for a successor that cannot reach the API server.
    async fn assign(&mut self, assigned: Option<PodAssignment>) {
        let Some(assignment) = assigned else { return };
        if assignment.listed == Listed::Yes && assignment.pool != self.assignment.pool {
            let folders = self.context.engines.folders();
            folders.save(&assignment.pool).await;
        }
        self.assignment = assignment;
    }

    async fn send_assignment(&self, engine: &EngineProcess) -> Result<(), pool::handover::Error> {
        let assignment = Box::new(self.assignment.clone());
        engine.send(&ToEngine::Assign { assignment }, None).await
    }

    /// Sends the admitted addresses once they are known.
    async fn send_admission(&self, engine: &EngineProcess) -> Result<(), pool::handover::Error> {
        let Some(addresses) = self.admission.as_ref().and_then(Admitted::now) else {
            return Ok(());
        };
        for message in admission(&addresses) {
            engine.send(&message, None).await?;
        }
        Ok(())
    }

    /// The message of an engine process that is killed.
    fn killed(&self, cause: &str) -> String {
        let PoolAssignment {
            namespace,
            pod_name,
            ..
        } = &self.assignment.pool;
        let node = self.context.engines.node_name();
        format!(
            "{cause}. It served the pool pod {namespace}/{pod_name} on node {node}; it is killed and replaced"
        )
    }

    /// Reports that no engine process serves the pod.
    fn report(&self, reason: Reason, message: String) {
        let of = &self.assignment.pool;
        let report = PoolReport::waiting(of, reason, message);
        self.context.reporter.set_pool(report, of);
        self.context.reporter.set_traffic(&self.uid, None);
    }
}

/// Divides the admitted addresses into messages.
fn admission(addresses: &BTreeSet<IpAddr>) -> Vec<ToEngine> {
    let all: Vec<IpAddr> = addresses.iter().copied().collect();
    let mut messages: Vec<ToEngine> = all
        .chunks(ADDRESSES_LIMIT)
        .map(|part| ToEngine::Admit {
            addresses: part.to_vec(),
            last: false,
        })
        .collect();
    match messages.last_mut() {
        Some(ToEngine::Admit { last, .. }) => *last = true,
        _ => messages.push(ToEngine::Admit {
            addresses: Vec::new(),
            last: true,
        }),
    }
    messages
}

/// Failed attempts to get an engine process, until one serves.
#[derive(Default)]
struct Failures {
    /// The last message of one that is expected for a time.
    expected: Option<String>,
}

impl Failures {
    fn log(&mut self, error: &StartError) {
        match self.level(error) {
            Some(Level::INFO) => tracing::info!(%error, "the pool pod waits: retrying"),
            Some(_) => tracing::warn!(%error, "no engine process serves the pool pod: retrying"),
            None => {}
        }
    }

    /// The level at which a failure is logged: one that is expected, as after a start of the agent, once for each message.
    fn level(&mut self, error: &StartError) -> Option<Level> {
        let is_expected = matches!(
            error,
            StartError::PortsPending(_) | StartError::OtherProtocol { .. }
        );
        let message = is_expected.then(|| error.to_string());
        let is_known = is_expected && self.expected == message;
        self.expected = message;
        match is_expected {
            false => Some(Level::WARN),
            true => (!is_known).then_some(Level::INFO),
        }
    }
}

/// The message while no engine process serves. `hung`: why the last one was killed.
fn not_served(error: &StartError, hung: Option<&str>) -> String {
    match hung {
        Some(cause) => format!("{error}; the last one was killed: {cause}; retrying"),
        None => format!("{error}; retrying"),
    }
}

fn reason(error: &StartError) -> Reason {
    match error {
        StartError::NoAnswer(_) | StartError::Unreachable | StartError::NotEnded => {
            Reason::EngineHung
        }
        StartError::Blocked(_) => Reason::DeviceHung,
        StartError::Starved => Reason::EngineThrottled,
        StartError::Prepare(_) | StartError::Start(_) => Reason::EngineNotRunning,
        StartError::PortsPending(_) | StartError::OtherProtocol { .. } => Reason::Progressing,
        StartError::NoRdmaPort(_) => Reason::NoUsableTransport,
    }
}

/// Waits for a change of the admitted addresses; forever without Kubernetes.
async fn changed(admission: Option<&mut Admitted>) {
    match admission {
        Some(admission) => admission.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_that_does_not_end_keeps_the_cause_of_its_kill() {
        let message = not_served(&StartError::NotEnded, Some("data thread 0 is blocked"));
        assert_eq!(
            message,
            "an earlier engine process of this pod was killed and has not ended within 5s; \
             the last one was killed: data thread 0 is blocked; retrying"
        );
        assert_eq!(reason(&StartError::NotEnded), Reason::EngineHung);
        let other = StartError::Start("no memory".to_owned());
        assert!(not_served(&other, None).ends_with("no memory; retrying"));
    }

    #[test]
    fn a_wait_that_is_expected_is_logged_once_for_each_message_and_no_warning() {
        let mut failures = Failures::default();
        let mut level = |error| failures.level(&error);
        let pending = |why: &str| StartError::PortsPending(why.to_owned());
        let foreign = || StartError::OtherProtocol {
            sent: "it has 9".to_owned(),
        };
        assert_eq!(level(foreign()), Some(Level::INFO));
        assert_eq!(level(foreign()), None);
        assert_eq!(level(pending("a")), Some(Level::INFO));
        assert_eq!(level(pending("a")), None);
        assert_eq!(level(pending("b")), Some(Level::INFO));
        for _ in 0..2 {
            assert_eq!(level(StartError::NotEnded), Some(Level::WARN));
        }
        assert_eq!(level(pending("b")), Some(Level::INFO));
    }

    #[test]
    fn admitted_addresses_are_sent_in_parts_and_none_as_an_empty_list() {
        let many: BTreeSet<IpAddr> = (0..2_500_u32)
            .map(|n| IpAddr::from((0xc612_0000 + n).to_be_bytes()))
            .collect();
        let mut sent = BTreeSet::new();
        let mut ends = Vec::new();
        for message in admission(&many) {
            if let ToEngine::Admit { addresses, last } = message {
                sent.extend(addresses);
                ends.push(last);
            }
        }
        assert_eq!((sent, ends), (many, vec![false, false, true]));
        let none = ToEngine::Admit {
            addresses: Vec::new(),
            last: true,
        };
        assert_eq!(admission(&BTreeSet::new()), [none]);
    }
}

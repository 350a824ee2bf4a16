//! The engine processes of this node: finds the one that an earlier agent started for a pool pod, or starts one, and
//! holds it by its pidfd and its control socket.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use crds::cluster::PageSize;
use crds::names::MASTER_CLIENT_TTL_SECONDS;
use crds::node::HcaLine;
use crds::pool_memory;
use crds::text::clip_chars;
use engine_process::control::message::{self, FromEngine, PROTOCOL, RdmaPort, ToEngine};
use engine_process::pidfd::Pidfd;
use engine_process::start;
use parking_lot::Mutex;
use pool::handover::Connection;
use sys::net::seqpacket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::lost_devices::LostDevices;
use super::processes::Process;
use super::transport::{self, Running, Transport, Verdict};
use crate::args::{RdmaClass, Settings};

mod cgroup;
mod end;
mod first_message;
mod folder;
pub(super) mod liveness;
pub(super) mod oom_kills;
pub(super) mod processor_time;
mod program;
mod remains;
mod unreachable;

use first_message::HELLO;
use folder::{Folder, Folders};
use liveness::SilentProcess;
use oom_kills::OomKills;
use processor_time::ProcessorTime;
use program::Program;
use remains::{Blocked, StartGroup};

/// Limit for the start: until the process listens in its sandbox.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// Limit for the end of a killed process. It may be longer where the kernel does not let the process go.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// Period of the look at a process that is about to end.
const END_PERIOD: Duration = Duration::from_millis(10);

/// How long a message may wait for the process to make room.
const SEND_DEADLINE: Duration = Duration::from_secs(2);

/// Limit for the end of a process that passes its connections on. Requests that have begun get a second of it.
const PASS_DEADLINE: Duration = Duration::from_secs(3);

/// How long connections that were passed on wait for a process that serves them: stock clients give up a transfer then.
const PASSED_KEPT: Duration = Duration::from_secs(30);

/// Limit for unmounting the segments of an ended pool pod, by its engine process or by a child.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(10);

/// Longest message of a failed start or of a panic, in bytes.
const MESSAGE_LIMIT: u64 = 4 << 10;

/// Masters drop the keys of a pool pod that no engine process has served for so long.
const KEYS_KEPT: Duration = Duration::from_secs(MASTER_CLIENT_TTL_SECONDS as u64);

/// Most characters of a text that an engine program has written.
const MAX_CHARS: usize = 1_000;

/// How much more likely than its pool process an engine process is killed where memory is short. It can be replaced.
const OOM_SCORE_BEYOND_POOL: i32 = 10;

/// The user IDs of engine processes begin here: far above those of accounts and of containers.
const FIRST_UID: u32 = 0x4000_0000;

/// What a start needs to know of the pool pod.
pub(crate) struct PoolPod<'a> {
    pub(crate) uid: &'a str,
    pub(crate) process: &'a Process,
    /// Bytes of the pool, and its page size.
    pub(crate) size: u64,
    pub(crate) page_size: PageSize,
    pub(crate) transport: Transport,
    /// The ID of a process that is to be replaced, and why: what was learned of it while it served is not known here.
    pub(crate) replace: Option<&'a (u32, String)>,
}

/// Why no engine process serves a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("cannot prepare the engine process: {0}")]
    Prepare(io::Error),
    #[error("the engine process did not start: {0}")]
    Start(String),
    #[error(
        "an earlier engine process of this pod was killed and has not ended within {END_DEADLINE:?}"
    )]
    NotEnded,
    #[error(
        "opening the RDMA device {0} has blocked the start of the engine process for {START_DEADLINE:?}: the next start is without it until that call ends"
    )]
    Blocked(String),
    #[error("the engine process does not answer: {0}")]
    NoAnswer(String),
    #[error("the control socket of the engine process accepts no connection")]
    Unreachable,
    #[error(
        "the engine process waits for a processor and has sent nothing yet: it is not replaced"
    )]
    Starved,
    #[error("the pool is to be served over RDMA: {0}")]
    NoRdmaPort(String),
    #[error("the pool is to be served over RDMA: {0}")]
    PortsPending(String),
    #[error(
        "the engine process does not speak version {PROTOCOL} of the protocol ({sent}): it goes on without this agent until RDMA is proved for a successor, for at most {} s",
        transport::PROOF.as_secs()
    )]
    OtherProtocol { sent: String },
}

/// The settings of engine processes, and those that have sent nothing yet.
#[derive(Debug)]
pub(crate) struct EngineProcesses {
    folders: Folders,
    /// When this agent began.
    started: Instant,
    /// By pod UID, held for the next attempt: the backlog of a control socket is short.
    starved: Mutex<BTreeMap<String, EngineProcess>>,
    /// Processes with another version of the protocol, by pod UID: their IDs, and since when they are known.
    foreign: Mutex<BTreeMap<String, (u32, Instant)>>,
    /// Connections that a process has passed on and no other one has got yet, by pod UID.
    passed: Mutex<BTreeMap<String, Passed>>,
    /// Processes of failed starts that a device still blocks, by pod UID.
    blocked: Mutex<BTreeMap<String, Vec<Blocked>>>,
    program: Program,
    /// Root folder of the node.
    host_root: PathBuf,
    /// Network namespace of the node, if it is not the agent's.
    host_network: Option<PathBuf>,
    node_name: String,
    data_threads: usize,
    log: String,
    rdma_class: RdmaClass,
}

/// The connections that an engine process has passed on.
#[derive(Debug)]
struct Passed {
    /// The socket that has them.
    connections: OwnedFd,
    since: Instant,
}

/// A running engine process with a connection to it.
#[derive(Debug)]
pub(crate) struct EngineProcess {
    pub(crate) pid: u32,
    process: Pidfd,
    connection: Connection,
    pub(crate) connected: Instant,
    /// Watched while its first message is late.
    silent: Option<SilentProcess>,
    folder: Folder,
    /// The ports over which it serves peers. None: it serves them over TCP.
    pub(crate) rdma: Vec<RdmaPort>,
    /// It was started by an earlier agent or for an earlier connection.
    pub(crate) adopted: bool,
    /// Its program is not that of this agent.
    pub(crate) outdated: bool,
}

impl EngineProcesses {
    /// Prepares the folder of all engine processes, and their program.
    ///
    /// # Errors
    /// The folder cannot be created, or the program is not beside the agent's.
    pub(crate) fn open(settings: &Settings) -> io::Result<Self> {
        let folders = Folders::open(&settings.state_dir)?;
        let root = settings.engine_libraries.as_deref();
        Ok(Self {
            program: Program::install(folders.path(), &beside_agent()?, root)?,
            folders,
            started: Instant::now(),
            starved: Mutex::default(),
            foreign: Mutex::default(),
            passed: Mutex::default(),
            blocked: Mutex::default(),
            host_root: settings.host_root.clone(),
            host_network: settings.host_network.clone(),
            node_name: settings.node_name.clone(),
            data_threads: settings.engine().data_threads,
            log: settings.log.clone(),
            rdma_class: settings.rdma_class(),
        })
    }

    /// The folders of pool pods that earlier agents served.
    pub(crate) fn folders(&self) -> &Folders {
        &self.folders
    }

    pub(crate) fn node_name(&self) -> &str {
        &self.node_name
    }

    pub(crate) fn rdma_class(&self) -> RdmaClass {
        self.rdma_class
    }

    /// Begins to watch the processor time of a process.
    pub(crate) fn processor_time(&self, engine: &EngineProcess) -> ProcessorTime {
        ProcessorTime::begin(engine.pid, &self.host_root)
    }

    /// Begins to count how often the kernel kills a process because memory is short.
    pub(crate) fn oom_kills(&self, engine: &EngineProcess) -> OomKills {
        OomKills::begin(engine.pid, &self.host_root)
    }

    /// Lets the engine process of a pod run on the processors that its pool container has now.
    pub(crate) fn follow_cpuset(&self, pool: &Process) {
        let followed = (pool.cgroup()).and_then(|text| cgroup::follow(&self.host_root, &text));
        if let Err(error) = followed {
            tracing::warn!(%error, "the engine process does not follow the processors of its pool pod");
        }
    }

    /// Connects to the engine process of a pod; starts one if none runs, or if the one that runs serves peers over another
    /// transport, is to be replaced, or is not this agent's program while a successor can be started. It passes its TCP
    /// connections to its successor. `last_served` is when one was known last: also one that is found here and cannot be used
    /// has served the pod, and masters have its keys.
    ///
    /// # Errors
    /// Why none serves the pod. Trying again may help.
    pub(crate) async fn obtain(
        &self,
        pod: &PoolPod<'_>,
        last_served: &mut Option<Instant>,
    ) -> Result<EngineProcess, StartError> {
        let folder = self.folders.of(pod.uid);
        self.passed
            .lock()
            .retain(|_, passed| passed.since.elapsed() < PASSED_KEPT);
        let starved = self.starved.lock().remove(pod.uid);
        let found = match starved {
            Some(process) => Ok(Some(process)),
            None => find(&folder),
        };
        if !matches!(found, Ok(None)) {
            *last_served = Some(Instant::now());
        }
        let running = match found {
            Err(StartError::Unreachable) => unreachable::wait(&folder, uid(pod.uid), HELLO).await?,
            found => found?,
        };
        if let Some(mut running) = running {
            running.outdated = !self.program.is_of(running.pid);
            let answers = running.greet(HELLO).await;
            if matches!(answers, Err(StartError::Starved)) {
                return Err(self.hold(pod.uid, running));
            }
            if matches!(answers, Err(StartError::OtherProtocol { .. })) {
                let since = self.foreign_since(pod.uid, running.pid);
                let transport = &pod.transport;
                if transport.keeps_foreign(&running.rdma, since, Instant::now()) {
                    return answers.map(|()| running);
                }
            }
            let Some(cause) = unfit(&running, &answers, pod) else {
                if running.outdated {
                    tracing::info!(
                        pid = running.pid,
                        "the engine process is of another release: it goes on until the ports and the policy of the node are read and RDMA is proved for a successor"
                    );
                }
                self.hand_over(pod.uid, &running).await;
                return Ok(running);
            };
            tracing::info!(pid = running.pid, cause, "replacing the engine process");
            if answers.is_ok() {
                match running.pass_on().await {
                    Ok(connections) => {
                        let since = Instant::now();
                        let passed = Passed { connections, since };
                        // Those of an earlier process that this one was not given are all there are.
                        let mut kept = self.passed.lock();
                        kept.entry(pod.uid.to_owned()).or_insert(passed);
                    }
                    Err(error) => {
                        tracing::warn!(pid = running.pid, %error, "the connections of peers end");
                    }
                }
            }
            running.kill();
            if timeout(END_DEADLINE, running.ended()).await.is_err() {
                return Err(StartError::NotEnded);
            }
        }
        let idle = is_idle(*last_served, Instant::now());
        self.start(pod, &folder, idle).await?;
        let started = connect(&folder, false).map_err(StartError::Prepare)?;
        let ended = || StartError::NoAnswer("it has ended".to_owned());
        let mut started = started.ok_or_else(ended)?;
        match started.greet(HELLO).await {
            Ok(()) => {}
            Err(StartError::Starved) => return Err(self.hold(pod.uid, started)),
            Err(error) => return Err(error),
        }
        self.hand_over(pod.uid, &started).await;
        Ok(started)
    }

    /// Returns since when a process is known that speaks another version of the protocol.
    fn foreign_since(&self, pod_uid: &str, pid: u32) -> Instant {
        let mut foreign = self.foreign.lock();
        let known = foreign.entry(pod_uid.to_owned());
        let known = known.or_insert_with(|| (pid, Instant::now()));
        if known.0 != pid {
            *known = (pid, Instant::now());
        }
        known.1
    }

    /// Keeps a process for the next attempt.
    fn hold(&self, pod_uid: &str, process: EngineProcess) -> StartError {
        self.starved.lock().insert(pod_uid.to_owned(), process);
        StartError::Starved
    }

    /// Lets a process serve the connections that a former one of its pod has passed on.
    async fn hand_over(&self, pod_uid: &str, to: &EngineProcess) {
        let passed = self.passed.lock().remove(pod_uid);
        let Some(Passed { connections, .. }) = passed else {
            return;
        };
        if let Err(error) = to.send(&ToEngine::TakeOver, Some(connections)).await {
            tracing::warn!(pid = to.pid, %error, "the connections of peers end");
        }
    }

    /// Waits until no engine process of a pod whose pool process has ended runs any more: until then it may hold the pod's
    /// memory. It ends by itself when it has unmounted; one that does not is killed.
    pub(crate) async fn wait_for_end(&self, pod_uid: &str) {
        self.passed.lock().remove(pod_uid);
        self.foreign.lock().remove(pod_uid);
        let held = self.starved.lock().remove(pod_uid);
        end::wait(&self.folders.of(pod_uid), uid(pod_uid), held).await;
    }

    /// Returns the devices that still block processes of failed starts for a pod.
    pub(crate) fn blocking(&self, pod_uid: &str) -> BTreeSet<String> {
        let mut blocked = self.blocked.lock();
        // Also those of pods that have ended.
        blocked.retain(|_, of_pod| {
            of_pod.retain(Blocked::runs);
            !of_pod.is_empty()
        });
        let of_pod = blocked.get(pod_uid).into_iter().flatten();
        of_pod.map(|one| one.device.clone()).collect()
    }

    /// Starts an engine process, and waits until it listens in its sandbox. `idle`: masters have no keys of the pod.
    async fn start(
        &self,
        pod: &PoolPod<'_>,
        folder: &Folder,
        idle: bool,
    ) -> Result<(), StartError> {
        let devices = match &pod.transport {
            Transport::Tcp => Vec::new(),
            Transport::Rdma(node, class) => {
                let up = self.started.elapsed();
                if let Some(why) = transport::pending(node.as_ref(), *class, idle, up) {
                    return Err(StartError::PortsPending(why));
                }
                let lines = node.as_ref().map(|node| node.lines.as_slice());
                self.devices(lines, *class)?
            }
        };
        folder.clear().map_err(StartError::Prepare)?;
        let cgroups = self.cgroups(pod);
        self.end_remains(pod.uid, &cgroups).await?;
        let mut command = self.serve(pod, folder, &cgroups);
        let mut child = command.args(devices).spawn().map_err(StartError::Prepare)?;
        let group = StartGroup::of(child.id());
        // The process closes its standard error when it is in its sandbox.
        let mut written = Vec::new();
        let started = async {
            if let Some(stderr) = child.stderr.take() {
                // What has been read stays also if the deadline ends this.
                stderr.take(MESSAGE_LIMIT).read_to_end(&mut written).await?;
            }
            child.wait().await
        };
        let started = timeout(START_DEADLINE, started).await;
        let written = String::from_utf8_lossy(&written);
        let failure = start::failure(&written);
        match started {
            Ok(Ok(status)) if status.success() && failure.is_empty() => {
                group.keep();
                Ok(())
            }
            Ok(Ok(status)) => Err(StartError::Start(format!("{failure} ({status})"))),
            Ok(Err(error)) => Err(StartError::Start(error.to_string())),
            Err(_) => Err(self.not_ready(pod.uid, &written, &group, &cgroups)),
        }
    }

    /// Prepares the cgroups of the engine process of a pod; none where it has to run in the agent's.
    fn cgroups(&self, pod: &PoolPod<'_>) -> Vec<PathBuf> {
        let limits = cgroup::Limits {
            pod: pool_memory::pod_limit(pod.size, pod.page_size),
            engine: pool_memory::engine_limit(pod.size, pod.page_size),
        };
        let cgroups = pod
            .process
            .cgroup()
            .and_then(|text| cgroup::create(&self.host_root, &text, limits));
        cgroups.unwrap_or_else(|error| {
            tracing::warn!(%error, "the engine process runs in the agent's cgroup: its memory and time are the agent's");
            Vec::new()
        })
    }

    /// Ends what is left of earlier starts in the cgroups of a pod that no engine process serves now: it would never be found
    /// again.
    async fn end_remains(&self, pod_uid: &str, cgroups: &[PathBuf]) -> Result<(), StartError> {
        // One that a device blocks was killed before it could get the memory of the pool.
        let blocked = |pid| {
            let blocked = self.blocked.lock();
            let of_pod = blocked.get(pod_uid).into_iter().flatten();
            of_pod.into_iter().any(|one| one.has(pid))
        };
        if remains::end(cgroups, blocked, END_DEADLINE).await {
            Ok(())
        } else {
            Err(StartError::NotEnded)
        }
    }

    /// The command that serves a pod.
    fn serve(&self, pod: &PoolPod<'_>, folder: &Folder, cgroups: &[PathBuf]) -> Command {
        let score = pod.process.oom_score_adj().unwrap_or_default();
        let mut command = self.program.command();
        command
            .arg("serve")
            .args(["--node-name", &self.node_name])
            .args(["--pod-uid", pod.uid])
            .args(["--pool-pid", &pod.process.pid.to_string()])
            .arg("--network")
            .arg(pod.process.network_path())
            .arg("--control")
            .arg(folder.control())
            .arg("--panic-file")
            .arg(folder.panic())
            .arg(format!(
                "--oom-score-adj={}",
                (score + OOM_SCORE_BEYOND_POOL).min(1000)
            ))
            .args(["--data-threads", &self.data_threads.to_string()])
            .args(["--log", &self.log])
            .args(["--uid", &uid(pod.uid).to_string()]);
        for folder in cgroups {
            command.arg("--cgroup").arg(folder);
        }
        command
            // Signals to the agent's group are not for it, and one to its own group ends all of a failed start.
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    /// Returns why a start has failed whose process is not ready in time, and holds what a device blocks of it.
    fn not_ready(
        &self,
        pod_uid: &str,
        written: &str,
        group: &StartGroup,
        cgroups: &[PathBuf],
    ) -> StartError {
        if let Some(device) = start::opens(written) {
            let left = Blocked::of(device, group, cgroups);
            let mut blocked = self.blocked.lock();
            blocked.entry(pod_uid.to_owned()).or_default().push(left);
            return StartError::Blocked(device.to_owned());
        }
        StartError::Start(format!(
            "it is not ready after {START_DEADLINE:?}{}",
            start::unfinished(written)
        ))
    }

    /// The arguments by which a process opens devices.
    fn devices(
        &self,
        lines: Option<&[HcaLine]>,
        class: RdmaClass,
    ) -> Result<Vec<OsString>, StartError> {
        let ports = transport::choose(lines, class).map_err(StartError::NoRdmaPort)?;
        let libraries = self.program.libraries().ok_or_else(|| {
            let why = "this agent was started without --engine-libraries".to_owned();
            StartError::NoRdmaPort(why)
        })?;
        let mut arguments = Vec::<OsString>::new();
        for port in ports {
            arguments.extend(["--rdma".into(), port.argument().into()]);
        }
        arguments.extend(["--libraries".into(), libraries.into()]);
        arguments.extend(["--host-root".into(), (&self.host_root).into()]);
        if let Some(network) = &self.host_network {
            arguments.extend(["--host-network".into(), network.into()]);
        }
        Ok(arguments)
    }

    /// Unmounts the segments of a pool pod that has ended, by a child without rights.
    ///
    /// # Errors
    /// Why segments may still be mounted.
    pub(crate) async fn unmount(&self, mount: &message::Mount) -> Result<(), String> {
        let run = async {
            let mut child = self
                .program
                .command()
                .args(["unmount", "--uid", &FIRST_UID.to_string()])
                .stdin(Stdio::piped())
                .spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(&serde_json::to_vec(mount)?).await?;
            }
            child.wait_with_output().await
        };
        let output = timeout(UNMOUNT_DEADLINE, run).await;
        let output = output
            .map_err(|_| format!("not within {UNMOUNT_DEADLINE:?}"))?
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr);
        Err(clip_chars(message.trim(), MAX_CHARS))
    }
}

impl EngineProcess {
    /// Sends one message.
    pub(crate) async fn send(
        &self,
        message: &ToEngine,
        socket: Option<OwnedFd>,
    ) -> Result<(), pool::handover::Error> {
        let socket = socket.as_ref().map(AsFd::as_fd);
        let descriptors = socket.as_slice();
        self.connection
            .send(message, descriptors, SEND_DEADLINE)
            .await
    }

    /// Logs a line of its log.
    pub(crate) fn log(&self, level: &str, line: &str) {
        match level {
            "ERROR" => tracing::error!(engine = self.pid, "{line}"),
            "WARN" => tracing::warn!(engine = self.pid, "{line}"),
            "DEBUG" => tracing::debug!(engine = self.pid, "{line}"),
            "TRACE" => tracing::trace!(engine = self.pid, "{line}"),
            _ => tracing::info!(engine = self.pid, "{line}"),
        }
    }

    /// Lets it pass its connections on and waits for its end. Returns the socket that has them for the successor.
    ///
    /// # Errors
    /// It was not notified: its connections end.
    async fn pass_on(&self) -> Result<OwnedFd, StartError> {
        let (theirs, successors) = seqpacket::pair().map_err(StartError::Prepare)?;
        let sent = self.send(&ToEngine::PassOn, Some(theirs)).await;
        sent.map_err(|error| StartError::NoAnswer(error.to_string()))?;
        let ended = async {
            while let Ok(message) = self.receive().await {
                if let FromEngine::Log { level, line } = message {
                    self.log(&level, &line);
                }
            }
            self.ended().await;
        };
        if timeout(PASS_DEADLINE, ended).await.is_err() {
            tracing::warn!(
                pid = self.pid,
                "the former engine process has not ended within {PASS_DEADLINE:?}: killing it"
            );
        }
        Ok(successors)
    }

    /// Waits for a message. Cancel-safe.
    pub(crate) async fn receive(&self) -> Result<FromEngine, pool::handover::Error> {
        self.connection.receive().await.map(|(message, _)| message)
    }

    /// Waits for its end, which its connection shows first. Cancel-safe.
    pub(crate) async fn ended(&self) {
        until_ended(&self.process).await;
    }

    /// Whether it ends: its connection is closed, and the kernel may still close its devices.
    pub(crate) fn is_exiting(&self) -> bool {
        liveness::is_exiting(self.pid)
    }

    pub(crate) fn kill(&self) {
        if let Err(error) = self.process.kill() {
            tracing::debug!(pid = self.pid, %error, "cannot kill the engine process");
        }
    }

    /// Returns why it is hung. One that was to end has written why: a call of a device that hangs in the kernel keeps it from
    /// its end, and the message names both.
    pub(crate) fn hung(&self, cause: String) -> String {
        match self.panic_message() {
            Some(written) => {
                format!("the engine process has not ended after this error: {written}; {cause}")
            }
            None => cause,
        }
    }

    /// Returns what it wrote before it was to end.
    pub(crate) fn panic_message(&self) -> Option<String> {
        let mut text = Vec::new();
        let file = std::fs::File::open(self.folder.panic()).ok()?;
        file.take(MESSAGE_LIMIT).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        let text = clip_chars(text.trim(), MAX_CHARS);
        (!text.is_empty()).then_some(text)
    }
}

/// Whether no engine process has served a pod for so long that no master has keys of it.
fn is_idle(last_served: Option<Instant>, now: Instant) -> bool {
    last_served.is_none_or(|last| now.duration_since(last) >= KEYS_KEPT)
}

/// Returns why a process that runs cannot serve the pod; `None`: it can.
fn unfit(
    running: &EngineProcess,
    answers: &Result<(), StartError>,
    pod: &PoolPod<'_>,
) -> Option<String> {
    if let Err(error) = answers {
        return Some(error.to_string());
    }
    if let Some((pid, cause)) = pod.replace
        && *pid == running.pid
    {
        return Some(cause.clone());
    }
    let known = Running {
        ports: &running.rdma,
        outdated: running.outdated,
        lost: &LostDevices::default(),
        since: running.connected,
        now: Instant::now(),
        registration_seconds: None,
        exclusion_due: false,
    };
    match pod.transport.judge(known) {
        Verdict::Replace(cause) => Some(cause),
        Verdict::Keep { .. } | Verdict::Unproved(_) => None,
    }
}

/// Waits for the end of a process. Cancel-safe.
async fn until_ended(process: &Pidfd) {
    while process.runs() {
        tokio::time::sleep(END_PERIOD).await;
    }
}

/// Finds the engine process that listens in a folder.
///
/// # Errors
/// `Unreachable`: it hangs, or was killed and keeps its listener until the kernel lets it go.
fn find(folder: &Folder) -> Result<Option<EngineProcess>, StartError> {
    connect(folder, true).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StartError::Unreachable,
        _ => StartError::Prepare(error),
    })
}

/// Connects to the engine process that listens in a folder; `None` if none does.
fn connect(folder: &Folder, adopted: bool) -> io::Result<Option<EngineProcess>> {
    let Some(socket) = folder.connect()? else {
        return Ok(None);
    };
    // The folder admits root only, so the listener is a process that an agent started.
    let peer = seqpacket::peer(&socket)?;
    let pid = peer.pid.ok_or_else(|| {
        io::Error::other("the engine process is not in the PID namespace of the agent")
    })?;
    let process = match Pidfd::open(pid) {
        Ok(process) => process,
        // It has ended since.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(Some(EngineProcess {
        pid,
        process,
        connection: Connection::new(socket).map_err(io::Error::other)?,
        connected: Instant::now(),
        silent: None,
        folder: folder.clone(),
        adopted,
        outdated: false,
        rdma: Vec::new(),
    }))
}

/// Returns the user ID of the engine process of a pod: always the same, and another for each pod.
fn uid(pod_uid: &str) -> u32 {
    use sha2::Digest as _;
    let hash: [u8; 32] = sha2::Sha256::digest(pod_uid.as_bytes()).into();
    let [a, b, c, d, ..] = hash;
    // The first one is that of `engine unmount`.
    FIRST_UID + 1 + u32::from_le_bytes([a, b, c, d]) % (FIRST_UID - 1)
}

/// The path of the program beside the agent's.
fn beside_agent() -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("engine"))
}

#[cfg(test)]
mod tests;

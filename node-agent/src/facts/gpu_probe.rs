//! Probes each GPU with the program `gpu`, one at a time: reads its properties by NVML and CUDA, and tests RDMA
//! devices on its memory while no process uses it. Probes are rare, because a probe wakes the GPU. While a GPU
//! blocks its probe, no other probe starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu_probe::{Pair, Proof, Report, Request, Stage};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::process::child::{self, Blocked};
use host::gpu::{self, Gpu};
use host::live::Node;
use host::{Facts, Snapshot};

/// Time between two probes of a healthy GPU whose driver is the same.
const PERIOD: Duration = Duration::from_secs(600);

/// Time between two probes of a GPU that is not healthy.
const RETRY: Duration = Duration::from_secs(60);

/// Deadline of the GPU's operations: initializing a sleeping GPU, then CUDA, takes seconds.
const GPU_DEADLINE: Duration = Duration::from_secs(20);

/// Deadline of the probe program, which reports a blocked operation after [`GPU_DEADLINE`].
const DEADLINE: Duration = Duration::from_secs(26);

/// How long the first snapshot waits for the first probes: otherwise an incomplete inventory is written, and
/// the complete one only a minute later.
const FIRST: Duration = Duration::from_secs(20);

mod kubelet;
mod pairs;

use pairs::Pairs;

/// Why no pair is tested.
const UPGRADING: &str = "an upgrade of the GPU driver is announced on the Node";
const UPGRADE_UNKNOWN: &str =
    "the operator has not reported yet whether a GPU driver upgrade is planned";
const IN_USE: &str = "the kubelet reports that a container uses the GPU or may use it";
const AGENT_ONLY: &str =
    "only the active agent of the node tests pairs, because it knows which GPUs are in use";

/// Probes the GPUs of one node.
pub(crate) struct GpuProber {
    /// `None` if nothing is probed: the program is not installed, or the node is a recording.
    program: Option<PathBuf>,
    /// The kubelet's pod-resources socket.
    socket: PathBuf,
    gpus: Gpus,
    running: JoinSet<Probed>,
    /// The first reading has waited for its probes.
    waited: bool,
}

impl GpuProber {
    pub(super) fn new(node: &Node, kubelet: &Path) -> Self {
        Self::with(child::probe_program("gpu", node), node, kubelet)
    }

    fn with(program: Option<PathBuf>, node: &Node, kubelet: &Path) -> Self {
        let kubelet = kubelet.strip_prefix("/").unwrap_or(kubelet);
        Self {
            program,
            socket: node.root.join(kubelet).join(kubelet::SOCKET),
            gpus: Gpus::of(node),
            running: JoinSet::new(),
            waited: false,
        }
    }

    /// The running probe's result; `None` if none is running.
    pub(super) async fn finished(&mut self) -> Option<Probed> {
        self.running.join_next().await?.ok()
    }

    /// Records a result and starts the next probe that is due. `upgrading`: whether a GPU driver upgrade is announced.
    pub(super) fn record(&mut self, probed: Probed, facts: &Facts, upgrading: Option<bool>) {
        self.gpus.record(probed, Instant::now());
        self.start_due(facts, upgrading);
    }

    fn start_due(&mut self, facts: &Facts, upgrading: Option<bool>) {
        // An open GPU keeps its driver from being unloaded.
        if upgrading == Some(true) || !self.running.is_empty() {
            return;
        }
        if let Some(program) = self.program.clone()
            && let Some(probe) = self.gpus.next(facts, Instant::now())
        {
            self.running.spawn(probe.run(program));
        }
    }

    /// Starts the probe that is due after a reading of the hardware, and adds the last results of each GPU.
    pub(super) async fn observe(&mut self, snapshot: &mut Snapshot, upgrading: Option<bool>) {
        let Some(program) = self.program.clone() else {
            return;
        };
        self.start_due(&snapshot.facts, upgrading);
        if !std::mem::replace(&mut self.waited, true) {
            let first_probes = async {
                while let Some(probed) = self.finished().await {
                    self.record(probed, &snapshot.facts, upgrading);
                }
            };
            let _ = tokio::time::timeout(FIRST, first_probes).await;
        }
        snapshot.gpu_reports = self.gpus.reports();
        // At most one test per reading, so that GPUs of which many fail are not busy with tests.
        if self.running.is_empty()
            && upgrading == Some(false)
            && let Some(probe) = self.gpus.next_pair(snapshot, Instant::now())
        {
            let gpus = snapshot.facts.gpus.iter();
            let uuids = gpus.filter_map(|gpu| snapshot.gpu_uuid(gpu));
            let others = uuids.filter(|uuid| Some(*uuid) != probe.uuid.as_deref());
            let others = others.map(str::to_owned).collect();
            let socket = self.socket.clone();
            self.running
                .spawn(probe.run_if_free(program, socket, others));
        }
        self.gpus.pairs.suspend(match upgrading {
            Some(true) => Some(UPGRADING),
            Some(false) => None,
            None => Some(UPGRADE_UNKNOWN),
        });
        snapshot.gpu_paths = self.gpus.paths(snapshot);
    }
}

/// Probe results of all GPUs, by PCI address.
struct Gpus {
    node: Node,
    states: BTreeMap<String, GpuState>,
    pairs: Pairs,
    /// The probe that its GPU blocks.
    blocked: Blocked,
}

/// Probe results of one GPU.
#[derive(Default)]
struct GpuState {
    last: Option<LastProbe>,
    report: Option<Report>,
}

/// The last probe of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastProbe {
    at: Instant,
    /// Version of the driver at that time.
    driver: String,
    healthy: bool,
}

/// True if a GPU is to be probed now.
fn is_due(last: Option<&LastProbe>, driver: &str, now: Instant) -> bool {
    let Some(last) = last.filter(|last| last.driver == driver) else {
        return true;
    };
    let wait = if last.healthy { PERIOD } else { RETRY };
    now.saturating_duration_since(last.at) >= wait
}

fn is_healthy(report: &Report) -> bool {
    report.failed.is_none() && report.hung.is_none()
}

fn has_libraries(report: &Report) -> bool {
    let failed = report.failed.as_ref();
    failed.is_none_or(|failed| failed.stage != Stage::Absent)
}

/// The GPUs that NVIDIA's driver is bound to, with its version.
fn bound_gpus(facts: &Facts) -> impl Iterator<Item = (&Gpu, &str)> {
    let driver = facts.gpu_driver.as_ref();
    let gpus = facts.gpus.iter().filter(|gpu| gpu.name.is_some());
    gpus.filter_map(move |gpu| Some((gpu, driver?.version.as_str())))
}

impl Gpus {
    fn of(node: &Node) -> Self {
        Self {
            node: node.clone(),
            states: BTreeMap::new(),
            pairs: Pairs::default(),
            blocked: Blocked::default(),
        }
    }

    /// The next probe that is due; `None` while a probe is blocked. Removes the results of GPUs that are gone.
    fn next(&mut self, facts: &Facts, now: Instant) -> Option<Probe> {
        if !self.is_free(facts) {
            return None;
        }
        let due = bound_gpus(facts).find(|(gpu, driver)| {
            let state = self.states.get(&gpu.pci.address);
            is_due(state.and_then(|state| state.last.as_ref()), driver, now)
        });
        let (gpu, driver) = due?;
        Some(self.probe(gpu, driver, None))
    }

    /// The next test of a pair that is due, likewise.
    fn next_pair(&mut self, snapshot: &Snapshot, now: Instant) -> Option<Probe> {
        let facts = &snapshot.facts;
        if !self.is_free(facts) {
            return None;
        }
        let (gpu, pair) = self.pairs.next(snapshot, bound_gpus(facts), now)?;
        let driver = facts.gpu_driver.as_ref()?.version.as_str();
        Some(self.probe(gpu, driver, Some(pair)))
    }

    fn probe(&self, gpu: &Gpu, driver: &str, pair: Option<Pair>) -> Probe {
        let address = &gpu.pci.address;
        let report = self.states.get(address).and_then(|of| of.report.as_ref());
        let facts = report.and_then(|report| report.facts.as_ref());
        let uuid = facts.map(|facts| facts.uuid.clone());
        Probe {
            request: Request {
                gpu: address.clone(),
                pair,
                deadline_ms: child::milliseconds(GPU_DEADLINE),
                root: Some(self.node.root.clone()),
                network: self.node.network.clone(),
            },
            uuid: uuid.or_else(|| gpu.uuid.clone()),
            driver: driver.to_owned(),
        }
    }

    /// True if no probe is blocked. Removes the results of GPUs that are gone.
    fn is_free(&mut self, facts: &Facts) -> bool {
        for address in self.blocked.reap() {
            // The GPU may have recovered: probe it again now.
            self.states.entry(address).or_default().last = None;
        }
        self.states
            .retain(|address, _| bound_gpus(facts).any(|(gpu, _)| gpu.pci.address == *address));
        self.blocked.is_empty()
    }

    fn record(&mut self, mut probed: Probed, now: Instant) {
        if let Some(pair) = probed.pair.take() {
            let report = probed.report.as_mut();
            let proof = report.and_then(|report| report.proof.take());
            self.record_pair(&probed, &pair, proof, now);
            if probed.skipped.is_some() {
                return;
            }
        }
        let state = self.states.entry(probed.gpu.clone()).or_default();
        let before = state.report.take().and_then(|report| report.facts);
        let same_driver = |last: &LastProbe| last.driver == probed.driver;
        let before = before.filter(|_| state.last.as_ref().is_some_and(same_driver));
        state.last = Some(LastProbe {
            at: now,
            driver: probed.driver,
            healthy: probed.report.as_ref().is_some_and(is_healthy),
        });
        state.report = probed.report.map(|mut report| {
            // These properties hold while GPU and driver stay the same. An unhealthy GPU may report none, and
            // CUDA is not probed on a GPU that is in use.
            let cuda = before.as_ref().and_then(|facts| facts.cuda);
            report.facts = report.facts.or(before);
            if let Some(facts) = report.facts.as_mut().filter(|facts| !facts.divided) {
                facts.cuda = facts.cuda.or(cuda);
            }
            report
        });
        let names = BTreeSet::from([probed.gpu]);
        self.blocked.keep_silent(probed.blocked, names);
    }

    /// Records the test of a pair.
    fn record_pair(&mut self, probed: &Probed, pair: &Pair, proof: Option<Proof>, now: Instant) {
        let (gpu, driver) = (&probed.gpu, &probed.driver);
        if let Some(proof) = proof {
            self.pairs.record_proof(gpu, driver, proof, now);
            return;
        }
        let report = probed.report.as_ref();
        let hung = report.and_then(|report| report.hung);
        let failed = report.and_then(|report| report.failed.as_ref());
        let why = match (&probed.skipped, hung, failed) {
            (Some(why), ..) => why.clone(),
            (None, Some(stage), _) => format!("{} does not end", stage.description()),
            (None, None, Some(failed)) => failed.to_string(),
            (None, None, None) => "the probe program reported nothing".to_owned(),
        };
        self.pairs.skip(gpu, driver, &pair.device, &why, now);
    }

    fn reports(&self) -> BTreeMap<String, Report> {
        let states = self.states.iter();
        let reports = states.filter_map(|(gpu, state)| Some((gpu.clone(), state.report.clone()?)));
        reports.collect()
    }

    /// State of the pairs of each GPU. Without a report about the GPU or without NVIDIA's libraries, no pair can be
    /// tested.
    fn paths(&self, snapshot: &Snapshot) -> BTreeMap<String, Vec<gpu::Path>> {
        let tested = bound_gpus(&snapshot.facts).filter(|(gpu, _)| {
            let report = snapshot.gpu_reports.get(&gpu.pci.address);
            report.is_some_and(has_libraries)
        });
        let paths = tested.map(|(gpu, driver)| {
            let paths = self.pairs.paths(snapshot, gpu, driver);
            (gpu.pci.address.clone(), paths)
        });
        paths.collect()
    }
}

/// A probe to run.
struct Probe {
    request: Request,
    uuid: Option<String>,
    driver: String,
}

/// Result of one probe.
pub(super) struct Probed {
    gpu: String,
    driver: String,
    /// `None` if the program did not start or its output is not valid.
    report: Option<Report>,
    /// The child, if the GPU blocks it.
    blocked: Option<Child>,
    /// The pair that was to be tested.
    pair: Option<Pair>,
    /// Why the program was not started for the pair.
    skipped: Option<String>,
}

impl Probe {
    /// Tests a pair if no container uses the GPU. `others` are the UUIDs of the node's other GPUs.
    async fn run_if_free(self, program: PathBuf, socket: PathBuf, others: Vec<String>) -> Probed {
        let skipped = match (kubelet::pods(&socket).await, &self.uuid) {
            (Ok(pods), Some(uuid)) if !pods.use_gpu(uuid, &others) => None,
            (Ok(_), Some(_)) => Some(IN_USE.to_owned()),
            (Ok(_), None) => Some("the GPU's UUID is not known".to_owned()),
            (Err(why), _) => Some(format!(
                "cannot list the GPUs that containers use at the kubelet: {why}"
            )),
        };
        match skipped {
            None => self.run(program).await,
            Some(_) => Probed {
                gpu: self.request.gpu,
                driver: self.driver,
                report: None,
                blocked: None,
                pair: self.request.pair,
                skipped,
            },
        }
    }

    async fn run(self, program: PathBuf) -> Probed {
        let gpu = self.request.gpu.clone();
        let mut command = Command::new(program);
        command
            .args(serde_json::to_string(&self.request).ok())
            // The environment of a pod may contain secrets. CUDA sees only this GPU.
            .env_clear()
            .envs(self.uuid.map(|uuid| ("CUDA_VISIBLE_DEVICES", uuid)));
        let hung = Report {
            hung: Some(Stage::View),
            ..Report::default()
        };
        let probed = child::probe(&mut command, DEADLINE, &gpu, hung).await;
        Probed {
            gpu,
            driver: self.driver,
            report: probed.report,
            blocked: probed.blocked,
            pair: self.request.pair,
            skipped: None,
        }
    }
}

/// Probes each GPU of the snapshot once. Tests no pair.
pub(crate) async fn once(node: &Node, snapshot: &mut Snapshot) {
    let Some(program) = child::probe_program("gpu", node) else {
        return;
    };
    probe_each(program, node, snapshot).await;
}

async fn probe_each(program: PathBuf, node: &Node, snapshot: &mut Snapshot) {
    let mut gpus = Gpus::of(node);
    while let Some(probe) = gpus.next(&snapshot.facts, Instant::now()) {
        gpus.record(probe.run(program.clone()).await, Instant::now());
    }
    gpus.pairs.suspend(Some(AGENT_ONLY));
    snapshot.gpu_reports = gpus.reports();
    snapshot.gpu_paths = gpus.paths(snapshot);
}

#[cfg(test)]
mod tests;

//! Probes each RDMA device periodically with the program `verbs`: reads its limits, registers memory, writes to
//! itself over each port and reads back. While a device blocks its probe, no other probe of it starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crds::policy::ProbeRates;
use rdma_probe::{Leak, Rail, Report, Request, Stage};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::args::RdmaClass;
use crate::process::child::{self, Blocked};
use host::hca::Hca;
use host::live::Node;
use host::{Facts, Snapshot, cgroup};

mod growth;

use growth::Growth;

/// Time between two probes of a device that is not healthy.
const RETRY: Duration = Duration::from_secs(8);

/// Least time between two probes, even if ports change state more often.
const MIN_PERIOD: Duration = Duration::from_secs(2);

/// Deadline of the device's operations: the transfers over one port may take three seconds.
const DEVICE_DEADLINE: Duration = Duration::from_secs(8);

/// Deadline of the probe program, which also loads libraries, on an emulated processor as well.
const DEADLINE: Duration = Duration::from_secs(14);

/// Maximum number of concurrent probes.
const CONCURRENT: usize = 2;

/// Probes the RDMA devices of one node.
pub(crate) struct RdmaProber {
    /// `None` if nothing is probed: the program is not installed, or the node is a recording.
    program: Option<PathBuf>,
    node: Node,
    class: RdmaClass,
    devices: BTreeMap<String, Device>,
    /// The probes that their devices block.
    blocked: Blocked,
    running: JoinSet<Probed>,
    permits: Arc<Semaphore>,
    /// The first reading has waited for its probes.
    waited: bool,
}

/// Probe state of one device.
#[derive(Default)]
struct Device {
    last: Option<LastProbe>,
    report: Option<Report>,
    /// A probe is running.
    probing: bool,
    growth: Growth,
}

/// The last probe of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastProbe {
    at: Instant,
    rails: Vec<Rail>,
    healthy: bool,
}

/// Result of one probe.
pub(super) struct Probed {
    device: String,
    rails: Vec<Rail>,
    /// `None` if the program did not start or its output is not valid.
    report: Option<Report>,
    /// The child, if the device blocks it.
    blocked: Option<Child>,
}

impl RdmaProber {
    pub(super) fn new(node: &Node, class: RdmaClass) -> Self {
        Self {
            class,
            ..Self::with(child::probe_program("verbs", node), node)
        }
    }

    fn with(program: Option<PathBuf>, node: &Node) -> Self {
        Self {
            program,
            node: node.clone(),
            class: RdmaClass::default(),
            devices: BTreeMap::new(),
            blocked: Blocked::default(),
            running: JoinSet::new(),
            permits: Arc::new(Semaphore::new(CONCURRENT)),
            waited: false,
        }
    }

    /// The next probe that ends; `None` if none is running.
    pub(super) async fn finished(&mut self) -> Option<Probed> {
        self.running.join_next().await?.ok()
    }

    /// Starts the probes that are due after a reading of the hardware, and adds the last report of each device.
    pub(super) async fn observe(&mut self, snapshot: &mut Snapshot, rates: ProbeRates) {
        let Some(program) = self.program.clone() else {
            return;
        };
        self.start_due(&program, &snapshot.facts, rates);
        if !std::mem::replace(&mut self.waited, true) {
            // Otherwise an inventory without limits is written, and the complete one only a minute later.
            let first_probes = async {
                while let Some(probed) = self.finished().await {
                    self.record(probed);
                }
            };
            let _ = tokio::time::timeout(DEADLINE, first_probes).await;
        }
        let devices = self.devices.iter();
        let reports = devices.filter_map(|(name, of)| Some((name.clone(), of.report.clone()?)));
        snapshot.hca_reports = reports.collect();
    }

    fn start_due(&mut self, program: &Path, facts: &Facts, rates: ProbeRates) {
        // A device may have recovered: probe it again now.
        for name in self.blocked.reap() {
            self.devices.entry(name).or_default().last = None;
        }
        let blocked = self.blocked.names();
        // A device without a device file cannot be opened; one that hangs in sysfs has none either.
        let open = facts.hcas.iter().filter(|hca| hca.device_file.is_some());
        let open: BTreeMap<&str, Vec<Rail>> =
            open.map(|hca| (hca.name.as_str(), rails(hca))).collect();
        self.devices.retain(|name, device| {
            open.contains_key(name.as_str()) || device.probing || blocked.contains(name)
        });
        let period = rates.devices(open.len());
        for (name, rails) in open {
            let device = self.devices.entry(name.to_owned()).or_default();
            let busy = device.probing || blocked.contains(name);
            if busy || !is_due(device.last.as_ref(), &rails, period, Instant::now()) {
                continue;
            }
            device.probing = true;
            let request = Request {
                device: name.to_owned(),
                rails,
                traffic_class: self.class.traffic_class,
                service_level: self.class.service_level,
                deadline_ms: child::milliseconds(DEVICE_DEADLINE),
                root: Some(self.node.root.clone()),
                network: self.node.network.clone(),
            };
            let (program, permits) = (program.to_owned(), Arc::clone(&self.permits));
            self.running.spawn(async move {
                let _permit = permits.acquire_owned().await;
                probe(&program, request).await
            });
        }
    }

    pub(super) fn record(&mut self, probed: Probed) {
        let device = self.devices.entry(probed.device.clone()).or_default();
        device.probing = false;
        device.last = Some(LastProbe {
            at: Instant::now(),
            rails: probed.rails,
            healthy: probed.report.as_ref().is_some_and(is_healthy),
        });
        let before = device.report.take().and_then(|report| report.limits);
        device.report = probed.report.map(|mut report| {
            // Limits do not change while the device is present; an unhealthy device may report none.
            report.limits = report.limits.or(before);
            if let Some((usage, limits)) = report.usage.as_mut().zip(report.limits) {
                device.growth.record(usage, Instant::now());
                let soonest = device.growth.soonest(usage, limits.max_qp.into());
                usage.leak = soonest.map(|(holder, hours)| Leak {
                    pid: holder.pid,
                    process: holder.process.clone(),
                    pod_uid: pod_uid(&self.node.root, holder.pid),
                    hours,
                });
            }
            report
        });
        let names = BTreeSet::from([probed.device]);
        self.blocked.keep_silent(probed.blocked, names);
    }
}

/// True if a device is to be probed now; `period` applies to a healthy device whose ports have not changed.
fn is_due(last: Option<&LastProbe>, rails: &[Rail], period: Duration, now: Instant) -> bool {
    let Some(last) = last else {
        return true;
    };
    let wait = match (last.rails == rails, last.healthy) {
        (false, _) => MIN_PERIOD,
        (true, false) => RETRY,
        (true, true) => period,
    };
    now.saturating_duration_since(last.at) >= wait
}

/// The ports of a device that the probe writes over.
fn rails(hca: &Hca) -> Vec<Rail> {
    let usable = hca.ports.iter().filter(|port| port.is_usable());
    let rails = usable.filter_map(|port| {
        Some(Rail {
            port: port.number,
            gid: port.chosen.ok()?,
            address: port.address(),
        })
    });
    rails.collect()
}

fn is_healthy(report: &Report) -> bool {
    let mut ports = report.loops.iter();
    let ports = ports.all(|loopback| loopback.failed.is_none());
    report.failed.is_none() && report.hung.is_none() && ports
}

/// UID of the pod that a process runs in, by its cgroup.
fn pod_uid(root: &Path, pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(root.join(format!("proc/{pid}/cgroup"))).ok()?;
    cgroup::place(&text).map(|place| place.pod_uid)
}

async fn probe(program: &Path, request: Request) -> Probed {
    let mut command = Command::new(program);
    command
        .args(serde_json::to_string(&request).ok())
        // The environment of a pod may contain secrets.
        .env_clear()
        // libibverbs prints a warning for each device without a userspace driver.
        .stderr(Stdio::null());
    let hung = Report {
        hung: Some(Stage::View),
        ..Report::default()
    };
    let probed = child::probe(&mut command, DEADLINE, &request.device, hung).await;
    Probed {
        device: request.device,
        rails: request.rails,
        report: probed.report,
        blocked: probed.blocked,
    }
}

/// Probes each device of the snapshot once.
pub(crate) async fn once(node: &Node, snapshot: &mut Snapshot) {
    let mut prober = RdmaProber::new(node, RdmaClass::default());
    prober.observe(snapshot, ProbeRates::default()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Host;

    const SOFT_ROCE: &str = include_str!("../../host/machines/vm-soft-roce.txt");

    fn snapshot() -> Snapshot {
        Host::parse(SOFT_ROCE).unwrap().snapshot()
    }

    /// A program that runs this shell text for each request, and logs each request.
    fn program_running(words: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("verbs");
        let log = folder.path().join("requests");
        let text = format!("#!/bin/sh\necho \"$1\" >>{}\n{words}\n", log.display());
        // Another process writes the file: a child that another test forks while this process has it open for
        // writing would make its start fail (ETXTBSY).
        let write = ["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""];
        let mut shell = std::process::Command::new("sh");
        shell.args(write).arg(&program).arg(text);
        assert!(shell.status().unwrap().success());
        (folder, program)
    }

    fn node() -> Node {
        Node {
            root: "/".into(),
            network: None,
        }
    }

    #[test]
    fn a_device_is_probed_when_it_is_new_or_changed_and_after_its_period() {
        let at = Instant::now();
        let rail = |gid| {
            vec![Rail {
                port: 1,
                gid,
                address: None,
            }]
        };
        let last = |healthy| LastProbe {
            at,
            rails: rail(1),
            healthy,
        };
        // Another address behind the same index.
        let mut moved = rail(1);
        moved[0].address = Some("fd00::8".parse().unwrap());
        let period = ProbeRates::default().devices(1);
        assert!(is_due(None, &rail(1), period, at));
        for (healthy, rails, wait) in [
            (true, rail(1), period),
            (false, rail(1), RETRY),
            (true, rail(2), MIN_PERIOD),
            (true, Vec::new(), MIN_PERIOD),
            (true, moved, MIN_PERIOD),
        ] {
            let last = Some(last(healthy));
            let before = at + wait.saturating_sub(Duration::from_millis(1));
            let is_due = |now| is_due(last.as_ref(), &rails, period, now);
            assert!(!is_due(before), "{wait:?}");
            assert!(is_due(at + wait), "{wait:?}");
        }
    }

    fn probed(report: Report, blocked: Option<Child>) -> Probed {
        Probed {
            device: "rxe0".to_owned(),
            rails: Vec::new(),
            report: Some(report),
            blocked,
        }
    }

    #[tokio::test]
    async fn limits_are_kept_when_an_unhealthy_device_reports_none() {
        let healthy = snapshot().hca_reports["rxe0"].clone();
        let hung = Report {
            hung: Some(Stage::Open),
            ..Report::default()
        };
        let mut prober = RdmaProber::with(None, &node());
        for report in [healthy.clone(), hung] {
            prober.record(probed(report, None));
        }
        let report = prober.devices["rxe0"].report.as_ref().unwrap();
        assert_eq!(
            (report.limits, report.hung),
            (healthy.limits, Some(Stage::Open))
        );
        assert!(!is_healthy(report));
    }

    #[tokio::test]
    async fn the_first_reading_has_the_reports_and_each_device_is_probed_once_per_period() {
        let (folder, program) = program_running(
            r#"echo '{"limits":{"max_mr_size":7,"max_mr":1,"max_qp":2,"max_cqe":3},"registered":null,"loops":[],"failed":null,"hung":null}'"#,
        );
        let mut prober = RdmaProber::with(Some(program), &node());
        prober.class = RdmaClass {
            traffic_class: 106,
            service_level: 3,
        };
        for _ in 0..2 {
            let mut snapshot = snapshot();
            prober.observe(&mut snapshot, ProbeRates::default()).await;
            assert_eq!(snapshot.hca_reports.len(), 2);
            for report in snapshot.hca_reports.values() {
                assert_eq!(report.limits.unwrap().max_mr_size, 7);
            }
        }
        let log = std::fs::read_to_string(folder.path().join("requests")).unwrap();
        let requests: Vec<Request> = log
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(requests.len(), 2, "{requests:?}");
        for request in requests {
            let address =
                snapshot().facts.hcas[usize::from(request.device == "rxe1")].ports[0].address();
            let rail = Rail {
                port: 1,
                gid: 1,
                address,
            };
            assert!(address.is_some());
            assert_eq!(request.rails, [rail]);
            let class = (request.traffic_class, request.service_level);
            assert_eq!(class, (106, 3));
        }
    }

    #[tokio::test]
    async fn a_device_that_blocks_its_probe_gets_no_second_one_until_that_ends() {
        let (_folder, program) = program_running(
            r#"echo '{"limits":null,"registered":null,"loops":[],"failed":null,"hung":"Open"}'; exec sleep 1000"#,
        );
        let request = Request {
            device: "rxe0".to_owned(),
            rails: Vec::new(),
            traffic_class: 0,
            service_level: 0,
            deadline_ms: 100,
            root: None,
            network: None,
        };
        let first = probe(&program, request).await;
        let report = first.report.unwrap();
        assert_eq!(report.hung, Some(Stage::Open));
        // The kill ended this child, unlike one that the kernel blocks; a second child replaces it.
        first.blocked.unwrap().wait().await.unwrap();
        let stuck = Command::new("sleep")
            .arg("1000")
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_raw(stuck.id().unwrap().try_into().unwrap()).unwrap();
        let mut prober = RdmaProber::with(None, &node());
        prober.record(probed(report, Some(stuck)));
        prober.devices.get_mut("rxe0").unwrap().last = None;
        let started = |prober: &mut RdmaProber| {
            prober.start_due(&program, &snapshot().facts, ProbeRates::default());
            prober.devices["rxe0"].probing
        };
        assert!(!started(&mut prober));
        prober.devices.get_mut("rxe0").unwrap().last = Some(LastProbe {
            at: Instant::now(),
            rails: rails(&snapshot().facts.hcas[0]),
            healthy: true,
        });
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let recovered = async {
            while !started(&mut prober) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let recovered = tokio::time::timeout(Duration::from_secs(30), recovered).await;
        recovered.expect("it is probed at once, not after its period");
    }

    #[tokio::test]
    async fn an_absent_program_and_invalid_output_give_no_report() {
        let (folder, program) = program_running("echo invalid");
        for program in [program, folder.path().join("absent")] {
            let mut snapshot = snapshot();
            let mut prober = RdmaProber::with(Some(program), &node());
            prober.observe(&mut snapshot, ProbeRates::default()).await;
            assert!(snapshot.hca_reports.is_empty());
        }
    }
}

//! GPUs of a recorded machine, with probe programs that print what a test needs.

use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::Response;
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::body::Body;

use super::kubelet::{Container, Devices, Pod, Pods};
use super::*;
use devices::rpc;
use host::Host;
use host::gpu::Reached;

const DGX: &str = include_str!("../../../host/machines/dgx-h100.txt");
const GB200: &str = include_str!("../../../host/machines/gb200.txt");
const ADDRESS: &str = "0008:01:00.0";

fn snapshot() -> Snapshot {
    let mut snapshot = Host::parse(GB200).unwrap().snapshot();
    snapshot.gpu_reports.clear();
    snapshot
}

fn node() -> Node {
    Node {
        root: "/".into(),
        network: None,
    }
}

const HEALTHY: &str = r#"{"facts":{"uuid":"GPU-7","name":"N","driver":"570","fabric":{"state":3,"status":0,"cluster":null,"clique":9},"processes":0,"divided":false,"cuda":{"gpu_direct":true,"dma_buf":true}},"failed":null,"hung":null}"#;

/// A program that prints the same for each request, and logs each request and each overlap of two probes.
fn program_printing(words: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("gpu");
    let at = folder.path().display();
    let text = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\nmkdir {at}/one || echo two >>{at}/requests\n\
         echo \"$CUDA_VISIBLE_DEVICES $1\" >>{at}/requests\nsleep 0.05\nrmdir {at}/one\n{words}\n"
    );
    // Another process writes the file: a child that another test forks while this process has it open for
    // writing would make its start fail (ETXTBSY).
    let write = ["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""];
    let mut shell = std::process::Command::new("sh");
    shell.args(write).arg(&program).arg(text);
    assert!(shell.status().unwrap().success());
    (folder, program)
}

fn requests(folder: &tempfile::TempDir) -> Vec<String> {
    let text = std::fs::read_to_string(folder.path().join("requests")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_gpu_is_probed_when_it_or_its_driver_is_new_and_after_the_period() {
    let at = Instant::now();
    let last = |healthy| LastProbe {
        at,
        driver: "570".to_owned(),
        healthy,
    };
    assert!(is_due(None, "570", at));
    assert!(is_due(Some(&last(true)), "580", at));
    for (healthy, wait) in [(true, PERIOD), (false, RETRY)] {
        let is_due = |now| is_due(Some(&last(healthy)), "570", now);
        assert!(!is_due(at + wait.saturating_sub(Duration::from_millis(1))));
        assert!(is_due(at + wait));
    }
}

#[tokio::test]
async fn the_first_reading_has_the_reports_and_each_gpu_is_probed_once_and_alone() {
    let (folder, program) = program_printing(&format!("echo '{HEALTHY}'"));
    let mut prober = GpuProber::with(Some(program), &node(), Path::new("/nowhere"));
    for _ in 0..2 {
        let mut snapshot = snapshot();
        prober.observe(&mut snapshot, None).await;
        for gpu in &snapshot.facts.gpus {
            let fabric = snapshot.gpu_facts(gpu).unwrap().fabric.as_ref();
            assert_eq!(
                (snapshot.gpu_uuid(gpu), fabric.unwrap().clique),
                (Some("GPU-7"), 9)
            );
        }
    }
    let requests = requests(&folder);
    assert_eq!(requests.len(), 4, "{requests:?}");
    for (line, gpu) in requests.iter().zip(snapshot().facts.gpus) {
        // CUDA sees only the probed GPU.
        let (visible, request) = line.split_once(' ').unwrap();
        assert_eq!(Some(visible), gpu.uuid.as_deref());
        let request: Request = serde_json::from_str(request).unwrap();
        assert_eq!((request.gpu, request.pair), (gpu.pci.address, None));
    }
}

#[tokio::test]
async fn gpus_without_the_nvidia_driver_are_not_probed() {
    let (folder, program) = program_printing(&format!("echo '{HEALTHY}'"));
    let mut bare = snapshot();
    bare.facts.gpu_driver = None;
    probe_each(program.clone(), &node(), &mut bare).await;
    let mut other = snapshot();
    // Bound to vfio-pci for a virtual machine.
    for gpu in &mut other.facts.gpus {
        gpu.name = None;
    }
    probe_each(program, &node(), &mut other).await;
    assert_eq!(requests(&folder), Vec::<String>::new());
}

fn probed(gpu: &str, driver: &str, report: Option<Report>) -> Probed {
    Probed {
        gpu: gpu.to_owned(),
        driver: driver.to_owned(),
        report,
        blocked: None,
        pair: None,
        skipped: None,
    }
}

#[tokio::test]
async fn while_a_gpu_blocks_its_probe_no_gpu_is_probed() {
    let facts = snapshot().facts;
    let mut gpus = Gpus::of(&node());
    let stuck = Command::new("sleep")
        .arg("1000")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(stuck.id().unwrap().try_into().unwrap()).unwrap();
    let now = Instant::now();
    let hung = Report {
        hung: Some(Stage::Nvml),
        ..Report::default()
    };
    let driver = facts.gpu_driver.clone().unwrap().version;
    let blocked = Probed {
        blocked: Some(stuck),
        ..probed(ADDRESS, &driver, Some(hung))
    };
    gpus.record(blocked, now);
    assert!(gpus.next(&facts, now + PERIOD).is_none());
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let next = async {
        loop {
            if let Some(next) = gpus.next(&facts, now) {
                return next;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let next = tokio::time::timeout(Duration::from_secs(30), next).await;
    assert_eq!(next.unwrap().request.gpu, ADDRESS, "it may have recovered");
    assert_eq!(gpus.reports()[ADDRESS].hung, Some(Stage::Nvml));
}

#[test]
fn properties_of_an_unhealthy_gpu_are_kept_unless_its_driver_changes() {
    let mut gpus = Gpus::of(&node());
    let healthy: Report = serde_json::from_str(HEALTHY).unwrap();
    let mut record = |report: &Report, driver: &str| {
        let probed = probed(ADDRESS, driver, Some(report.clone()));
        gpus.record(probed, Instant::now());
        gpus.reports()[ADDRESS].facts.is_some()
    };
    assert!(record(&healthy, "570"));
    assert!(record(&Report::default(), "570"));
    assert!(!record(&Report::default(), "580"));
}

#[tokio::test]
async fn an_absent_program_and_invalid_output_give_no_report() {
    let (folder, program) = program_printing("echo invalid");
    for program in [program, folder.path().join("absent")] {
        let mut snapshot = snapshot();
        probe_each(program, &node(), &mut snapshot).await;
        assert!(snapshot.gpu_reports.is_empty());
    }
}

#[test]
fn cuda_properties_of_a_gpu_in_use_are_kept() {
    let mut gpus = Gpus::of(&node());
    let healthy: Report = serde_json::from_str(HEALTHY).unwrap();
    let mut busy = healthy.clone();
    busy.facts.as_mut().unwrap().cuda = None;
    for report in [healthy, busy] {
        gpus.record(probed(ADDRESS, "570", Some(report)), Instant::now());
        let facts = gpus.reports()[ADDRESS].facts.clone();
        assert!(facts.unwrap().cuda.unwrap().dma_buf);
    }
}

#[test]
fn a_driver_without_libraries_gives_no_pairs() {
    let absent =
        r#"{"facts":null,"failed":{"stage":"Absent","number":null,"words":"none"},"hung":null}"#;
    let mut snapshot = Host::parse(DGX).unwrap().snapshot();
    let mut pairs = |report: &str| {
        let address = snapshot.facts.gpus[0].pci.address.clone();
        let mut gpus = Gpus::of(&node());
        let report = serde_json::from_str(report).unwrap();
        gpus.record(probed(&address, "550", Some(report)), Instant::now());
        snapshot.gpu_reports = gpus.reports();
        gpus.paths(&snapshot)
            .remove(&address)
            .map(|paths| paths.len())
    };
    assert_eq!((pairs(absent), pairs(HEALTHY)), (None, Some(10)));
}

/// A kubelet that lists the devices of containers.
struct Kubelet(Mutex<Pods>);

impl rpc::Service for Kubelet {
    fn answer(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
    ) -> BoxFuture<'static, Response<Body>> {
        assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
        let pods = self.0.lock().unwrap().clone();
        async move { rpc::unary(request, move |_: Pods| std::future::ready(Ok(pods.clone()))).await }
            .boxed()
    }
}

/// A DGX with one GPU that supports GPUDirect, and a program whose every test succeeds.
struct Fixture {
    folder: tempfile::TempDir,
    root: tempfile::TempDir,
    prober: GpuProber,
}

impl Fixture {
    fn new() -> Self {
        let healthy = HEALTHY.replace("GPU-7", "GPU-1");
        let proof =
            r#""proof":{"device":"'$d'","way":"DmaBuf","micros":57,"failed":null},"failed""#;
        let (folder, program) = program_printing(&format!(
            "d=$(printf %s \"$1\" | sed -n 's/.*\"device\":\"\\([a-z0-9_]*\\).*/\\1/p')\n\
             if [ -z \"$d\" ]; then echo '{healthy}'; else echo '{}'; fi",
            healthy.replace(r#""failed""#, proof)
        ));
        let root = tempfile::tempdir().unwrap();
        let node = Node {
            root: root.path().to_owned(),
            network: None,
        };
        let prober = GpuProber::with(Some(program), &node, Path::new("/var/lib/kubelet"));
        Self {
            folder,
            root,
            prober,
        }
    }

    fn serve(&self, resource: &str, id: &str) -> Arc<Kubelet> {
        let folder = self.root.path().join("var/lib/kubelet/pod-resources");
        std::fs::create_dir_all(&folder).unwrap();
        let listener = rpc::bind(&folder.join("kubelet.sock")).unwrap();
        let devices = vec![Devices {
            resource: resource.to_owned(),
            ids: vec![id.to_owned()],
        }];
        let containers = vec![Container {
            devices,
            claims: Vec::new(),
        }];
        let pods = vec![Pod { containers }];
        let kubelet = Arc::new(Kubelet(Mutex::new(Pods { pods })));
        let (end, ended) = watch::channel(false);
        let service = Arc::clone(&kubelet);
        tokio::spawn(async move {
            rpc::serve(listener, service, ended).await;
            drop(end);
        });
        kubelet
    }

    /// Observes until the first pair has the expected state, or a deadline passes; returns that state.
    async fn reached(
        &mut self,
        upgrading: Option<bool>,
        expected: impl Fn(&Reached) -> bool,
    ) -> Reached {
        let mut read = Host::parse(DGX).unwrap().snapshot();
        read.facts.gpus.truncate(1);
        read.facts.gpus[0].uuid = Some("GPU-1".to_owned());
        let address = read.facts.gpus[0].pci.address.clone();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let mut snapshot = read.clone();
            self.prober.observe(&mut snapshot, upgrading).await;
            let paths = snapshot.gpu_paths.remove(&address).unwrap_or_default();
            let reached = paths.into_iter().next().map(|path| path.reached);
            let late = Instant::now() >= end;
            match reached {
                Some(reached) if late || expected(&reached) => return reached,
                reached => assert!(!late, "the GPU was not probed: {reached:?}"),
            }
            let pause = Duration::from_millis(20);
            let finished = tokio::time::timeout(pause, self.prober.finished()).await;
            if let Ok(Some(probed)) = finished {
                self.prober.record(probed, &read.facts, upgrading);
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn pairs_tested(&self) -> usize {
        let requests = requests(&self.folder);
        requests
            .iter()
            .filter(|line| line.contains("device"))
            .count()
    }
}

fn unproved(words: &'static str) -> impl Fn(&Reached) -> bool {
    move |reached| matches!(reached, Reached::Unproved { why } if why.contains(words))
}

#[tokio::test]
async fn a_pair_is_not_tested_before_the_operator_reports_nor_on_a_gpu_in_use() {
    let mut fixture = Fixture::new();
    let unknown = fixture
        .reached(None, unproved("the operator has not reported"))
        .await;
    assert!(
        unproved("the operator has not reported")(&unknown),
        "{unknown:?}"
    );
    let upgrading = fixture.reached(Some(true), unproved("an upgrade")).await;
    assert!(unproved("an upgrade")(&upgrading), "{upgrading:?}");
    assert_eq!(fixture.pairs_tested(), 0);
    let _kubelet = fixture.serve("nvidia.com/gpu", "GPU-0");
    // No GPU of the node has that name.
    let used = fixture
        .reached(Some(false), unproved("a container uses"))
        .await;
    assert!(unproved("a container uses")(&used), "{used:?}");
    assert_eq!(fixture.pairs_tested(), 0);
}

#[tokio::test]
async fn a_pair_of_a_free_gpu_is_tested_and_needs_the_kubelet() {
    let mut fixture = Fixture::new();
    let no_kubelet = fixture
        .reached(Some(false), unproved("at the kubelet"))
        .await;
    assert!(unproved("at the kubelet")(&no_kubelet), "{no_kubelet:?}");
    assert_eq!(fixture.pairs_tested(), 0);

    let mut fixture = Fixture::new();
    let _kubelet = fixture.serve("intel.com/gpu", "GPU-1");
    let proved = fixture
        .reached(Some(false), |reached| {
            matches!(reached, Reached::Proved { .. })
        })
        .await;
    assert!(matches!(proved, Reached::Proved { .. }), "{proved:?}");
    assert!(fixture.pairs_tested() > 0);
    let overlap = requests(&fixture.folder).contains(&"two".to_owned());
    assert!(!overlap, "one probe at a time");
}

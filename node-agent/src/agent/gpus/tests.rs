//! GPUs of a recorded machine, asked by programs that say what a test wants.

use std::sync::Mutex;

use crds::{MooncakeNode, MooncakeNodeSpec};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;

use super::kubelet::{Container, Devices, Pod, Pods};
use super::*;
use crate::devices::rpc;
use crate::host::Host;
use crate::host::gpu::Reached;
use crate::host::recording::Recording;

const DGX: &str = include_str!("../../../tests/machines/dgx-h100.txt");
const GB200: &str = include_str!("../../../tests/machines/gb200.txt");
const ADDRESS: &str = "0008:01:00.0";

fn facts() -> Facts {
    let mut facts = Host::recorded(Recording::parse(GB200).unwrap()).facts();
    for gpu in &mut facts.gpus {
        gpu.answer = None;
    }
    facts
}

fn node() -> Node {
    Node {
        root: "/".into(),
        network: None,
    }
}

const WELL: &str = r#"{"facts":{"uuid":"GPU-7","name":"N","driver":"570","fabric":{"state":3,"status":0,"cluster":null,"clique":9},"processes":0,"divided":false,"cuda":{"gpu_direct":true,"dma_buf":true}},"failed":null,"hung":null}"#;

/// A program that says this, whatever it is asked, and writes down each question, and where two are asked at
/// once.
fn saying(words: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("gpu");
    let at = folder.path().display();
    let text = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\nmkdir {at}/one || echo two >>{at}/asked\n\
         echo \"$CUDA_VISIBLE_DEVICES $1\" >>{at}/asked\nsleep 0.05\nrmdir {at}/one\n{words}\n"
    );
    // Written by another process: what another test forks while this one had it open for writing
    // would keep it from being run.
    let write = ["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""];
    let mut shell = std::process::Command::new("sh");
    shell.args(write).arg(&program).arg(text);
    assert!(shell.status().unwrap().success());
    (folder, program)
}

fn asked(folder: &tempfile::TempDir) -> Vec<String> {
    let text = std::fs::read_to_string(folder.path().join("asked")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_gpu_is_asked_when_it_is_new_or_its_driver_is_or_its_time_has_come() {
    let at = Instant::now();
    let asked = |well| Asked {
        at,
        driver: "570".to_owned(),
        well,
    };
    assert!(is_due(None, "570", at));
    assert!(is_due(Some(&asked(true)), "580", at));
    for (well, wait) in [(true, PERIOD), (false, RETRY)] {
        let is_due = |now| is_due(Some(&asked(well)), "570", now);
        assert!(!is_due(at + wait.saturating_sub(Duration::from_millis(1))));
        assert!(is_due(at + wait));
    }
}

#[tokio::test]
async fn what_each_gpu_told_stands_in_the_facts_and_each_is_asked_once_and_alone() {
    let (folder, program) = saying(&format!("echo '{WELL}'"));
    let (look, seen) = watch::channel(None);
    let (_assign, assigned) = watch::channel(Assignments::default());
    let mut known = watch(Some(program), node(), Path::new("/nowhere"), assigned, seen);
    for _ in 0..2 {
        look.send_replace(Some(Arc::new(facts())));
        let told = tokio::time::timeout(Duration::from_secs(30), known.changed()).await;
        told.unwrap().unwrap();
        let facts = known.borrow_and_update().clone().unwrap();
        for gpu in &facts.gpus {
            assert_eq!(
                (gpu.known_uuid(), gpu.fabric().unwrap().clique),
                (Some("GPU-7"), 9)
            );
        }
    }
    let asked = asked(&folder);
    assert_eq!(asked.len(), 4, "{asked:?}");
    for (line, gpu) in asked.iter().zip(facts().gpus) {
        // CUDA is shown the one that is meant.
        let (visible, question) = line.split_once(' ').unwrap();
        assert_eq!(Some(visible), gpu.uuid.as_deref());
        let question: Question = serde_json::from_str(question).unwrap();
        assert_eq!((question.gpu, question.pair), (gpu.pci.address, None));
    }
}

#[tokio::test]
async fn a_node_whose_gpus_no_driver_holds_starts_no_program() {
    let (folder, program) = saying(&format!("echo '{WELL}'"));
    let mut bare = facts();
    bare.gpu_driver = None;
    once(&program, &node(), &mut bare).await;
    let mut other = facts();
    // Held by vfio-pci for a virtual machine.
    for gpu in &mut other.gpus {
        gpu.name = None;
    }
    once(&program, &node(), &mut other).await;
    assert_eq!(asked(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn while_a_gpu_holds_who_asked_it_no_gpu_is_asked() {
    let facts = facts();
    let mut gpus = Gpus::default();
    let stuck = Command::new("sleep")
        .arg("1000")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let now = Instant::now();
    let hung = Answer {
        hung: Some(Stage::Nvml),
        ..Answer::default()
    };
    let reply = Reply {
        gpu: ADDRESS.to_owned(),
        driver: facts.gpu_driver.clone().unwrap().version,
        answer: Some(hung),
        held: Some(stuck),
        pair: None,
        barred: None,
    };
    gpus.note(reply, now);
    assert!(gpus.next(&facts, &node(), now + PERIOD).is_none());
    gpus.held.as_mut().unwrap().0.kill().await.unwrap();
    let next = gpus.next(&facts, &node(), now).unwrap();
    assert_eq!(next.question.gpu, ADDRESS, "how it is now is not known");
    assert_eq!(
        gpus.merged(&facts).gpus[0].answer.as_ref().unwrap().hung,
        Some(Stage::Nvml)
    );
}

#[tokio::test]
async fn what_a_gpu_told_stays_when_it_is_sick_and_tells_nothing_unless_its_driver_is_another() {
    let mut gpus = Gpus::default();
    let well: Answer = serde_json::from_str(WELL).unwrap();
    let mut note = |answer: &Answer, driver: &str| {
        let reply = Reply {
            gpu: ADDRESS.to_owned(),
            driver: driver.to_owned(),
            answer: Some(answer.clone()),
            held: None,
            pair: None,
            barred: None,
        };
        gpus.note(reply, Instant::now());
        gpus.merged(&facts()).gpus[0].fabric().is_some()
    };
    assert!(note(&well, "570"));
    assert!(note(&Answer::default(), "570"));
    assert!(!note(&Answer::default(), "580"));
}

#[tokio::test]
async fn a_program_that_is_not_there_or_tells_nonsense_tells_nothing_of_a_gpu() {
    let (folder, program) = saying("echo nonsense");
    for program in [program, folder.path().join("absent")] {
        let mut facts = facts();
        once(&program, &node(), &mut facts).await;
        assert!(facts.gpus.iter().all(|gpu| gpu.answer.is_none()));
    }
}

#[tokio::test]
async fn of_a_gpu_that_is_in_use_what_cuda_said_before_stays() {
    let mut gpus = Gpus::default();
    let well: Answer = serde_json::from_str(WELL).unwrap();
    let mut busy = well.clone();
    busy.facts.as_mut().unwrap().cuda = None;
    for answer in [well, busy] {
        let reply = Reply {
            gpu: ADDRESS.to_owned(),
            driver: "570".to_owned(),
            answer: Some(answer),
            held: None,
            pair: None,
            barred: None,
        };
        gpus.note(reply, Instant::now());
        assert!(gpus.merged(&facts()).gpus[0].can().unwrap().dma_buf);
    }
}

#[test]
fn of_a_node_whose_driver_has_no_libraries_no_pair_is_told() {
    let absent =
        r#"{"facts":null,"failed":{"stage":"Absent","number":null,"words":"none"},"hung":null}"#;
    let facts = Host::recorded(Recording::parse(DGX).unwrap()).facts();
    let told = |answer: &str| {
        let mut gpus = Gpus::default();
        let reply = Reply {
            gpu: facts.gpus[0].pci.address.clone(),
            driver: "550".to_owned(),
            answer: serde_json::from_str(answer).ok(),
            held: None,
            pair: None,
            barred: None,
        };
        gpus.note(reply, Instant::now());
        gpus.merged(&facts).gpus[0].paths.len()
    };
    assert_eq!((told(absent), told(WELL)), (0, 10));
}

/// A kubelet that says what containers hold.
struct Kubelet(Mutex<Pods>);

impl rpc::Service for Kubelet {
    fn answer(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<Body>> {
        assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
        let pods = self.0.lock().unwrap().clone();
        async move { rpc::unary(request, move |_: Pods| std::future::ready(Ok(pods.clone()))).await }
            .boxed()
    }
}

/// A DGX with one GPU, whose CUDA can do it and whose program proves whatever it is asked to prove.
struct Play {
    folder: tempfile::TempDir,
    root: tempfile::TempDir,
    look: watch::Sender<Option<Arc<Facts>>>,
    assign: watch::Sender<Assignments>,
    known: Known,
}

impl Play {
    fn new() -> Self {
        let well = WELL.replace("GPU-7", "GPU-1");
        let proof =
            r#""proof":{"device":"'$d'","way":"DmaBuf","micros":57,"failed":null},"failed""#;
        let (folder, program) = saying(&format!(
            "d=$(printf %s \"$1\" | sed -n 's/.*\"device\":\"\\([a-z0-9_]*\\).*/\\1/p')\n\
             if [ -z \"$d\" ]; then echo '{well}'; else echo '{}'; fi",
            well.replace(r#""failed""#, proof)
        ));
        let root = tempfile::tempdir().unwrap();
        let (look, seen) = watch::channel(None);
        let (assign, assigned) = watch::channel(Assignments::default());
        let node = Node {
            root: root.path().to_owned(),
            network: None,
        };
        let kubelet = Path::new("/var/lib/kubelet");
        let known = watch(Some(program), node, kubelet, assigned, seen);
        Self {
            folder,
            root,
            look,
            assign,
            known,
        }
    }

    fn want(&self, upgrade: bool) {
        let spec = MooncakeNodeSpec {
            gpu_driver_upgrade: upgrade,
            ..MooncakeNodeSpec::default()
        };
        self.assign.send_replace(Assignments {
            read: true,
            node: Some(MooncakeNode::new("n1", spec)),
        });
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

    /// What is told of the first RDMA device after some looks, where it is told for long enough.
    async fn looks(&mut self, wanted: impl Fn(&Reached) -> bool) -> Reached {
        let mut facts = Host::recorded(Recording::parse(DGX).unwrap()).facts();
        facts.gpus.truncate(1);
        facts.gpus[0].uuid = Some("GPU-1".to_owned());
        let facts = Arc::new(facts);
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.look.send_replace(Some(Arc::clone(&facts)));
            self.known.changed().await.unwrap();
            let told = self.known.borrow_and_update().clone().unwrap();
            let reached = told.gpus[0].paths.first().map(|path| path.reached.clone());
            if let Some(reached) = reached
                && (wanted(&reached) || Instant::now() >= end)
            {
                return reached;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn pairs_asked(&self) -> usize {
        let asked = asked(&self.folder);
        asked.iter().filter(|line| line.contains("device")).count()
    }
}

fn says(words: &'static str) -> impl Fn(&Reached) -> bool {
    move |reached| matches!(reached, Reached::Unproved { why } if why.contains(words))
}

#[tokio::test]
async fn s27_s28_a_pair_is_proved_where_neither_kubelet_nor_operator_says_no() {
    let mut stage = Play::new();
    let untold = stage.looks(says("the operator has not said")).await;
    assert!(says("the operator has not said")(&untold), "{untold:?}");
    stage.want(true);
    let upgrading = stage.looks(says("an upgrade")).await;
    assert!(says("an upgrade")(&upgrading), "{upgrading:?}");
    assert_eq!(stage.pairs_asked(), 0);
    let _kubelet = stage.serve("nvidia.com/gpu", "GPU-0");
    stage.want(false);
    // A GPU of that name is none of the node's.
    let held = stage.looks(says("a container holds")).await;
    assert!(says("a container holds")(&held), "{held:?}");
    assert_eq!(stage.pairs_asked(), 0);
}

#[tokio::test]
async fn s27_s28_a_pair_of_a_free_gpu_is_proved_and_without_a_kubelet_says_why_not() {
    let mut stage = Play::new();
    stage.want(false);
    let alone = stage.looks(says("the kubelet does not say")).await;
    assert!(says("the kubelet does not say")(&alone), "{alone:?}");
    assert_eq!(stage.pairs_asked(), 0);

    let mut stage = Play::new();
    let _kubelet = stage.serve("intel.com/gpu", "GPU-1");
    stage.want(false);
    let proved = stage
        .looks(|reached| matches!(reached, Reached::Proved { .. }))
        .await;
    assert!(matches!(proved, Reached::Proved { .. }), "{proved:?}");
    assert!(stage.pairs_asked() > 0);
    let overlap = asked(&stage.folder).contains(&"two".to_owned());
    assert!(!overlap, "one child at a time");
}

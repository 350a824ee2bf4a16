//! The containers of injected pods, as their processes and root folders show them: which wheel a Python
//! that runs there would load, what it may lock, which RDMA devices it can open.
//!
//! A container's files are its tenant's: nothing outside its root is read, only folders are listed, and how
//! much of them is bounded. One file of its own is opened, the matrix of devices that its engine is told to
//! use, and one of the kernel's, the limit of its hugepages.

use std::collections::{BTreeMap, BTreeSet};

use crds::inventory::Limit;
use crds::stock::Demand;
use serde::{Deserialize, Serialize};

use super::cgroup;
use super::fault::{Fault, Problem};
use super::hca::DeviceFile;
use super::interface::Sockets;
use super::kernel;
use super::tree::{Node, Tree};

pub mod by_hand;
pub mod hugetlb;
mod interpreter;
pub mod look;
pub mod matrix;

use by_hand::ByHand;
use hugetlb::Hugetlb;
use interpreter::Interpreter;
use matrix::Matrix;

/// Most containers of a pod, and most processes of a container, the oldest first, that are looked at.
const CONTAINERS: usize = 16;
const PROCESSES: usize = 16;

/// Most folders of a container that are searched for a wheel.
const FOLDERS: usize = 32;

/// What every build of the wheel is called: with and without CUDA, and by its version.
const WHEEL: &str = "mooncake_transfer_engine";

/// `CAP_IPC_LOCK`, which lifts every limit of who has it on the node itself.
const IPC_LOCK: u32 = 14;

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub pod_uid: String,
    /// As the pod names it; empty where nothing of the pod can be read.
    pub name: String,
    /// Absent where no Python runs, or it finds none.
    pub wheel: Option<Wheel>,
    /// What the process of the engine, or else the first one, may lock; absent where there is no limit.
    pub memlock: Option<Limit>,
    /// Device files of RDMA devices that it has.
    pub device_files: Vec<DeviceFile>,
    /// The variable is set that keeps a stock engine on TCP.
    pub tcp_only: bool,
    /// What its engine is told to use instead of choosing.
    pub by_hand: ByHand,
    /// What the file holds that it names as its matrix of devices; absent where it names none.
    pub matrix: Option<Matrix>,
    /// What its engine takes by its variables and flags; absent where no Python runs.
    pub demand: Option<Demand>,
    /// Absent where the engine asks for no hugepages.
    pub hugetlb: Option<Hugetlb>,
    /// Of its network namespace, where that is not the node's.
    pub network: Option<Network>,
    /// What could not be read of its files.
    pub unread: Option<Fault>,
}

/// What a network namespace has to connect from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// First and last ephemeral port.
    pub local_ports: (u16, u16),
    pub time_wait_reuse: Option<u8>,
    pub sockets: Sockets,
}

/// A wheel as it is installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wheel {
    /// E.g. `mooncake_transfer_engine_cuda13`.
    pub name: String,
    pub version: String,
    /// The folder that it lies in, as the container sees it.
    pub folder: String,
}

impl Container {
    /// One of a pod whose files do not answer.
    pub(crate) fn silent(pod_uid: &str) -> Self {
        Self {
            pod_uid: pod_uid.to_owned(),
            name: String::new(),
            wheel: None,
            memlock: None,
            device_files: Vec::new(),
            tcp_only: false,
            by_hand: ByHand::default(),
            matrix: None,
            demand: None,
            hugetlb: None,
            network: None,
            unread: Some(Fault {
                path: "/".to_owned(),
                problem: Problem::Hung,
            }),
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        let unread = self.unread.as_ref();
        unread.is_some_and(|unread| unread.problem == Problem::Hung)
    }
}

/// Processes by container, in the order of their numbers.
pub(super) type Processes = BTreeMap<String, Vec<u32>>;

/// The processes of these pods, by pod. Files of the kernel's alone are read, which answer at once.
pub(super) fn processes(tree: &Tree, pods: &BTreeSet<String>) -> BTreeMap<String, Processes> {
    let mut found: BTreeMap<String, Processes> = BTreeMap::new();
    let number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let mut all: Vec<u32> = tree
        .matching("proc", number)
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    all.sort_unstable();
    for pid in all {
        // One that has ended meanwhile is no fault.
        let Ok(text) = tree.try_text(&format!("proc/{pid}/cgroup")) else {
            continue;
        };
        let Some(place) = cgroup::place(&text) else {
            continue;
        };
        let Some(container) = place.container.filter(|_| pods.contains(&place.pod_uid)) else {
            continue;
        };
        let containers = found.entry(place.pod_uid).or_default();
        if containers.len() < CONTAINERS || containers.contains_key(&container) {
            let of = containers.entry(container).or_default();
            if of.len() < PROCESSES {
                of.push(pid);
            }
        }
    }
    found
}

/// The containers of one pod. Its files may not answer for long.
pub(super) fn read(tree: &Tree, pod_uid: &str, processes: &Processes) -> Vec<Container> {
    let mut containers: Vec<Container> = processes
        .values()
        .filter_map(|pids| container(tree, pod_uid, pids))
        .collect();
    containers.sort_by(|one, other| one.name.cmp(&other.name));
    containers.dedup_by(|one, other| one.name == other.name);
    containers
}

/// None for what the pod does not name: the sandbox that holds its namespaces, or one that has ended.
fn container(tree: &Tree, pod_uid: &str, pids: &[u32]) -> Option<Container> {
    let name = pids.iter().find_map(|pid| name(tree, pod_uid, *pid))?;
    let interpreters = pids
        .iter()
        .filter_map(|pid| Some((*pid, Interpreter::of(tree, *pid)?)))
        .collect::<Vec<_>>();
    let main = interpreters.first().map(|(pid, _)| *pid);
    let main = main.or_else(|| pids.first().copied())?;
    let tcp_only = interpreters.iter().any(|(_, python)| python.tcp_only);
    let by_hand = interpreters
        .iter()
        .map(|(_, python)| python.by_hand.clone())
        .find(|by_hand| *by_hand != ByHand::default());
    let mut container = Container {
        pod_uid: pod_uid.to_owned(),
        name,
        wheel: None,
        memlock: memlock(tree, main),
        device_files: Vec::new(),
        tcp_only,
        by_hand: by_hand.unwrap_or_default(),
        matrix: None,
        demand: demand(&interpreters),
        hugetlb: None,
        network: None,
        unread: None,
    };
    match tree.inside(&format!("proc/{main}/root")) {
        Ok(root) => {
            let mut folders: Vec<String> = Vec::new();
            for folder in interpreters.iter().flat_map(|(_, of)| of.folders(&root)) {
                if folders.len() < FOLDERS && !folders.contains(&folder) {
                    folders.push(folder);
                }
            }
            container.wheel = folders.iter().find_map(|folder| wheel(&root, folder));
            container.device_files = device_files(&root);
            let path = container.by_hand.matrix.as_ref();
            container.matrix = path.map(|path| matrix::read(&root, path));
            let asks = container.demand.filter(|demand| demand.launch().is_some());
            container.hugetlb = asks.map(|demand| hugetlb::read(tree, &root, pids, demand.page()));
            container.unread = unread(&root);
        }
        // It has ended.
        Err(Problem::ABSENT) => return None,
        Err(problem) => {
            let path = "/".to_owned();
            container.unread = Some(Fault { path, problem });
        }
    }
    Some(container)
}

/// Of the process that asks for hugepages, or else of the first that says how much memory it makes.
fn demand(interpreters: &[(u32, Interpreter)]) -> Option<Demand> {
    let all = || interpreters.iter().filter_map(|(_, python)| python.demand);
    let huge = all().find(|demand| demand.launch().is_some());
    let known = || all().find(|demand| demand.memory.is_some());
    huge.or_else(known).or_else(|| all().next())
}

/// The kubelet mounts a file into each container, from a folder that is named after it.
fn name(tree: &Tree, pod_uid: &str, pid: u32) -> Option<String> {
    let mounts = tree.try_text(&format!("proc/{pid}/mountinfo")).ok()?;
    let before = format!("/pods/{pod_uid}/containers/");
    mounts.lines().find_map(|line| {
        // Fourth is the folder in the file system that is mounted.
        let root = line.split(' ').nth(3)?;
        let (_, rest) = root.split_once(&before)?;
        let name = rest.split('/').next().unwrap_or(rest);
        let sound = (1..=63).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        sound.then(|| name.to_owned())
    })
}

/// What a process may lock; none where it has no limit.
fn memlock(tree: &Tree, pid: u32) -> Option<Limit> {
    (!locks_freely(tree, pid)).then(|| kernel::memlock(tree, &pid.to_string()))?
}

/// A capability counts where it is held in the node's own user namespace.
fn locks_freely(tree: &Tree, pid: u32) -> bool {
    let user = |process: &str| tree.try_link(&format!("proc/{process}/ns/user")).ok();
    let own = user(&pid.to_string());
    let status = tree.try_text(&format!("proc/{pid}/status"));
    let effective = status.ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok()
    });
    own.is_some()
        && own == user("1")
        && effective.is_some_and(|effective| effective & (1 << IPC_LOCK) != 0)
}

/// The wheel of a folder of packages; of several the first by name, as nobody can tell which is meant.
fn wheel(root: &Tree, folder: &str) -> Option<Wheel> {
    let names = root.matching(folder, |name| {
        name.starts_with(WHEEL) && name.ends_with(".dist-info")
    });
    names.iter().find_map(|name| {
        let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
        let sound = version.len() <= 32 && version.starts_with(|sign: char| sign.is_ascii_digit());
        sound.then(|| Wheel {
            name: name.chars().take(64).collect(),
            version: version.to_owned(),
            folder: format!("/{folder}"),
        })
    })
}

fn device_files(root: &Tree) -> Vec<DeviceFile> {
    let at = "dev/infiniband";
    let names = root.matching(at, |name| name.starts_with("uverbs"));
    let files = names.into_iter().filter_map(|name| {
        let Node::Device { major, minor } = root.node(&format!("{at}/{name}"))? else {
            return None;
        };
        Some(DeviceFile { name, major, minor })
    });
    files.collect()
}

/// What is no folder where one might be is no fault: a path may name an archive.
fn unread(root: &Tree) -> Option<Fault> {
    let not = Problem::from(rustix::io::Errno::NOTDIR);
    let faults = root.faults().into_iter();
    let mut faults = faults.filter(|fault| fault.problem != not);
    faults.next().map(|fault| Fault {
        path: format!("/{}", fault.path),
        ..fault
    })
}

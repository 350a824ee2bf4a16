//! The containers of injected pods, from their processes and root folders: the wheel that Python would load, lock limits,
//! RDMA devices.
//!
//! Files of a container are untrusted. Nothing outside its root is read, folders are listed up to a limit, and only two
//! files are opened: the topology matrix that its engine uses, and the kernel's hugepage limit.

use std::collections::{BTreeMap, BTreeSet};

use crds::inventory::Limit;
use crds::stock::Demand;
use crds::text::clip_chars;
use serde::{Deserialize, Serialize};

use super::cgroup;
use super::fault::{Fault, Problem};
use super::hca::DeviceFile;
use super::interface::Sockets;
use super::kernel;
use super::path::FileKind;
use super::tree::Tree;

pub mod hugetlb;
mod interpreter;
pub mod live;
pub mod matrix;
pub mod rdma_settings;

use hugetlb::Hugetlb;
use interpreter::Interpreter;
use matrix::Matrix;
use rdma_settings::RdmaSettings;

/// Most containers of a pod, and most processes of a container (the oldest), that are read.
const CONTAINERS: usize = 16;
const PROCESSES: usize = 16;

/// Most folders of a container that are searched for a wheel.
const FOLDERS: usize = 32;

/// Prefix of the names of all builds of the wheel.
const WHEEL: &str = "mooncake_transfer_engine";

/// `CAP_IPC_LOCK`: no lock limit in the node's user namespace.
const IPC_LOCK: u32 = 14;

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub pod_uid: String,
    /// Its name in the pod; empty where nothing of the pod can be read.
    pub name: String,
    /// Absent where no Python runs, or Python finds no wheel.
    pub wheel: Option<Wheel>,
    /// Lock limit of the engine's process, or of the first one; absent where unlimited.
    pub memlock: Option<Limit>,
    /// Its device files of RDMA devices.
    pub device_files: Vec<DeviceFile>,
    /// `MC_FORCE_TCP` is set: the stock engine uses TCP only.
    pub tcp_only: bool,
    /// RDMA settings of its engine.
    pub rdma_settings: RdmaSettings,
    /// The topology matrix that it uses; absent where it uses none.
    pub matrix: Option<Matrix>,
    /// Memory and hugepages that its engine requests by variables and flags; absent where no Python runs.
    pub demand: Option<Demand>,
    /// Absent where the engine requests no hugepages.
    pub hugetlb: Option<Hugetlb>,
    /// Settings of its network namespace, where that is not the node's.
    pub network: Option<Network>,
    /// What could not be read of its files.
    pub unread: Option<Fault>,
}

/// Ports of a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// First and last ephemeral port.
    pub local_ports: (u16, u16),
    pub time_wait_reuse: Option<u8>,
    pub sockets: Sockets,
}

/// An installed wheel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wheel {
    /// E.g. `mooncake_transfer_engine_cuda13`.
    pub name: String,
    pub version: String,
    /// Its folder, as a path in the container.
    pub folder: String,
}

impl Container {
    /// A container of a pod whose files cannot be read in time.
    pub fn unresponsive(pod_uid: &str) -> Self {
        Self {
            pod_uid: pod_uid.to_owned(),
            name: String::new(),
            wheel: None,
            memlock: None,
            device_files: Vec::new(),
            tcp_only: false,
            rdma_settings: RdmaSettings::default(),
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

    /// True where the files could not be read in time.
    pub fn is_unresponsive(&self) -> bool {
        let unread = self.unread.as_ref();
        unread.is_some_and(|unread| unread.problem == Problem::Hung)
    }
}

/// Processes by container, ordered by pid.
pub(super) type Processes = BTreeMap<String, Vec<u32>>;

/// The processes of these pods, by pod. Reads only kernel files, which do not block.
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
        // A process that has ended is no fault.
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

/// Reads the containers of one pod. Blocks while its files do not answer.
pub(super) fn read(tree: &Tree, pod_uid: &str, processes: &Processes) -> Vec<Container> {
    let mut containers: Vec<Container> = processes
        .values()
        .filter_map(|pids| container(tree, pod_uid, pids))
        .collect();
    containers.sort_by(|one, other| one.name.cmp(&other.name));
    containers.dedup_by(|one, other| one.name == other.name);
    containers
}

/// None for the pod's sandbox, and for a container that has ended.
fn container(tree: &Tree, pod_uid: &str, pids: &[u32]) -> Option<Container> {
    let name = pids.iter().find_map(|pid| name(tree, pod_uid, *pid))?;
    let interpreters = pids
        .iter()
        .filter_map(|pid| Some((*pid, Interpreter::of(tree, *pid)?)))
        .collect::<Vec<_>>();
    let main = interpreters.first().map(|(pid, _)| *pid);
    let main = main.or_else(|| pids.first().copied())?;
    let tcp_only = interpreters.iter().any(|(_, python)| python.tcp_only);
    let rdma_settings = interpreters
        .iter()
        .map(|(_, python)| python.rdma_settings.clone())
        .find(|rdma_settings| *rdma_settings != RdmaSettings::default());
    let mut container = Container {
        pod_uid: pod_uid.to_owned(),
        name,
        wheel: None,
        memlock: memlock(tree, main),
        device_files: Vec::new(),
        tcp_only,
        rdma_settings: rdma_settings.unwrap_or_default(),
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
            let path = container.rdma_settings.matrix.as_ref();
            container.matrix = path.map(|path| matrix::read(&root, path));
            let requesting = container.demand.filter(|demand| demand.launch().is_some());
            container.hugetlb =
                requesting.map(|demand| hugetlb::read(tree, &root, pids, demand.page()));
            container.unread = unread(&root);
        }
        // The process has ended.
        Err(Problem::ABSENT) => return None,
        Err(problem) => {
            let path = "/".to_owned();
            container.unread = Some(Fault { path, problem });
        }
    }
    Some(container)
}

/// The demand of the process that requests hugepages, or else of the first with a known amount of memory.
fn demand(interpreters: &[(u32, Interpreter)]) -> Option<Demand> {
    let all = || interpreters.iter().filter_map(|(_, python)| python.demand);
    let huge = all().find(|demand| demand.launch().is_some());
    let known = || all().find(|demand| demand.memory.is_some());
    huge.or_else(known).or_else(|| all().next())
}

/// The container's name: the kubelet mounts a file into each container from a folder of that name.
fn name(tree: &Tree, pod_uid: &str, pid: u32) -> Option<String> {
    let mounts = tree.try_text(&format!("proc/{pid}/mountinfo")).ok()?;
    let before = format!("/pods/{pod_uid}/containers/");
    mounts.lines().find_map(|line| {
        // The fourth field is the mounted folder within its file system.
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

/// Lock limit of a process; none where unlimited.
fn memlock(tree: &Tree, pid: u32) -> Option<Limit> {
    (!locks_freely(tree, pid)).then(|| kernel::memlock(tree, &pid.to_string()))?
}

/// True with CAP_IPC_LOCK in the node's user namespace; capabilities of other user namespaces do not count.
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

/// The wheel in a package folder; the first by name where there are several.
fn wheel(root: &Tree, folder: &str) -> Option<Wheel> {
    let names = root.matching(folder, |name| {
        name.starts_with(WHEEL) && name.ends_with(".dist-info")
    });
    names.iter().find_map(|name| {
        let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
        let sound = version.len() <= 32 && version.starts_with(|sign: char| sign.is_ascii_digit());
        sound.then(|| Wheel {
            name: clip_chars(name, 64),
            version: version.to_owned(),
            folder: format!("/{folder}"),
        })
    })
}

fn device_files(root: &Tree) -> Vec<DeviceFile> {
    let at = "dev/infiniband";
    let names = root.matching(at, |name| name.starts_with("uverbs"));
    let files = names.into_iter().filter_map(|name| {
        let FileKind::Device { major, minor } = root.node(&format!("{at}/{name}"))? else {
            return None;
        };
        Some(DeviceFile { name, major, minor })
    });
    files.collect()
}

/// The first fault. A search path that is not a folder is no fault: it may be an archive.
fn unread(root: &Tree) -> Option<Fault> {
    let not = Problem::from(rustix::io::Errno::NOTDIR);
    let faults = root.faults().into_iter();
    let mut faults = faults.filter(|fault| fault.problem != not);
    faults.next().map(|fault| Fault {
        path: format!("/{}", fault.path),
        ..fault
    })
}

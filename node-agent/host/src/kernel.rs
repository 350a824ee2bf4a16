//! The kernel: its release, modules, settings and lock limits.

use std::io;
use std::path::Path;

use crds::inventory::{Limit, Module};
use serde::{Deserialize, Serialize};

use super::tree::Tree;

/// Modules that matter to RDMA and GPUs.
const MODULES: [&str; 20] = [
    "bonding",
    "bnxt_re",
    "efa",
    "erdma",
    "gdrdrv",
    "ib_core",
    "ib_umad",
    "ib_uverbs",
    "irdma",
    "iw_cm",
    "mlx5_core",
    "mlx5_ib",
    "nv_peer_mem",
    "nvidia",
    "nvidia_fs",
    "nvidia_peermem",
    "nvidia_uvm",
    "rdma_cm",
    "rdma_rxe",
    "rdma_ucm",
];

/// Facts of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    pub release: Option<String>,
    pub distribution: Option<String>,
    pub cgroup_version: Option<u8>,
    pub modules: Vec<Module>,
    pub max_map_count: Option<u64>,
    /// First and last ephemeral port of the node's network namespace.
    pub local_ports: Option<(u16, u16)>,
    /// The sysctl net.ipv4.tcp_tw_reuse of the node's network namespace.
    pub time_wait_reuse: Option<u8>,
    /// Memory lock limit of PID 1.
    pub memlock: Option<Limit>,
    /// Memory lock limit of this process, which the container runtime gives to every container.
    pub own_memlock: Option<Limit>,
}

impl Kernel {
    /// True where one of [`MODULES`] is loaded.
    pub fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module.name == name)
    }
}

pub(super) fn read(tree: &Tree) -> Kernel {
    Kernel {
        release: tree.need("proc/sys/kernel/osrelease"),
        distribution: distribution(tree),
        cgroup_version: cgroup_version(tree),
        modules: modules(tree),
        max_map_count: tree.value("proc/sys/vm/max_map_count"),
        local_ports: local_ports(tree),
        time_wait_reuse: time_wait_reuse(tree),
        memlock: memlock(tree, "1"),
        own_memlock: memlock(tree, "thread-self"),
    }
}

/// Reads the boot id, as the kubelet reports it, from a folder with procfs.
///
/// # Errors
/// The file cannot be read.
pub fn boot_id(proc: &Path) -> io::Result<String> {
    let path = proc.join("sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}

/// Setting of the reader's network namespace.
pub(super) fn local_ports(tree: &Tree) -> Option<(u16, u16)> {
    let path = "proc/sys/net/ipv4/ip_local_port_range";
    tree.parsed(path, tree.text(path)?, |text| {
        let mut words = text.split_ascii_whitespace();
        let range = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        words.next().is_none().then_some(range)
    })
}

/// Setting of the reader's network namespace.
pub(super) fn time_wait_reuse(tree: &Tree) -> Option<u8> {
    tree.value("proc/sys/net/ipv4/tcp_tw_reuse")
}

/// Memory lock limit of a process.
pub(super) fn memlock(tree: &Tree, process: &str) -> Option<Limit> {
    let path = format!("proc/{process}/limits");
    tree.parsed(&path, tree.text(&path)?, |text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"))?;
        let mut words = line.split_ascii_whitespace().map(|word| {
            let known = word == "unlimited" || word.parse::<u64>().is_ok();
            known.then(|| word.to_owned())
        });
        Some(Limit {
            soft: words.next()??,
            hard: words.next()??,
        })
    })
}

fn modules(tree: &Tree) -> Vec<Module> {
    let present = MODULES.iter().filter(|name| {
        // A module that failed to start, or is still starting, does not count as loaded.
        let state = tree.text(&format!("sys/module/{name}/initstate"));
        let built_in = || tree.node(&format!("sys/module/{name}")).is_some();
        state.map_or_else(built_in, |state| state == "live")
    });
    present
        .map(|name| Module {
            name: (*name).to_owned(),
            version: tree
                .text(&format!("sys/module/{name}/version"))
                .filter(|version| !version.is_empty()),
        })
        .collect()
}

fn distribution(tree: &Tree) -> Option<String> {
    let text = ["etc/os-release", "usr/lib/os-release"]
        .iter()
        .find_map(|path| tree.text(path))?;
    text.lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|name| name.trim_matches('"').to_owned())
}

/// 2 where the unified hierarchy has the controllers.
fn cgroup_version(tree: &Tree) -> Option<u8> {
    if tree.node("sys/fs/cgroup/cgroup.controllers").is_some() {
        Some(2)
    } else if tree.node("sys/fs/cgroup/memory").is_some() {
        Some(1)
    } else {
        None
    }
}

//! Requirements of a step: all missing resources are reported at once, missing packages installed.

pub mod go;
pub mod packages;

use crate::Error;
use crate::command::Run;
use std::fs;
use std::path::Path;

const GIB: u64 = 1 << 30;

/// Plain sudo finds neither the cargo of a user's rustup nor that user's toolchains and caches.
const NOT_ROOT: &str =
    "root, to create namespaces, cgroups and mounts: sudo env HOME=\"$HOME\" PATH=\"$PATH\" make …";

/// The kernel module by which packets between two pods of a node pass nftables.
pub const BRIDGE_FILTER: &str = "br_netfilter";

/// Resources that a step needs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    pub memory: u64,
    pub cache_disk: u64,
    pub state_disk: u64,
}

impl Needs {
    /// For builds: Go's caches and the binaries, or little when the cache has them.
    pub fn build(cached: bool) -> Self {
        Self {
            memory: if cached { GIB / 4 } else { 3 * GIB },
            cache_disk: if cached { GIB } else { 12 * GIB },
            state_disk: 0,
        }
    }

    /// For a control plane and idle nodes.
    pub fn cluster(nodes: u8) -> Self {
        Self {
            memory: GIB + u64::from(nodes) * GIB / 2,
            cache_disk: 0,
            state_disk: GIB + u64::from(nodes) * GIB,
        }
    }
}

/// Checks all requirements.
///
/// # Errors
/// [`Error::Needs`] with everything that is missing.
pub fn check(needs: Needs, cache: &Path, state: &Path) -> Result<(), Error> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push(NOT_ROOT.to_owned());
    }
    if let Some(available) = available_memory()
        && available < needs.memory
    {
        missing.push(format!(
            "memory: {} MiB available, {} MiB needed",
            available >> 20,
            needs.memory >> 20
        ));
    }
    for (folder, needed) in [(cache, needs.cache_disk), (state, needs.state_disk)] {
        let free = free_disk(folder)?;
        if free < needed {
            missing.push(format!(
                "disk: {} MiB free for {}, {} MiB needed",
                free >> 20,
                folder.display(),
                needed >> 20
            ));
        }
    }
    missing.extend(packages::unavailable());
    // A build alone needs no network of pods.
    if needs.state_disk > 0 {
        let loadable = can_load_bridge_filter();
        missing.extend(bridge_problem(has_bridge_filter(), loadable));
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::Needs { missing })
    }
}

/// Whether nftables see what bridges forward: the module is loaded, or built into the kernel.
pub fn has_bridge_filter() -> bool {
    Path::new("/proc/sys/net/bridge").is_dir()
}

/// None before kmod is installed, which shows it.
fn can_load_bridge_filter() -> Option<bool> {
    packages::find("modprobe")?;
    let dry_run = Run::new("modprobe").args(["--dry-run", BRIDGE_FILTER]);
    Some(dry_run.done().is_ok())
}

fn bridge_problem(present: bool, loadable: Option<bool>) -> Option<String> {
    (!present && loadable == Some(false)).then(|| {
        format!(
            "the kernel module {BRIDGE_FILTER}: without it pods cannot reach a Service whose endpoint is on their own node. \
             Load it (modprobe {BRIDGE_FILTER}), or use a kernel that has it"
        )
    })
}

/// Checks that this machine can have IPv6 addresses, for a dual-stack cluster.
///
/// # Errors
/// [`Error::Needs`].
pub fn check_ipv6() -> Result<(), Error> {
    // `default` holds for the links that a cluster adds.
    let switches = ["all", "default"].map(|scope| {
        let file = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        fs::read_to_string(file).ok()
    });
    match ipv6_problem(&switches) {
        None => Ok(()),
        Some(problem) => Err(Error::Needs {
            missing: vec![problem],
        }),
    }
}

/// `switches` are the contents of `disable_ipv6`, None in a kernel without IPv6.
fn ipv6_problem(switches: &[Option<String>]) -> Option<String> {
    let off = |switch: &Option<String>| switch.as_deref().is_none_or(|text| text.trim() != "0");
    switches.iter().any(off).then(|| {
        "IPv6, for a dual-stack cluster: boot without ipv6.disable=1, and run \
         sysctl net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0"
            .to_owned()
    })
}

/// Memory available without swapping, in bytes; None where the kernel does not report it.
pub fn available_memory() -> Option<u64> {
    mem_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// `MemAvailable` in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib << 10)
}

/// Free bytes of the file system of a folder, which need not exist.
fn free_disk(folder: &Path) -> Result<u64, Error> {
    let existing = folder
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or_else(|| Path::new("/"));
    let figures = rustix::fs::statvfs(existing)
        .map_err(|errno| Error::file("reading the free space of", existing)(errno.into()))?;
    Ok(figures.f_bavail * figures.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_missing_is_reported() {
        let impossible = Needs {
            memory: u64::MAX,
            cache_disk: u64::MAX,
            state_disk: u64::MAX,
        };
        let error = check(impossible, Path::new("/tmp/a"), Path::new("/tmp/b"))
            .unwrap_err()
            .to_string();
        for word in ["memory:", "/tmp/a", "/tmp/b"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_kernel_without_the_filter_of_bridges_is_a_missing_requirement() {
        assert_eq!(bridge_problem(true, Some(false)), None);
        assert_eq!(bridge_problem(false, Some(true)), None);
        assert_eq!(bridge_problem(false, None), None);
        let problem = bridge_problem(false, Some(false)).unwrap();
        assert!(problem.contains("modprobe br_netfilter"), "{problem}");
    }

    #[test]
    fn a_dual_stack_cluster_needs_ipv6_for_the_links_that_it_adds() {
        let read = |text: &str| Some(text.to_owned());
        assert_eq!(ipv6_problem(&[read("0\n"), read("0\n")]), None);
        for off in [
            [read("1\n"), read("0\n")],
            [read("0\n"), read("1\n")],
            [None, None],
        ] {
            assert!(ipv6_problem(&off).is_some(), "{off:?}");
        }
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(
            mem_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"),
            Some(2 << 20)
        );
    }
}

//! Requirements of a step: all missing resources are reported at once, missing packages installed.

pub mod go;
pub mod packages;

use crate::Error;
use std::fs;
use std::path::Path;

const GIB: u64 = 1 << 30;

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
        missing.push("root, to create namespaces, cgroups and mounts: run it with sudo".to_owned());
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
    if let Some(problem) = packages::unavailable() {
        missing.push(problem);
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::Needs { missing })
    }
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
    fn available_memory_is_read_in_bytes() {
        assert_eq!(
            mem_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"),
            Some(2 << 20)
        );
    }
}

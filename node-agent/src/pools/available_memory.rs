//! Decides whether the node has the memory that a pool pod is about to touch. Otherwise the kernel would
//! kill, or the kubelet evict, some process. Pure, except for reading procfs.

use std::io;
use std::path::Path;

use crds::ByteSize;

/// Memory in bytes that stays available when all granted memory is touched. The kubelet's default
/// eviction threshold is 100 MiB.
const RESERVE: u64 = 128 << 20;

/// Limit of the active file pages that are deducted from the available memory. The kubelet counts all of
/// them as used and would evict before the kernel reclaims them. The kernel deactivates pages above it.
const ACTIVE_FILE_LIMIT: u64 = RESERVE;

/// Granularity of the values in messages. Without it, the message would change at each retry.
const GRANULARITY: u64 = 64 << 20;

/// The node does not have the memory now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the node has {} available{}; {} are required: {} for this pod and {} in reserve; the memory is \
     granted when it is available",
    ByteSize(*.have), besides(*.promised), ByteSize(.touch.saturating_add(RESERVE)), ByteSize(*.touch),
    ByteSize(RESERVE)
)]
pub(crate) struct InsufficientMemory {
    /// Available and not granted, in bytes.
    have: u64,
    /// Granted to other pool pods, not touched yet.
    promised: u64,
    touch: u64,
}

fn besides(bytes: u64) -> String {
    if bytes == 0 {
        return String::new();
    }
    let bytes = ByteSize(bytes);
    format!(" in addition to {bytes} that are granted to other pool pods and not touched yet")
}

/// Checks whether a pod may touch `touch` more bytes. `available` is the value of the kernel, `promised`
/// is granted to other pods and not touched yet.
pub(crate) fn check(available: u64, promised: u64, touch: u64) -> Result<(), InsufficientMemory> {
    let have = available.saturating_sub(promised);
    if touch == 0 || have >= touch.saturating_add(RESERVE) {
        return Ok(());
    }
    Err(InsufficientMemory {
        have: have - have % GRANULARITY,
        promised: promised - promised % GRANULARITY,
        touch,
    })
}

/// Reads the kernel's `MemAvailable`, less the active file pages up to [`ACTIVE_FILE_LIMIT`].
///
/// # Errors
/// procfs cannot be read, or has no `MemAvailable`.
pub(crate) fn available(proc: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(proc.join("meminfo"))?;
    parse(&text).ok_or_else(|| io::Error::other("meminfo has no MemAvailable"))
}

fn parse(meminfo: &str) -> Option<u64> {
    let bytes = |name: &str| -> Option<u64> {
        let mut lines = meminfo.lines();
        let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1 << 10)
    };
    let active = bytes("Active(file)").unwrap_or(0).min(ACTIVE_FILE_LIMIT);
    Some(bytes("MemAvailable")?.saturating_sub(active))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_grant_requires_the_touched_memory_and_the_reserve() {
        let need = 512 * MIB + RESERVE;
        assert_eq!(check(need, 0, 512 * MIB), Ok(()));
        assert!(check(need - 1, 0, 512 * MIB).is_err());
        assert!(check(u64::MAX, 0, u64::MAX).is_ok(), "no overflow");
    }

    #[test]
    fn memory_granted_to_others_and_not_touched_counts_as_used() {
        assert_eq!(check(2000 * MIB, 1000 * MIB, 800 * MIB), Ok(()));
        assert!(check(2000 * MIB, 1100 * MIB, 800 * MIB).is_err());
        assert!(check(100 * MIB, 200 * MIB, MIB).is_err());
    }

    #[test]
    fn a_grant_that_touches_nothing_is_never_rejected() {
        assert_eq!(check(0, 0, 0), Ok(()));
    }

    #[test]
    fn an_error_states_available_and_required_memory_and_stays_the_same_between_retries() {
        let refused = |available| check(available, 100 * MIB, 512 * MIB).unwrap_err();
        let words = refused(700 * MIB).to_string();
        assert_eq!(
            words,
            "the node has 576Mi available in addition to 64Mi that are granted to other pool pods and \
             not touched yet; 640Mi are required: 512Mi for this pod and 128Mi in reserve; the memory \
             is granted when it is available"
        );
        assert_eq!(refused(701 * MIB).to_string(), words);
        assert!(!check(0, 0, MIB).unwrap_err().to_string().contains("other"));
    }

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        let text = "MemTotal:       24640928 kB\nMemAvailable:   12 kB\nActive(file):   2 kB\n";
        assert_eq!(parse(text), Some(10 << 10));
        assert_eq!(parse("MemTotal: 1 kB\nActive(file): 2 kB\n"), None);
    }

    #[test]
    fn active_file_pages_are_deducted_up_to_a_limit() {
        let of = |active: u64| {
            parse(&format!(
                "MemAvailable: 1048576 kB\nActive(file): {active} kB\n"
            ))
        };
        assert_eq!(of(64 << 10), Some((1024 - 64) * MIB));
        assert_eq!(of(900 << 10), Some((1024 - 128) * MIB));
    }
}

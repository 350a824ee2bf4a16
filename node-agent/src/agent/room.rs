//! Whether the node has the memory that a pool pod is about to touch: where it has not, touching would
//! end in the kernel's or the kubelet's choice of a victim. Pure, but for the reading of procfs.

use std::io;
use std::path::Path;

use crds::ByteSize;

/// What must stay available when everything granted is touched: the kubelet evicts below 100 MiB
/// where nobody says otherwise.
const SPARE: u64 = 128 << 20;

/// So much of the file pages in use is not there to be had: the kubelet counts all of them as used, and
/// would evict before the kernel takes them. Where there are many more, the kernel makes them idle as
/// it needs room.
const IN_USE: u64 = SPARE;

/// What a message tells is rounded down to this, or each look at a busy node would be news.
const STEP: u64 = 64 << 20;

/// The node lacks the memory for now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the node has {} available{}, {} are needed: {} for this pod and {} that must stay free; it is \
     granted as soon as they are there",
    ByteSize(*.have), beyond(*.promised), ByteSize(.touch.saturating_add(SPARE)), ByteSize(*.touch),
    ByteSize(SPARE)
)]
pub(crate) struct Short {
    /// What nobody has and nobody was granted.
    have: u64,
    /// Granted to other pool pods, which have not touched it yet.
    promised: u64,
    touch: u64,
}

fn beyond(bytes: u64) -> String {
    if bytes == 0 {
        return String::new();
    }
    let bytes = ByteSize(bytes);
    format!(" beyond {bytes} that other pool pods were granted and are still to touch")
}

/// Whether a pod may touch so many bytes more. `available` is the kernel's word, `promised` what others
/// were granted and have not touched yet.
pub(crate) fn judge(available: u64, promised: u64, touch: u64) -> Result<(), Short> {
    let have = available.saturating_sub(promised);
    if touch == 0 || have >= touch.saturating_add(SPARE) {
        return Ok(());
    }
    Err(Short {
        have: have - have % STEP,
        promised: promised - promised % STEP,
        touch,
    })
}

/// The kernel's estimate of what can be had without harm to others, less file pages in use up to
/// [`IN_USE`].
///
/// # Errors
/// If procfs does not tell it.
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
    let in_use = bytes("Active(file)").unwrap_or(0).min(IN_USE);
    Some(bytes("MemAvailable")?.saturating_sub(in_use))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_grant_needs_what_is_touched_and_what_must_stay_free() {
        let need = 512 * MIB + SPARE;
        assert_eq!(judge(need, 0, 512 * MIB), Ok(()));
        assert!(judge(need - 1, 0, 512 * MIB).is_err());
        assert!(judge(u64::MAX, 0, u64::MAX).is_ok(), "no overflow");
    }

    #[test]
    fn what_others_are_still_to_touch_is_used() {
        assert_eq!(judge(2000 * MIB, 1000 * MIB, 800 * MIB), Ok(()));
        assert!(judge(2000 * MIB, 1100 * MIB, 800 * MIB).is_err());
        assert!(judge(100 * MIB, 200 * MIB, MIB).is_err());
    }

    #[test]
    fn what_touches_nothing_of_it_is_never_refused() {
        assert_eq!(judge(0, 0, 0), Ok(()));
    }

    #[test]
    fn a_refusal_says_have_and_need_and_does_not_change_with_every_look() {
        let refused = |available| judge(available, 100 * MIB, 512 * MIB).unwrap_err();
        let words = refused(700 * MIB).to_string();
        assert_eq!(
            words,
            "the node has 576Mi available beyond 64Mi that other pool pods were granted and are \
             still to touch, 640Mi are needed: 512Mi for this pod and 128Mi that must stay free; it \
             is granted as soon as they are there"
        );
        assert_eq!(refused(701 * MIB).to_string(), words);
        assert!(!judge(0, 0, MIB).unwrap_err().to_string().contains("other"));
    }

    #[test]
    fn the_kernels_word_is_read_in_its_unit() {
        let text = "MemTotal:       24640928 kB\nMemAvailable:   12 kB\nActive(file):   2 kB\n";
        assert_eq!(parse(text), Some(10 << 10));
        assert_eq!(parse("MemTotal: 1 kB\nActive(file): 2 kB\n"), None);
    }

    #[test]
    fn file_pages_in_use_are_not_there_to_be_had_but_many_of_them_are() {
        let of = |active: u64| {
            parse(&format!(
                "MemAvailable: 1048576 kB\nActive(file): {active} kB\n"
            ))
        };
        assert_eq!(of(64 << 10), Some((1024 - 64) * MIB));
        assert_eq!(of(900 << 10), Some((1024 - 128) * MIB));
    }
}

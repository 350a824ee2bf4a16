//! Computes the hugepage memory of a stock HiCache launch, with the inputs, formula and status words of Mooncake's
//! script `check_hicache_hugepage_requirements.py`. Pure.

use std::fmt;
use std::num::NonZeroU32;

use serde::Serialize;

/// Size of the largest extent of a pool, in bytes. Pools are divided into extents of at most this size, each
/// of which is registered and mounted as one piece.
pub const MAX_EXTENT_BYTES: u64 = 16 << 30;

/// A launch on one node, by its flags and environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// `--tp-size`: number of ranks on the node.
    pub tp_size: NonZeroU32,
    /// `--hicache-size`, bytes per rank.
    pub hicache: u64,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`, bytes per rank.
    pub segment: u64,
    /// `MC_MMAP_ARENA_POOL_SIZE`, bytes per rank. 0: no arena.
    pub arena: u64,
}

/// Whether the available memory is sufficient for a launch, in the script's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchStatus {
    /// The available memory is unknown.
    PlanningOnly,
    /// The launch will fail.
    InsufficientForBaseline,
    /// The launch starts, but the arena may use regular pages.
    BaselineFitsArenaMayFallback,
    /// The memory is sufficient, including the arena.
    CleanArenaBudgetAvailable,
}

impl LaunchStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PlanningOnly => "planning_only",
            Self::InsufficientForBaseline => "insufficient_for_baseline",
            Self::BaselineFitsArenaMayFallback => "baseline_fits_arena_may_fallback",
            Self::CleanArenaBudgetAvailable => "clean_arena_budget_available",
        }
    }

    /// Returns the meaning and the remedy, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::PlanningOnly => {
                "the available memory is unknown: set a node or the amount of reserved memory"
            }
            Self::InsufficientForBaseline => {
                "the launch will fail: raise vm.nr_hugepages, or lower --hicache-size or \
                 MOONCAKE_GLOBAL_SEGMENT_SIZE"
            }
            Self::BaselineFitsArenaMayFallback => {
                "the launch starts, but the arena may use regular pages: raise vm.nr_hugepages, or \
                 lower MC_MMAP_ARENA_POOL_SIZE"
            }
            Self::CleanArenaBudgetAvailable => "the memory is sufficient",
        }
    }
}

impl fmt::Display for LaunchStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Required and available memory of a launch, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// HiCache and segment per rank.
    pub baseline_per_rank: u64,
    /// Minimum of all ranks, below which the launch fails.
    pub baseline: u64,
    /// Baseline and arena per rank.
    pub clean_per_rank: u64,
    /// Sum of all ranks including arenas, above which only hugepages are used.
    pub clean: u64,
    /// Available memory. None: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    pub status: LaunchStatus,
    /// Bytes missing for `baseline`.
    pub short_of_baseline: u64,
    /// Bytes missing for `clean`.
    pub short_of_clean: u64,
}

/// The launch requires more than 2^64 - 1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sum of the sizes exceeds 2^64 - 1 bytes: check their units")]
pub struct TooLarge;

/// Compares the memory of a launch with the available bytes.
///
/// # Errors
/// [`TooLarge`]: the sum exceeds 2^64 - 1 bytes.
pub fn budget(launch: &Launch, available: Option<u64>) -> Result<Budget, TooLarge> {
    let Launch {
        tp_size,
        hicache,
        segment,
        arena,
    } = *launch;
    let baseline_per_rank = hicache.checked_add(segment).ok_or(TooLarge)?;
    let clean_per_rank = baseline_per_rank.checked_add(arena).ok_or(TooLarge)?;
    let all = |rank: u64| rank.checked_mul(u64::from(tp_size.get())).ok_or(TooLarge);
    let (baseline, clean) = (all(baseline_per_rank)?, all(clean_per_rank)?);
    let status = match available {
        None => LaunchStatus::PlanningOnly,
        Some(there) if there < baseline => LaunchStatus::InsufficientForBaseline,
        Some(there) if there < clean => LaunchStatus::BaselineFitsArenaMayFallback,
        Some(_) => LaunchStatus::CleanArenaBudgetAvailable,
    };
    let short = |of: u64| available.map_or(0, |there| of.saturating_sub(there));
    Ok(Budget {
        baseline_per_rank,
        baseline,
        clean_per_rank,
        clean,
        available,
        status,
        short_of_baseline: short(baseline),
        short_of_clean: short(clean),
    })
}

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error(
        "`{0}` is not a size: write a number and one of b, k, m, g, t, optionally followed by `b` or `ib` (96gb)"
    )]
    Malformed(String),
    #[error("`{0}` is more than 2^64 - 1 bytes")]
    TooLarge(String),
}

/// Parses a size as the script does: every unit is a power of 1024, in upper or lower case. `Gi` is accepted too. `G`
/// is 1024^3, unlike in Kubernetes.
///
/// # Errors
/// [`SizeError`]: the text is malformed, or exceeds 2^64 - 1 bytes.
pub fn size(text: &str) -> Result<u64, SizeError> {
    let malformed = || SizeError::Malformed(text.to_owned());
    let plain = text.trim().to_ascii_lowercase().replace('_', "");
    let split = plain
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(plain.len());
    let (number, unit) = plain.split_at(split);
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" | "kib" | "ki" => 10,
        "m" | "mb" | "mib" | "mi" => 20,
        "g" | "gb" | "gib" | "gi" => 30,
        "t" | "tb" | "tib" | "ti" => 40,
        _ => return Err(malformed()),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((_, "")) => return Err(malformed()),
        Some(parts) => parts,
        None => (number, ""),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    // More than nine digits of a fraction are below one byte.
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return Err(malformed());
    }
    let too_large = || SizeError::TooLarge(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = u128::from(whole) << shift;
    if !fraction.is_empty() {
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| malformed())?);
        let part: u128 = fraction.parse().map_err(|_| malformed())?;
        bytes += (part << shift) / scale;
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn launch(arena: u64) -> Launch {
        Launch {
            tp_size: NonZeroU32::new(4).unwrap(),
            hicache: 10 * GIB,
            segment: 2 * GIB,
            arena,
        }
    }

    #[test]
    fn the_status_equals_the_scripts_at_each_limit() {
        for (available, word, short) in [
            (None, "planning_only", (0, 0)),
            (
                Some(48 * GIB - 1),
                "insufficient_for_baseline",
                (1, 32 * GIB + 1),
            ),
            (
                Some(48 * GIB),
                "baseline_fits_arena_may_fallback",
                (0, 32 * GIB),
            ),
            (
                Some(80 * GIB - 1),
                "baseline_fits_arena_may_fallback",
                (0, 1),
            ),
            (Some(80 * GIB), "clean_arena_budget_available", (0, 0)),
        ] {
            let budget = budget(&launch(8 * GIB), available).unwrap();
            assert_eq!(budget.status.as_str(), word, "{available:?}");
            let lacks = (budget.short_of_baseline, budget.short_of_clean);
            assert_eq!(lacks, short, "{available:?}");
            assert_eq!((budget.baseline, budget.clean), (48 * GIB, 80 * GIB));
        }
    }

    #[test]
    fn without_an_arena_the_baseline_is_sufficient() {
        let budget = budget(&launch(0), Some(48 * GIB)).unwrap();
        assert_eq!(budget.status, LaunchStatus::CleanArenaBudgetAvailable);
    }

    #[test]
    fn a_sum_that_overflows_is_rejected() {
        let mut huge = launch(0);
        huge.segment = u64::MAX;
        assert_eq!(budget(&huge, None), Err(TooLarge));
    }

    #[test]
    fn sizes_are_parsed_as_in_the_script() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("8gb", 8 * GIB),
            ("8G", 8 * GIB),
            ("8Gi", 8 * GIB),
            (" 1.5GiB ", 3 * GIB / 2),
            ("96_000kb", 96_000 << 10),
            ("2t", 2048 * GIB),
            ("0.3b", 0),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "gb", "-1g", "1.g", "1e3", "8x", "1 gb", "1.5.5g"] {
            assert!(matches!(size(text), Err(SizeError::Malformed(_))), "{text}");
        }
        assert!(matches!(size("99999999t"), Err(SizeError::TooLarge(_))));
    }
}

//! How much hugepage memory a stock HiCache launch needs: the inputs, the formula and the status words
//! of Mooncake's own helper (`check_hicache_hugepage_requirements.py`). Pure.

use std::fmt;
use std::num::NonZeroU32;

use serde::Serialize;

/// What is to be launched on one node, as its own flags and variables say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// `--tp-size`: ranks on the node.
    pub tp_size: NonZeroU32,
    /// `--hicache-size`, bytes of a rank.
    pub hicache: u64,
    /// `MOONCAKE_GLOBAL_SEGMENT_SIZE`, bytes of a rank.
    pub segment: u64,
    /// `MC_MMAP_ARENA_POOL_SIZE`, bytes of a rank; 0: no arena.
    pub arena: u64,
}

/// The helper's words for how a launch fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// Nobody knows how much there is.
    PlanningOnly,
    /// It will not start.
    InsufficientForBaseline,
    /// It starts; the arena may spill onto regular pages.
    BaselineFitsArenaMayFallback,
    /// All of it fits.
    CleanArenaBudgetAvailable,
}

impl Fit {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PlanningOnly => "planning_only",
            Self::InsufficientForBaseline => "insufficient_for_baseline",
            Self::BaselineFitsArenaMayFallback => "baseline_fits_arena_may_fallback",
            Self::CleanArenaBudgetAvailable => "clean_arena_budget_available",
        }
    }

    /// What it means and what to do, in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::PlanningOnly => {
                "nobody said how much there is: name a node, or give the memory set aside"
            }
            Self::InsufficientForBaseline => {
                "it will not start: raise vm.nr_hugepages, or lower --hicache-size or \
                 MOONCAKE_GLOBAL_SEGMENT_SIZE"
            }
            Self::BaselineFitsArenaMayFallback => {
                "it starts, but the arena may spill onto regular pages: raise vm.nr_hugepages, or \
                 lower MC_MMAP_ARENA_POOL_SIZE"
            }
            Self::CleanArenaBudgetAvailable => "all of it fits",
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a launch needs, and how it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// HiCache and segment of one rank.
    pub baseline_per_rank: u64,
    /// The same of all ranks: below it nothing starts.
    pub baseline: u64,
    /// Baseline and arena of one rank.
    pub clean_per_rank: u64,
    /// The same of all ranks: from it on nothing spills.
    pub clean: u64,
    /// What there is; absent where nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    pub status: Fit,
    /// Bytes that lack for the baseline.
    pub short_of_baseline: u64,
    /// Bytes that lack for all of it.
    pub short_of_clean: u64,
}

/// The launch needs more than 2^64 - 1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sizes add up to more than 2^64 - 1 bytes: see their units")]
pub struct TooLarge;

/// Compares a launch with what there is.
///
/// # Errors
/// Where the sum is no number of bytes.
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
        None => Fit::PlanningOnly,
        Some(there) if there < baseline => Fit::InsufficientForBaseline,
        Some(there) if there < clean => Fit::BaselineFitsArenaMayFallback,
        Some(_) => Fit::CleanArenaBudgetAvailable,
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

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error(
        "`{0}` is no size: write a number and one of b, k, m, g, t, with `b` or `ib` behind if you like (96gb)"
    )]
    Malformed(String),
    #[error("`{0}` is more than 2^64 - 1 bytes")]
    TooLarge(String),
}

/// Reads a size as the helper does: every unit is a power of 1024, in upper or lower case. Kubernetes'
/// `Gi` is read too; its `G` of 1000^3 is not, as stock programs know none.
///
/// # Errors
/// What was written, and what to write.
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
    // Past nine digits a fraction of a tebibyte is no whole byte any more.
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
    fn s20_s21_s22_the_words_are_the_seeds_helpers_at_each_edge() {
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
    fn without_an_arena_nothing_can_spill() {
        let budget = budget(&launch(0), Some(48 * GIB)).unwrap();
        assert_eq!(budget.status, Fit::CleanArenaBudgetAvailable);
    }

    #[test]
    fn a_sum_that_is_no_number_of_bytes_is_refused() {
        let mut huge = launch(0);
        huge.segment = u64::MAX;
        assert_eq!(budget(&huge, None), Err(TooLarge));
    }

    #[test]
    fn sizes_are_read_as_the_helper_reads_them() {
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

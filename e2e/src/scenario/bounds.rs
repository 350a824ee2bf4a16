//! Bounds that only the soak asserts: other runs share the processors with builds and other scenarios.

use anyhow::ensure;
use local_cluster::Scale;
use std::time::Duration;

/// Longest operation of a load, and its least rate in percent, where the processors are shared.
const SHARED: Pace = Pace {
    longest: Duration::from_secs(10),
    percent: 10,
};
/// Least rate in percent at full counts: a load repeats nothing that it missed during a stall.
const PERCENT: u64 = 50;

/// Prints a time beside the bound of the design.
///
/// # Errors
/// At full counts, when it took longer.
#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
pub fn within(scale: Scale, what: &str, took: Duration, bound: Duration) -> anyhow::Result<()> {
    println!("{what}: after {took:.1?}, of {bound:?}");
    ensure!(
        !scale.is_full() || took <= bound,
        "{what}: after {took:.1?}, which is more than {bound:?}"
    );
    Ok(())
}

/// What a load keeps to while something is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The longest operation.
    pub longest: Duration,
    /// Least part of the operations that it tries, in percent.
    pub percent: u64,
}

impl Pace {
    /// At full counts no operation may take longer than this.
    pub fn of(scale: Scale, longest: Duration) -> Self {
        if scale.is_full() {
            Self {
                longest,
                percent: PERCENT,
            }
        } else {
            SHARED
        }
    }
}

//! The command line.

use clap::Parser;

/// What the product does and costs on a real cluster. Makes a local one and takes it down.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    /// Name of the local cluster
    #[arg(long, default_value = "figures")]
    pub(crate) name: String,
    /// MiB put and got in each turn
    #[arg(long, default_value_t = 128)]
    pub(crate) volume: u64,
    /// Turns; both segments have theirs in each. Fewer than a dozen tell no twentieth from noise
    #[arg(long, default_value_t = 21)]
    pub(crate) rounds: usize,
    /// Seconds of rest over which processor time and writes are counted
    #[arg(long, default_value_t = 60)]
    pub(crate) rest: u64,
    /// MiB of the pool: it is filled once, so that none of it is memory that nobody used
    #[arg(long, default_value_t = 1024)]
    pub(crate) pool: u64,
}

//! The command line.

use clap::Parser;

/// Measures throughput and resource use on a local cluster, which it creates and removes
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    /// Name of the local cluster
    #[arg(long, default_value = "figures")]
    pub(crate) name: String,
    /// MiB put and got per segment and round
    #[arg(long, default_value_t = 128)]
    pub(crate) volume: u64,
    /// Rounds. With fewer than 12 a difference of 5 % is within the noise
    #[arg(long, default_value_t = 21)]
    pub(crate) rounds: usize,
    /// Seconds over which processor time and API writes of an idle cluster are counted
    #[arg(long, default_value_t = 60)]
    pub(crate) rest: u64,
    /// MiB of the pool, which is filled once before the measurement
    #[arg(long, default_value_t = 1024)]
    pub(crate) pool: u64,
}

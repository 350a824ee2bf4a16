//! The command line.

use clap::{Parser, ValueEnum};

/// Measures throughput and resource use on a local cluster, which it creates and removes
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    /// Only these parts
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "pools,masters"
    )]
    pub(crate) only: Vec<Part>,
    /// Name of the local cluster
    #[arg(long, default_value = "figures")]
    pub(crate) name: String,
    /// MiB put and got per segment, value size and round. Between two masters at most 1024 values
    #[arg(long, default_value_t = 128)]
    pub(crate) volume: u64,
    /// Rounds. With fewer than 12 a difference of 5 % is within the noise
    #[arg(long, default_value_t = 21)]
    pub(crate) rounds: usize,
    /// Seconds over which processor time and API writes of an idle cluster are counted
    #[arg(long, default_value_t = 60)]
    pub(crate) rest: u64,
    /// MiB of each pool, which is filled once before the measurement
    #[arg(long, default_value_t = 1024)]
    pub(crate) pool: u64,
}

/// What is measured in one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Our pool beside a stock segment, and what the product uses
    Pools,
    /// The built-in master beside the stock one, each with a pool of ours
    Masters,
}

impl Part {
    /// The beginning of the namespace's name.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Pools => "figures",
            Self::Masters => "masters",
        }
    }
}

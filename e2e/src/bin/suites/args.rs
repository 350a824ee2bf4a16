//! The command line.

use clap::{Parser, Subcommand};

/// Runs the test suites of the project and prints how long each took
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Name of the local cluster that scenarios share; at most 7 letters and digits, because further ones have a digit more
    #[arg(
        long,
        global = true,
        env = "MOONCAKE_K8S_CLUSTER",
        default_value = "suites"
    )]
    pub(crate) cluster: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reduced counts, as in continuous integration
    Test {
        /// Only these suites
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
    /// Remove the local clusters that an interrupted run has left
    Clean {
        /// This process was one of the suites until a signal came
        #[arg(long, hide = true)]
        interrupted: bool,
    },
    /// Full counts without time budget; writes the results to docs/soak.md
    Soak {
        /// Only these suites
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
}

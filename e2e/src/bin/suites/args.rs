//! The command line.

use clap::{Parser, Subcommand};

/// Runs the test suites of the project and prints how long each took
#[derive(Debug, Parser)]
pub(crate) struct Args {
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
    /// Full counts without time budget; writes the results to docs/soak.md
    Soak {
        /// Only these suites
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
}

//! The command line.

use clap::{Parser, Subcommand};

/// Runs every suite of the project and says how long each took.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reduced counts; what continuous integration runs
    Test {
        /// These suites alone
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
    /// Full counts, without a time budget; docs/soak.md keeps the last result of each suite
    Soak {
        /// These suites alone
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
}

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
        /// This suite alone
        #[arg(long)]
        only: Option<String>,
    },
    /// Full counts, without a time budget; the result goes to docs/soak.md
    Soak {
        /// This suite alone
        #[arg(long)]
        only: Option<String>,
    },
}

//! The command line.

use clap::{Parser, Subcommand};

/// A pool of memory, and two stock Mooncake pods that use it.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Use the cluster of this kubeconfig context, not a local one
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Where images for that cluster are pushed: host and path [default: its nodes have them already]
    #[arg(long, global = true, requires = "context")]
    pub(crate) registry: Option<String>,
    /// Ask nothing
    #[arg(long, global = true)]
    pub(crate) yes: bool,
    /// Name of the local cluster
    #[arg(long, global = true, default_value = "demo")]
    pub(crate) name: String,
    /// Address block of the local cluster, 0 to 15 [default: the lowest free one]
    #[arg(long, global = true)]
    pub(crate) index: Option<u8>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum Command {
    /// Set everything up, run the pods, print the table
    Up,
    /// Remove what `up` made
    Down,
    /// Build the images and print where their archives are
    Images,
}

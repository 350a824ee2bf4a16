//! The command line.

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Runs a Mooncake pool and two stock pods that use it
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Use the cluster of this kubeconfig context, not a local one
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Registry for the images: host and path [default: the nodes already have them]
    #[arg(long, global = true, requires = "context", value_parser = registry)]
    pub(crate) registry: Option<String>,
    /// Add two virtual machine nodes with Soft-RoCE devices to the local cluster, and use RDMA between them
    #[arg(long, global = true, conflicts_with = "context")]
    pub(crate) rdma: bool,
    /// Skip the confirmation
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

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// Create the cluster, install, run the pods, print the table
    Up,
    /// Remove everything that `up` created
    Down,
    /// Build the images and print their archives, or push them and write a values file for the chart
    Images {
        /// Registry to push to: host and path
        #[arg(long, value_parser = registry)]
        push: Option<String>,
        /// Values file to write after the push
        #[arg(long, default_value = "images.yaml", requires = "push")]
        values: PathBuf,
    },
}

/// Parses a registry, which becomes the prefix of image names: no scheme, no trailing slash.
fn registry(text: &str) -> Result<String, String> {
    if text.contains("://") {
        return Err("without a scheme, as in registry.example/path".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_host_and_path() {
        assert_eq!(
            registry("r.example:5000/a/"),
            Ok("r.example:5000/a".to_owned())
        );
        assert!(registry("https://r.example").is_err());
    }
}

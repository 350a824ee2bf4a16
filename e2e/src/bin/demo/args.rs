//! The command line.

use clap::{Parser, Subcommand};

/// A pool of memory, and two stock Mooncake pods that use it.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Use the cluster of this kubeconfig context, not a local one
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Where images for that cluster are pushed: host and path [default: its nodes have them already]
    #[arg(long, global = true, requires = "context", value_parser = registry)]
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

/// Images are named after it: no scheme before it, no slash after it.
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

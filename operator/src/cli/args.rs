//! The command line of `kubectl mooncake`, with kubectl's own words where it has some, and what the
//! terminal says of itself.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::sizing;

/// Shows how Mooncake is on a cluster, and why.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-mooncake", bin_name = "kubectl mooncake", version)]
pub struct Args {
    #[command(flatten)]
    pub flags: Flags,
    /// What to show.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// Context of the kubeconfig to use; the current one if absent.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig; KUBECONFIG and ~/.kube/config if absent.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of MooncakeClusters and pods; the context's if absent.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// All namespaces.
    #[arg(long, short = 'A', global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Longest wait for one answer of the API server, e.g. 10s or 1m.
    #[arg(long, global = true, default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// For programs; docs/cli.md has the fields.
    #[arg(long, short, global = true)]
    pub output: Option<Output>,
}

/// How an answer is written where not for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Json,
}

/// What to show.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Every MooncakeCluster: is it ready, how large, how full, and what is worst about it.
    Status,
    /// What is known of one node: its pools, its hardware, what is wrong with it.
    Node {
        /// Name of the node.
        name: String,
    },
    /// Everything that is wrong, worst first, with what to do. Exit status 0: nothing alarming, 1:
    /// something fails, 2: nothing seen fails, but not everything could be looked at.
    Doctor,
    /// Why a pod was injected, was not, is held, or uses the transport that it uses.
    Why {
        /// Name of the pod, with or without `pod/` before it.
        pod: String,
    },
    /// Whether a stock HiCache launch fits into the hugepages of a node. Exit status 0: it does, 1: the
    /// arena may fall back, 2: it will not start, 3: the node could not be looked at.
    Sizing(Sizing),
}

/// The inputs of Mooncake's own helper; sizes as it reads them (`8gb`, every unit a power of 1024).
#[derive(Clone, Debug, clap::Args)]
pub struct Sizing {
    /// Ranks on the node, as SGLang's --tp-size.
    #[arg(long)]
    pub tp_size: NonZeroU32,
    /// SGLang's --hicache-size, of one rank.
    #[arg(long, value_parser = sizing::size)]
    pub hicache_size: u64,
    /// MOONCAKE_GLOBAL_SEGMENT_SIZE, of one rank.
    #[arg(long, value_parser = sizing::size)]
    pub global_segment_size: u64,
    /// MC_MMAP_ARENA_POOL_SIZE, of one rank.
    #[arg(long, value_parser = sizing::size, default_value = "0")]
    pub arena_pool_size: u64,
    /// Size of the hugepages.
    #[arg(long, value_parser = page_size, default_value = "2mb")]
    pub hugepage_size: u64,
    /// Memory set aside for hugepages of that size.
    #[arg(long, value_parser = sizing::size, conflicts_with = "node")]
    pub available_hugetlb: Option<u64>,
    /// The same from this node's MooncakeInventory.
    #[arg(long)]
    pub node: Option<String>,
}

fn page_size(text: &str) -> Result<u64, String> {
    match sizing::size(text) {
        Ok(bytes) if bytes.is_power_of_two() => Ok(bytes),
        Ok(_) => Err(format!("`{text}` is no size of a page: 2mb and 1gb are")),
        Err(error) => Err(error.to_string()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration: write 10s, 1m or a number of seconds");
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => text
            .parse::<jiff::SignedDuration>()
            .ok()
            .and_then(|duration| Duration::try_from(duration).ok())
            .ok_or_else(wrong)?,
    };
    if duration.is_zero() {
        return Err("every request has a deadline: give more than 0".to_owned());
    }
    Ok(duration)
}

/// What the environment says of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// `NO_COLOR` is there and not empty, or `TERM` is `dumb`.
    pub plain: bool,
}

impl Terminal {
    pub fn read() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            plain: no_color || dumb,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_behind_the_command_as_kubectls_do() {
        for line in [
            ["kubectl-mooncake", "-n", "team", "doctor", "--timeout=1m"],
            ["kubectl-mooncake", "doctor", "--timeout=60", "-n", "team"],
        ] {
            let args = Args::try_parse_from(line).unwrap();
            assert_eq!(args.flags.namespace.as_deref(), Some("team"));
            assert_eq!(args.flags.timeout, Duration::from_secs(60));
        }
    }

    #[test]
    fn a_wait_without_end_is_refused() {
        for wrong in ["0", "0s", "-1s", "soon"] {
            let timeout = format!("--timeout={wrong}");
            assert!(
                Args::try_parse_from(["x", "status", &timeout]).is_err(),
                "{wrong}"
            );
        }
    }
}

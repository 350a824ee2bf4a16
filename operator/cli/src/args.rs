//! Command line of `kubectl mooncake`, with the flags of kubectl where it has them, and the environment.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crds::names::DEFAULT_TENANT;
use crds::sizing;
use regex::Regex;

/// Shows the state of Mooncake on a cluster and explains problems.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-mooncake", bin_name = "kubectl mooncake", version)]
pub struct Args {
    #[command(flatten)]
    pub flags: Flags,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of all commands.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// Context of the kubeconfig. Default: the current context.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// Path of the kubeconfig. Default: KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of MooncakeClusters and pods. Default: the namespace of the context.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// MooncakeClusters and pods of all namespaces.
    #[arg(long, short = 'A', global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Deadline of each request to the API server, such as 10s or 1m.
    #[arg(long, global = true, default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// Output format. docs/cli.md lists the fields. Default: text.
    #[arg(long, short, global = true)]
    pub output: Option<Output>,
}

/// Output formats other than text.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Output {
    Json,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Lists MooncakeClusters: readiness, capacity, use, and the most severe condition.
    Status,
    /// Shows one node: findings, conditions, pools and hardware.
    Node {
        /// Name of the node.
        name: String,
    },
    /// Lists all problems by severity, each with a remedy. Exit status 0: no errors, 1: errors, 2: no
    /// errors found, but some objects could not be read.
    Doctor,
    /// Explains why a pod was injected or not, why its gate waits, and which transport it uses.
    Why {
        /// Name of the pod, with or without the prefix `pod/`.
        pod: String,
    },
    /// Finds the pool pod of a segment that a client names in an error, or what became of it.
    Segment {
        /// Server name `IP:PORT`, or name of the segment in the master.
        name: String,
    },
    /// Counts and lists keys of a MooncakeCluster with their bytes, pool pods and nodes. Reads no value. Needs the right
    /// to create `pods/portforward`. Exit status 0: complete, 2: not all keys were looked at, or no master answered.
    Keys(KeysArgs),
    /// Moves the keys of a node's pool pods to other nodes, ends the pool pods, and waits for that. Needs the right to change
    /// nodes. Exit status 0: drained, 1: not, 2: the node could not be read or changed.
    Drain(DrainArgs),
    /// Lets pool pods start on a drained node again.
    Undrain {
        /// Name of the node.
        node: String,
    },
    /// Checks the cluster before an installation: versions, CRDs, permissions, Pod Security, other installations,
    /// nodes and memory. Changes nothing. Exit status as of doctor. `-n` is the namespace of the release.
    Preflight(PreflightArgs),
    /// Writes one archive for a support request: objects, Events, logs, versions and the output of doctor, without
    /// Secrets. Exit status 0: complete, 2: something was left out.
    Bundle(BundleArgs),
    /// Checks whether a stock HiCache launch fits into hugepages. Exit status 0: it fits, 1: the arena may
    /// fall back to regular pages, 2: it does not start, 3: the node could not be read.
    Sizing(Sizing),
}

/// Which keys.
#[derive(Clone, Debug, clap::Args)]
pub struct KeysArgs {
    /// Name of the MooncakeCluster.
    pub cluster: String,
    /// Beginning of the keys.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Pattern that the keys match anywhere, without look-around and back-references.
    #[arg(long)]
    pub regex: Option<Regex>,
    /// Tenant of a built-in master whose keys are read, as in spec.master.tenants.
    #[arg(long, default_value = DEFAULT_TENANT)]
    pub tenant: String,
    /// Number of keys that are listed, in their order. All matching keys are counted.
    #[arg(long, default_value = "20", value_parser = limit)]
    pub limit: usize,
}

impl KeysArgs {
    /// True if the key has the prefix and matches the pattern.
    pub fn matches(&self, key: &str) -> bool {
        let regex = self.regex.as_ref();
        key.starts_with(&self.prefix) && regex.is_none_or(|regex| regex.is_match(key))
    }
}

/// Most keys that the built-in master lists.
const MOST_LISTED: usize = 10_000;

fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number <= MOST_LISTED => Ok(number),
        _ => Err(format!("`{text}` is not a number from 0 to {MOST_LISTED}")),
    }
}

/// Which node to drain, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct DrainArgs {
    /// Name of the node.
    pub node: String,
    /// How long to wait for the end of the pool pods. The drain goes on afterwards. Default: their grace period and one
    /// minute.
    #[arg(long, value_parser = duration)]
    pub deadline: Option<Duration>,
    /// Drains also pool pods whose keys are lost: those of clusters with a stock master, and those of clusters without
    /// a pool pod on another node.
    #[arg(long)]
    pub lose_keys: bool,
}

/// What is about to be installed.
#[derive(Clone, Debug, clap::Args)]
pub struct PreflightArgs {
    /// Name of the Helm release.
    #[arg(long, default_value = "mooncake")]
    pub release: String,
    /// Values files of the chart, as for `helm install --values`.
    #[arg(long)]
    pub values: Vec<PathBuf>,
    /// The chart is installed already: check the manifests only, not the rights and the namespace of the release.
    #[arg(long, requires = "filename")]
    pub installed: bool,
    /// Manifests with MooncakeClusters and MooncakeNodePolicies, as for `kubectl apply --filename`.
    #[arg(long, short)]
    pub filename: Vec<PathBuf>,
}

/// Limits of the archive.
#[derive(Clone, Debug, clap::Args)]
pub struct BundleArgs {
    /// Path of the archive, which must not exist. Default: mooncake-bundle-<time>.tar.gz in the current directory.
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Age of the oldest log line.
    #[arg(long, default_value = "1h", value_parser = duration)]
    pub since: Duration,
    /// Total size of all files before compression.
    #[arg(long, default_value = "256mb", value_parser = sizing::size)]
    pub max_size: u64,
    /// Number of agents whose logs are read.
    #[arg(long, default_value_t = 20)]
    pub agents: usize,
    /// Deadline of the whole command. What is not read by then is left out.
    #[arg(long, default_value = "2m", value_parser = duration)]
    pub deadline: Duration,
}

/// Inputs of Mooncake's `check_hicache_hugepage_requirements.py`. Sizes are written as there: `8gb`, units
/// are powers of 1024.
#[derive(Clone, Debug, clap::Args)]
pub struct Sizing {
    /// Ranks on the node: --tp-size of SGLang.
    #[arg(long)]
    pub tp_size: NonZeroU32,
    /// --hicache-size of SGLang, for one rank.
    #[arg(long, value_parser = sizing::size)]
    pub hicache_size: u64,
    /// MOONCAKE_GLOBAL_SEGMENT_SIZE, for one rank.
    #[arg(long, value_parser = sizing::size)]
    pub global_segment_size: u64,
    /// MC_MMAP_ARENA_POOL_SIZE, for one rank.
    #[arg(long, value_parser = sizing::size, default_value = "0")]
    pub arena_pool_size: u64,
    /// Size of one hugepage.
    #[arg(long, value_parser = page_size, default_value = "2mb")]
    pub hugepage_size: u64,
    /// Total memory of the hugepages of that size.
    #[arg(long, value_parser = sizing::size, conflicts_with = "node")]
    pub available_hugetlb: Option<u64>,
    /// Node whose MooncakeInventory supplies the total.
    #[arg(long)]
    pub node: Option<String>,
}

fn page_size(text: &str) -> Result<u64, String> {
    match sizing::size(text) {
        Ok(bytes) if bytes.is_power_of_two() => Ok(bytes),
        Ok(_) => Err(format!("`{text}` is not a page size such as 2mb or 1gb")),
        Err(error) => Err(error.to_string()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as 10s, 1m or 30 (seconds)");
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => text
            .parse::<jiff::SignedDuration>()
            .ok()
            .and_then(|duration| Duration::try_from(duration).ok())
            .ok_or_else(wrong)?,
    };
    if duration.is_zero() {
        return Err("the deadline must be greater than 0".to_owned());
    }
    Ok(duration)
}

/// The variable that sets a proxy for kubectl.
pub fn proxy_variable() -> Option<&'static str> {
    let mut names = ["HTTPS_PROXY", "https_proxy"].into_iter();
    names.find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// What the environment declares about the terminal.
#[derive(Debug)]
pub struct Terminal {
    /// True when `NO_COLOR` is set and not empty, or `TERM` is `dumb`.
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
    fn command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn flags_are_accepted_before_and_after_the_command() {
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
    fn timeouts_that_are_not_positive_are_rejected() {
        for wrong in ["0", "0s", "-1s", "soon"] {
            let timeout = format!("--timeout={wrong}");
            assert!(
                Args::try_parse_from(["x", "status", &timeout]).is_err(),
                "{wrong}"
            );
        }
    }
}

//! The command line.

use clap::{Parser, Subcommand};
use mooncake_e2e::{NodeKind, Part};
use std::path::PathBuf;

/// A real Kubernetes on this machine: etcd, control plane, nodes with kubelet and containerd.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Binaries and images [default: $XDG_CACHE_HOME or ~/.cache, mooncake-k8s]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// One folder for each cluster [default: $XDG_STATE_HOME or ~/.local/state, mooncake-k8s]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// Which cluster
    #[arg(long, global = true, default_value = "mc0")]
    pub(crate) name: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make the cluster, or start what of it does not run
    Up {
        /// Address block, 0 to 15 [default: the lowest free one]
        #[arg(long)]
        index: Option<u8>,
        #[arg(long, default_value_t = 2)]
        nodes: u8,
    },
    /// Remove everything of the cluster; also after a crash, also twice
    Down,
    /// What runs
    Status,
    /// Print the path of the administrator's kubeconfig
    Kubeconfig,
    /// Run kubectl against the cluster
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run helm against the cluster
    Helm {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Import OCI archives into all nodes
    LoadImage { archives: Vec<PathBuf> },
    /// Build a folder with a Containerfile into an OCI archive
    Image {
        #[arg(long)]
        tag: String,
        /// [default: Containerfile in the context]
        #[arg(long)]
        file: Option<PathBuf>,
        #[arg(long)]
        output: PathBuf,
        context: PathBuf,
    },
    /// Add or remove a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Cut a node off from the network
    Cut { node: String },
    /// Connect it again
    Heal { node: String },
    /// SIGKILL a part: etcd, apiserver, controllers, scheduler, containerd-n1, kubelet-n1, proxy-n1,
    /// or node-n1: everything of a node at once
    Kill { part: Part },
    /// End a part by SIGTERM, by SIGKILL after 20 s
    Stop { part: Part },
    /// Start a part that does not run
    Start { part: Part },
    /// Run a command in a node's namespaces
    Exec {
        node: String,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Build the binaries, and print where they are
    Build,
    /// Build binaries and images, and print where the archives are
    Images,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    Add {
        /// A virtual machine instead of namespaces
        #[arg(long)]
        vm: bool,
    },
    Remove {
        node: String,
    },
}

/// What `--vm` chooses.
pub(crate) fn kind(vm: bool) -> NodeKind {
    if vm {
        NodeKind::Machine
    } else {
        NodeKind::Namespace
    }
}

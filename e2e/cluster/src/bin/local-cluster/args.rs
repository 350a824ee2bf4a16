//! The command line.

use clap::{Parser, Subcommand};
use mooncake_local_cluster::{NodeKind, Part};
use std::path::PathBuf;

/// Creates and changes a real Kubernetes cluster on this machine
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Folder of binaries and images [default: $XDG_CACHE_HOME or ~/.cache, mooncake-k8s]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// Folder of the clusters [default: $XDG_STATE_HOME or ~/.local/state, mooncake-k8s]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// Name of the cluster
    #[arg(long, global = true, default_value = "mc0")]
    pub(crate) name: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the cluster, or start its parts that do not run
    Up {
        /// Address block, 0 to 15 [default: the lowest free one]
        #[arg(long)]
        index: Option<u8>,
        #[arg(long, default_value_t = 2)]
        nodes: u8,
        /// Give nodes, pods and Services IPv6 addresses beside IPv4 (without virtual machine nodes)
        #[arg(long)]
        dual_stack: bool,
    },
    /// Remove the cluster completely, also after a crash
    Down,
    /// List the clusters and their parts
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
    /// Disconnect a node from the network
    Cut { node: String },
    /// Connect a disconnected node
    Heal { node: String },
    /// Kill a part: etcd, apiserver, controllers, scheduler, containerd-n1, kubelet-n1, proxy-n1, or all of node-n1
    Kill { part: Part },
    /// End a part by SIGTERM, and by SIGKILL after 20 s
    Stop { part: Part },
    /// Start a part that does not run
    Start { part: Part },
    /// Run a command on a node
    Exec {
        node: String,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run a command in a new virtual machine with two Soft-RoCE devices, without a cluster
    Guest {
        /// Folder that the machine sees at the same path, read-only
        #[arg(long, value_name = "FOLDER")]
        share: Vec<PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Build the binaries and print their folders
    Build,
    /// Build binaries and images and print the archives
    Images,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    Add {
        /// Add a virtual machine instead of a namespace node
        #[arg(long)]
        vm: bool,
        /// Add a virtual machine that runs systemd, with the systemd cgroup driver
        #[arg(long, conflicts_with = "vm")]
        systemd: bool,
    },
    Remove {
        node: String,
    },
}

/// What `--vm` and `--systemd` choose.
pub(crate) fn kind(vm: bool, systemd: bool) -> NodeKind {
    match (vm, systemd) {
        (_, true) => NodeKind::SystemdMachine,
        (true, false) => NodeKind::Machine,
        (false, false) => NodeKind::Namespace,
    }
}

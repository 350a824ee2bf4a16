//! Command line of the engine process. The agent writes it.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::control::message::RdmaPort;

/// Command line of `engine`.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "engine",
    version,
    about = "Serves the memory of one pool pod; started by the agent"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Serves one pool pod until its pool process has ended.
    Serve(Box<Serve>),
    /// Unmounts segments of an ended pool pod, which are read from standard input as JSON.
    Unmount(Unmount),
}

/// Identity without privileges.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Identity {
    /// User and group ID.
    #[arg(long)]
    pub uid: u32,
}

/// Settings of `engine serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct Serve {
    /// Name of the Node, which is part of the names of segments.
    #[arg(long)]
    pub node_name: String,
    /// UID of the pool pod.
    #[arg(long)]
    pub pod_uid: String,
    /// The pool process.
    #[arg(long)]
    pub pool_pid: u32,
    /// Network namespace of the pool pod.
    #[arg(long)]
    pub network: PathBuf,
    /// Path of the socket on which agents connect. Its folder admits root only.
    #[arg(long)]
    pub control: PathBuf,
    /// File for the message of a panic. Truncated at the start.
    #[arg(long)]
    pub panic_file: PathBuf,
    /// Folders of the cgroups to enter, one for each hierarchy. None: stay in the agent's.
    #[arg(long)]
    pub cgroup: Vec<PathBuf>,
    /// Value for `oom_score_adj`; otherwise that of the agent would be inherited.
    #[arg(long, allow_hyphen_values = true)]
    pub oom_score_adj: i32,
    /// Number of data threads.
    #[arg(long)]
    pub data_threads: usize,
    /// Log filter.
    #[arg(long)]
    pub log: String,
    /// An RDMA port over which peers are served beside TCP, one for each device: `DEVICE:PORT:GID` and what else is known of it,
    /// separated by commas.
    #[arg(long, requires_all = ["libraries", "host_root"])]
    pub rdma: Vec<RdmaPort>,
    /// Folder that becomes the root while the devices are opened: libibverbs and its drivers, and the empty folders `sys`
    /// and `dev`.
    #[arg(long)]
    pub libraries: Option<PathBuf>,
    /// Root folder of the node.
    #[arg(long)]
    pub host_root: Option<PathBuf>,
    /// Network namespace of the node, in which the devices are opened. Defaults to the agent's.
    #[arg(long)]
    pub host_network: Option<PathBuf>,
    /// Identity without privileges.
    #[command(flatten)]
    pub identity: Identity,
}

/// Settings of `engine unmount`.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Unmount {
    /// Identity without privileges.
    #[command(flatten)]
    pub identity: Identity,
}

//! Settings of the agent.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::host::round::Node;

/// Command line of the binary `agent`. Without a subcommand it supervises a worker.
#[derive(Debug, Clone, Parser)]
#[command(name = "agent", version, about = "Serves the pool pods of one node")]
#[command(subcommand_negates_reqs = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings of the worker; other commands take none.
    #[command(flatten)]
    pub settings: Option<Settings>,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// The process that does the work; restarted by its supervisor when it dies.
    Worker,
    /// Writes what is known of the node as one line of JSON. A part of the worker.
    Facts {
        #[command(flatten)]
        node: NodeArgs,
        /// RDMA devices that are not to be asked.
        #[arg(long)]
        silent: Vec<String>,
    },
    /// Writes what is known of the containers of pods as one line of JSON. A part of the worker.
    Containers {
        /// Folder that holds the node's procfs.
        #[arg(long, default_value = "/")]
        root: PathBuf,
        /// UIDs of the pods.
        #[arg(long)]
        pod: Vec<String>,
    },
    /// Changes settings of the node, or loads modules, and tells what came of each. A part of the worker.
    Fix {
        /// The changes, as JSON.
        changes: String,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Records the files that facts are read from into one text, without what names this machine.
    Record {
        /// The file to write.
        file: PathBuf,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Judges a recorded node, or this one, by every check; of what the cluster wants of it nothing is
    /// known here. Ends with 1 where something fails.
    Checks {
        /// A file that `record` wrote.
        #[arg(long)]
        recording: Option<PathBuf>,
        /// Write JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Shows the inventory of a recorded node, or of this one.
    Inventory {
        /// A file that `record` wrote.
        #[arg(long)]
        recording: Option<PathBuf>,
        #[command(flatten)]
        node: NodeArgs,
    },
}

/// Which node is looked at.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// Root folder of the node, or a file that `record` wrote.
    #[arg(long, default_value = "/")]
    pub root: PathBuf,
    /// Network namespace of the node, e.g. /proc/1/ns/net; this process's own if absent.
    #[arg(long)]
    pub network: Option<PathBuf>,
}

impl From<NodeArgs> for Node {
    fn from(NodeArgs { root, network }: NodeArgs) -> Self {
        Self { root, network }
    }
}

/// Settings of the worker.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Name of the Node that this agent runs on.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// UID of the agent's pod.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: String,
    /// Namespace of the agent's pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Folder of the node that outlives agents: the lock, the key that seals records, and what stood
    /// before fixes.
    #[arg(
        long,
        env = "STATE_DIR",
        default_value = "/var/lib/mooncake",
        global = true
    )]
    pub state_dir: PathBuf,
    /// The node's procfs, with the process ids that this process sees.
    #[arg(long, env = "HOST_PROC", default_value = "/proc", global = true)]
    pub host_proc: PathBuf,
    /// The node's root folder, of which its hardware is read, or a file that `record` wrote.
    #[arg(long, env = "HOST_ROOT", default_value = "/", global = true)]
    pub host_root: PathBuf,
    /// The node's network namespace; this process's own if absent. Told by the supervisor: who started
    /// it runs there.
    #[arg(long, global = true)]
    pub host_network: Option<PathBuf>,
    /// Port of /metrics, /healthz and /readyz on the pod's address, plain HTTP. Readers of /metrics
    /// show a token that TokenReview accepts and SubjectAccessReview allows to get `/metrics`.
    #[arg(long, env = "METRICS_PORT", default_value_t = 9464, global = true)]
    pub metrics_port: u16,
    /// Address of the agent's pod, on which other agents prove their way to it. Without one nothing is
    /// proved.
    #[arg(long, env = "POD_IP", global = true)]
    pub pod_ip: Option<IpAddr>,
    /// Port on which agents of other nodes ask for a descriptor; bytes move on the port after it.
    #[arg(long, env = "PROBE_PORT", default_value_t = 9465, global = true)]
    pub probe_port: u16,
    /// Threads that move bytes; 0 means one per 8 cores, at least one.
    #[arg(long, env = "DATA_THREADS", default_value_t = 0, global = true)]
    pub data_threads: usize,
    /// The kubelet's folder. With it the node's RDMA devices are offered to pods that claim them.
    #[arg(long, env = "KUBELET_DIR", global = true)]
    pub kubelet_dir: Option<PathBuf>,
    /// Folder in which the container runtime looks for devices (CDI).
    #[arg(long, env = "CDI_DIR", default_value = "/var/run/cdi", global = true)]
    pub cdi_dir: PathBuf,
    /// How many claims may share one RDMA device.
    #[arg(long, env = "SLOTS_PER_HCA", default_value_t = 8, global = true,
        value_parser = clap::value_parser!(u8).range(1..=128))]
    pub slots_per_hca: u8,
    /// Which log lines to write, e.g. `info` or `mooncake_node_agent=debug`.
    #[arg(long, env = "LOG", default_value = "info", global = true)]
    pub log: String,
    /// Reads the MooncakeNode from this file instead of from Kubernetes, and reports nothing. For
    /// running an agent without Kubernetes.
    #[arg(long, global = true)]
    pub assignments_file: Option<PathBuf>,
}

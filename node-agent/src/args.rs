//! Command line and settings of the agent.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use host::live::Node;

/// Command line of `agent`. Without a subcommand it supervises a worker.
#[derive(Debug, Clone, Parser)]
#[command(name = "agent", version, about = "Serves the pool pods of one node")]
#[command(subcommand_negates_reqs = true)]
pub struct Args {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings of the worker; the other subcommands have none.
    #[command(flatten)]
    pub settings: Option<Settings>,
}

/// Subcommands.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Runs the worker; its supervisor restarts it.
    Worker,
    /// Prints the facts of the node as one line of JSON for each request, a line of JSON on standard input. Run by the
    /// worker.
    Facts {
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Prints the facts of the containers of pods as one line of JSON. Run by the worker.
    Containers {
        /// Folder that contains the procfs of the node.
        #[arg(long, default_value = "/")]
        root: PathBuf,
        /// UIDs of the pods.
        #[arg(long)]
        pod: Vec<String>,
    },
    /// Changes settings of the node or loads modules, and prints the outcome of each. Run by the worker.
    Fix {
        /// The changes, as JSON.
        changes: String,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Writes the files from which facts are read into one text, without data that identifies this machine.
    Record {
        /// File to write.
        file: PathBuf,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Prints the results of all checks of this node or of a recording, without the data of the cluster. Exits
    /// with 1 if a check fails.
    Checks {
        /// File written by `record`.
        #[arg(long)]
        recording: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Prints the inventory of this node or of a recording.
    Inventory {
        /// File written by `record`.
        #[arg(long)]
        recording: Option<PathBuf>,
        #[command(flatten)]
        node: NodeArgs,
    },
}

/// The node to read.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// Root folder of the node, or a file written by `record`.
    #[arg(long, default_value = "/")]
    pub root: PathBuf,
    /// Network namespace of the node, e.g. /proc/1/ns/net. Defaults to that of this process.
    #[arg(long)]
    pub network: Option<PathBuf>,
}

impl From<NodeArgs> for Node {
    fn from(NodeArgs { root, network }: NodeArgs) -> Self {
        Self { root, network }
    }
}

impl Settings {
    /// The class of RDMA.
    #[must_use]
    pub fn rdma_class(&self) -> RdmaClass {
        RdmaClass {
            traffic_class: self.traffic_class,
            service_level: self.service_level,
        }
    }

    /// The node to read.
    pub(crate) fn node(&self) -> Node {
        Node {
            root: self.host_root.clone(),
            network: self.host_network.clone(),
        }
    }

    /// Settings of the DRA driver, if the agent offers devices.
    pub(crate) fn devices(&self, boot_id: &str) -> Option<devices::Settings> {
        Some(devices::Settings {
            node_name: self.node_name.clone(),
            pod_uid: self.pod_uid.clone(),
            kubelet: self.kubelet_dir.clone()?,
            cdi: self.cdi_dir.clone(),
            state: self.state_dir.clone(),
            boot_id: boot_id.to_owned(),
            slots_per_hca: self.slots_per_hca,
        })
    }

    /// Settings of the engine.
    pub(crate) fn engine(&self) -> engine::Settings {
        let mut engine = engine::Settings::default();
        if self.data_threads > 0 {
            engine.data_threads = self.data_threads;
        }
        engine
    }
}

/// How the packets of RDMA are queued in the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RdmaClass {
    pub traffic_class: u8,
    pub service_level: u8,
}

/// Settings of the worker.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Name of the Node on which this agent runs.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// UID of the agent's pod.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: String,
    /// Namespace of the agent's pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Folder on the node for state that outlives agents: the lock, the key that seals records, and the values
    /// before fixes.
    #[arg(
        long,
        env = "STATE_DIR",
        default_value = "/var/lib/mooncake",
        global = true
    )]
    pub state_dir: PathBuf,
    /// procfs of the node, with the PIDs that this process sees.
    #[arg(long, env = "HOST_PROC", default_value = "/proc", global = true)]
    pub host_proc: PathBuf,
    /// Root folder of the node for reading hardware, or a file written by `record`.
    #[arg(long, env = "HOST_ROOT", default_value = "/", global = true)]
    pub host_root: PathBuf,
    /// Network namespace of the node. Defaults to that of this process. Set by the supervisor to the namespace
    /// of its parent process.
    #[arg(long, global = true)]
    pub host_network: Option<PathBuf>,
    /// Port of /metrics on the pod's address, HTTPS. It requires a token that TokenReview accepts and
    /// SubjectAccessReview allows to get `/metrics`. Without Kubernetes, plain HTTP for everyone.
    #[arg(long, env = "METRICS_PORT", default_value_t = 9464, global = true)]
    pub metrics_port: u16,
    /// Secret in the agent's namespace with the certificate of /metrics.
    #[arg(
        long,
        env = "CERTIFICATE_SECRET",
        default_value = "mooncake-agent-certificate",
        global = true
    )]
    pub certificate_secret: String,
    /// Port of /healthz and /readyz on the pod's address, plain HTTP.
    #[arg(long, env = "HEALTH_PORT", default_value_t = 9467, global = true)]
    pub health_port: u16,
    /// Address of the agent's pod, to which other agents send peer probes. Without it the agent sends and
    /// serves no probes.
    #[arg(long, env = "POD_IP", global = true)]
    pub pod_ip: Option<IpAddr>,
    /// Port of the handshake of peer probes; data uses the next port.
    #[arg(long, env = "PROBE_PORT", default_value_t = 9465, global = true)]
    pub probe_port: u16,
    /// Number of data threads; 0 means one per 8 cores, at least one.
    #[arg(long, env = "DATA_THREADS", default_value_t = 0, global = true)]
    pub data_threads: usize,
    /// Root folder of the libraries with which the program `engine` is linked, and of libibverbs with its drivers: `lib`,
    /// `usr/lib` and `etc/libibverbs.d` are copied to the state folder. Without it `engine` runs with the libraries of the
    /// agent's file system, and serves no pool over RDMA.
    #[arg(long, env = "ENGINE_LIBRARIES", global = true)]
    pub engine_libraries: Option<PathBuf>,
    /// Folder of the kubelet. If set, the agent offers the node's RDMA devices to pods that claim them.
    #[arg(long, env = "KUBELET_DIR", global = true)]
    pub kubelet_dir: Option<PathBuf>,
    /// Folder from which the container runtime reads CDI specifications.
    #[arg(long, env = "CDI_DIR", default_value = "/var/run/cdi", global = true)]
    pub cdi_dir: PathBuf,
    /// Number of claims that may share one RDMA device.
    #[arg(long, env = "SLOTS_PER_HCA", default_value_t = 8, global = true,
        value_parser = clap::value_parser!(u8).range(1..=128))]
    pub slots_per_hca: u8,
    /// Traffic class of the packets of engine processes and of the probes of RDMA devices. Not in a flattened struct: clap would
    /// take the settings, which are optional, for absent.
    #[arg(long, env = "TRAFFIC_CLASS", default_value_t = 0, global = true)]
    pub traffic_class: u8,
    /// Service level of the same packets.
    #[arg(long, env = "SERVICE_LEVEL", default_value_t = 0, global = true,
        value_parser = clap::value_parser!(u8).range(0..=15))]
    pub service_level: u8,
    /// Log filter, e.g. `info` or `mooncake_node_agent=debug`.
    #[arg(long, env = "LOG", default_value = "info", global = true)]
    pub log: String,
    /// File with the MooncakeNode, for running an agent without Kubernetes. The agent then reports nothing.
    #[arg(long, global = true)]
    pub assignments_file: Option<PathBuf>,
}

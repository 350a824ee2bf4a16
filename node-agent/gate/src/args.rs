//! Settings of the gate. Its callers are the webhook (`hold`, `probe`) and the operator (`install`,
//! `master-ready`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Command line of the binary `gate`.
#[derive(Debug, Parser)]
#[command(
    name = "gate",
    version,
    about = "Delays the start of a pod until its pool responds"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the configuration files, wait for the pool, then idle until terminated.
    Hold(Box<Hold>),
    /// Print the state that `hold` has recorded; exit status 0 means that the pod may start.
    Probe {
        /// Directory that `hold` writes to.
        #[arg(long)]
        directory: PathBuf,
    },
    /// Check whether the master of this pod is ready; exit status 0 means yes.
    MasterReady {
        /// Address of its admin HTTP service.
        #[arg(long, default_value = "127.0.0.1:9003")]
        admin: SocketAddr,
    },
    /// Copy this program into a directory, for a container of another image.
    Install {
        /// An existing directory.
        directory: PathBuf,
    },
}

/// Settings of `hold`.
#[derive(Debug, Clone, clap::Args)]
pub struct Hold {
    /// Name of the MooncakeCluster; its segments' names start with it.
    #[arg(long)]
    pub cluster: String,
    /// Host and RPC port of the master.
    #[arg(long)]
    pub master: String,
    /// Port of the master's admin HTTP service, at the same host.
    #[arg(long, default_value_t = 9003)]
    pub admin_port: u16,
    /// URL of the cluster's metadata service; without it there is none.
    #[arg(long)]
    pub metadata: Option<String>,
    /// `MC_METADATA_CLUSTER_ID` of the cluster's engines.
    #[arg(long)]
    pub metadata_cluster: Option<String>,
    /// The node of this pod.
    #[arg(long)]
    pub node: String,
    /// Directory for the files and the state. It outlives a restart of the container.
    #[arg(long)]
    pub directory: PathBuf,
    /// A file to write in it, `NAME=TEXT`.
    #[arg(long = "file", value_parser = file)]
    pub files: Vec<File>,
    /// Seconds to wait.
    #[arg(long, default_value_t = 120)]
    pub deadline_seconds: u64,
    /// What happens at the deadline.
    #[arg(long, value_enum, default_value_t = OnDeadline::Start)]
    pub on_deadline: OnDeadline,
    /// Transport of the pod's engines.
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub transport: Transport,
    /// Number of other nodes of the pool that are probed.
    #[arg(long, default_value_t = 3)]
    pub samples: usize,
    /// File with the result of the node's checks; without it they are not required.
    #[arg(long)]
    pub preflight: Option<PathBuf>,
    /// File from which the kubelet reads the termination message.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// Transport of the pod's engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Memory of pool pods is read.
    Tcp,
    /// Only the descriptors of pool pods are read: the gate has no device.
    Rdma,
}

/// What happens at the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnDeadline {
    /// The pod starts without the pool.
    Start,
    /// The container fails; the kubelet starts it again, with a new deadline.
    Fail,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name, without any directory.
    pub name: String,
    /// Its content.
    pub text: String,
}

fn file(argument: &str) -> Result<File, String> {
    let (name, text) = argument.split_once('=').ok_or("write NAME=TEXT")?;
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(format!("`{name}` is not a file name"));
    }
    Ok(File {
        name: name.to_owned(),
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_name_and_any_text() {
        let parsed = file(r#"config.json={"a":"b=c"}"#).unwrap();
        assert_eq!(parsed.name, "config.json");
        assert_eq!(parsed.text, r#"{"a":"b=c"}"#);
        for wrong in ["config.json", "=x", "../a=x", "a/b=x", ".x=y"] {
            assert!(file(wrong).is_err(), "{wrong}");
        }
    }
}

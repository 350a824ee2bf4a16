//! Settings of the pool process.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use crds::ByteSize;
use sys::mem::PageSize;

/// Command line of the binary `pool`.
#[derive(Debug, Parser)]
#[command(name = "pool", version, about = "Owns the memory of a pool pod")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Own memory until terminated.
    Serve(Box<ServeArgs>),
    /// Hold drains of the node: do nothing until terminated.
    Guard,
    /// Check the pool process of this pod; exit status 0 means yes.
    Probe {
        /// What to check.
        what: Probe,
    },
}

/// What a probe checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// It responds.
    Live,
    /// Its memory is mounted and served.
    Ready,
}

/// Settings of `pool serve`.
#[derive(Debug, Clone, Parser)]
pub struct ServeArgs {
    /// Name of the MooncakeCluster.
    #[arg(long)]
    pub cluster: String,
    /// Name of the pool in the cluster.
    #[arg(long)]
    pub pool: String,
    /// Memory to own; no grant may exceed it.
    #[arg(long)]
    pub bytes: ByteSize,
    /// Page size: 4Ki, 2Mi or 1Gi.
    #[arg(long, value_parser = page_size, default_value = "4Ki")]
    pub page_size: PageSize,
    /// Port on which peers request the segment descriptor.
    #[arg(long, default_value_t = 12001)]
    pub handshake_port: u16,
    /// Port on which peers transfer bytes.
    #[arg(long, default_value_t = 12002)]
    pub data_port: u16,
    /// Port that is open while the memory is mounted and served.
    #[arg(long, default_value_t = 12003)]
    pub ready_port: u16,
    /// Folder of the Secret with which the cluster's etcd is used.
    #[arg(long)]
    pub metadata_secret: Option<PathBuf>,
    /// UID of this pod.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: String,
    /// Name of this pod.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,
    /// Namespace of this pod.
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Address of this pod.
    #[arg(long, env = "POD_IP")]
    pub pod_ip: String,
    /// Node of this pod.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
}

fn page_size(text: &str) -> Result<PageSize, String> {
    text.parse::<ByteSize>()
        .ok()
        .and_then(|bytes| PageSize::from_bytes(bytes.0))
        .ok_or_else(|| format!("`{text}` is not a page size: write 4Ki, 2Mi or 1Gi"))
}

//! The settings of the program `admitted`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, value_parser};
use crds::cluster::{DEFAULT_LEASE_SECONDS, LEAST_LEASE_SECONDS, LONGEST_LEASE_SECONDS};
use crds::names::MASTER_ELECTOR_PORT;

use crate::elector::{Elector, Settings};
use crate::seat::Local;
use crate::witness::Requests;

/// Writes the addresses that may connect to the master of a MooncakeCluster, and the quotas of its tenants, whenever they change.
/// Elects one of several masters.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Namespace of the MooncakeCluster.
    #[arg(long)]
    pub(crate) namespace: String,
    /// Name of the MooncakeCluster.
    #[arg(long)]
    pub(crate) cluster: String,
    /// Namespace of the operator and the agents.
    #[arg(long)]
    pub(crate) operator_namespace: String,
    /// The file. It is not changed before all addresses are known, and not while the API server is unavailable.
    #[arg(long)]
    pub(crate) file: PathBuf,
    /// File with the quotas of tenants, from the MooncakeCluster. Default: none is written.
    #[arg(long)]
    pub(crate) quota_file: Option<PathBuf>,
    /// Socket of the master beside this program. With it, the program elects one of several masters by a Lease.
    #[arg(long, requires_all = ["cluster_uid", "pod", "addresses"])]
    elector_socket: Option<PathBuf>,
    /// UID of the MooncakeCluster, which owns the Lease.
    #[arg(long, default_value = "")]
    cluster_uid: String,
    /// Name of this pod, which is the holder of the Lease.
    #[arg(long, default_value = "")]
    pod: String,
    /// Addresses of this pod, separated by commas. The Service of masters leads to one of them while this master leads.
    #[arg(long, value_delimiter = ',')]
    addresses: Vec<IpAddr>,
    /// TCP port, at the first of these addresses, for the electors of other masters.
    #[arg(long, default_value_t = MASTER_ELECTOR_PORT)]
    elector_port: u16,
    /// Another address for them.
    #[arg(long)]
    elector_address: Option<IpAddr>,
    /// Seconds after which another master takes a Lease that this one has not renewed. All other times of the election follow from it.
    #[arg(long, default_value_t = DEFAULT_LEASE_SECONDS,
        value_parser = value_parser!(u32).range(i64::from(LEAST_LEASE_SECONDS)..=i64::from(LONGEST_LEASE_SECONDS)))]
    lease_seconds: u32,
}

impl Args {
    /// Returns the elector, if there are several masters.
    pub(crate) async fn elector(&self, client: &kube::Client) -> anyhow::Result<Option<Elector>> {
        let Some(socket) = &self.elector_socket else {
            return Ok(None);
        };
        let local = Local::listen(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let address = self
            .elector_address
            .or_else(|| self.addresses.first().copied());
        let address = address.context("--addresses is empty")?;
        let listen = SocketAddr::new(address, self.elector_port);
        let requests = Requests::listen(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}"))?;
        let settings = Settings {
            namespace: self.namespace.clone(),
            cluster: self.cluster.clone(),
            cluster_uid: self.cluster_uid.clone(),
            pod: self.pod.clone(),
            addresses: self.addresses.clone(),
            lease_seconds: self.lease_seconds,
        };
        Ok(Some(Elector::new(
            client.clone(),
            settings,
            local,
            requests,
        )))
    }
}

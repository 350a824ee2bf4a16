//! Reads the status of the pool process, for the liveness probe of the pool pod and for `kubectl exec`.

use anyhow::{Context, bail};
use sys::net::seqpacket;

use super::args::Probe;
use crate::handover::{ADDRESS, Client, Connection};

/// Probes the pool process in this network namespace and returns its message.
///
/// # Errors
/// No pool process responds, or it is not ready.
pub(crate) async fn probe(what: Probe) -> anyhow::Result<String> {
    let socket =
        seqpacket::connect(ADDRESS).context("cannot connect to the pool process of this pod")?;
    let mut client = Client::new(Connection::new(socket)?);
    let status = client.status().await?;
    if what == Probe::Ready && !status.ready {
        bail!("not ready: {}", status.reason);
    }
    Ok(status.reason)
}

//! The exec probes of a pool pod: they ask the pool process, which tells the truth.

use anyhow::{Context, bail};
use sys::net::seqpacket;

use super::args::Probe;
use crate::handover::{ADDRESS, Client, Connection};

/// Asks the pool process in this network namespace; `Ok` carries its words.
///
/// # Errors
/// Why the answer is no.
pub async fn probe(what: Probe) -> anyhow::Result<String> {
    let socket = seqpacket::connect(ADDRESS).context("no pool process listens in this pod")?;
    let mut client = Client::new(Connection::new(socket)?);
    let status = client.status().await?;
    if what == Probe::Ready && !status.ready {
        bail!("not ready: {}", status.reason);
    }
    Ok(status.reason)
}

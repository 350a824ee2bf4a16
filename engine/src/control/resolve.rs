//! Asks a peer on its handshake port what it publishes, and makes of it how to reach it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use proto::address::ServerName;
use proto::descriptor::Descriptor;
use proto::frame::Version;
use proto::handshake::{self, Kind, PREFIX_LENGTH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Outbound, connect};
use crate::transport::{LinkError, PeerCard};

const WHAT: &str = "asking the handshake port";

/// The peer's card, and a number that changes when what it publishes changes.
pub(super) async fn resolve(
    outbound: &Outbound,
    name: Arc<str>,
) -> Result<(u64, PeerCard), LinkError> {
    tokio::time::timeout(outbound.connect_timeout, ask(outbound, name))
        .await
        .unwrap_or(Err(LinkError::Silent { what: WHAT }))
}

async fn ask(outbound: &Outbound, name: Arc<str>) -> Result<(u64, PeerCard), LinkError> {
    let server = ServerName::parse(&name);
    let descriptor = fetch(outbound, &server).await?;
    let host = match descriptor.tcp_data_host.as_str() {
        // Engines from before that field: the host of the name under which we know it.
        "" => server.host.as_str(),
        host => host,
    };
    let data = lookup(host, descriptor.tcp_data_port).await?;
    let mut published = DefaultHasher::new();
    descriptor.buffers.hash(&mut published);
    data.hash(&mut published);
    descriptor.tcp_proto_version.hash(&mut published);
    let version = if descriptor.tcp_proto_version >= 2 {
        Version::V2
    } else {
        Version::V1
    };
    let network = outbound.network.clone();
    Ok((
        published.finish(),
        PeerCard {
            name,
            data,
            version,
            network,
        },
    ))
}

/// One request, one reply, closed at once: stock engines serve one peer at a time.
async fn fetch(outbound: &Outbound, server: &ServerName) -> Result<Descriptor, LinkError> {
    let mut last = LinkError::Silent { what: WHAT };
    for address in lookup(&server.host, server.port).await? {
        match exchange(outbound, address).await {
            Ok(descriptor) => return Ok(descriptor),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn exchange(outbound: &Outbound, address: SocketAddr) -> Result<Descriptor, LinkError> {
    let mut stream = connect::stream(outbound.network.as_ref(), address)
        .await
        .map_err(LinkError::io("connecting to the handshake port"))?;
    let request = handshake::encode(
        Some(Kind::Metadata),
        &outbound.identity.descriptor().encode(),
    );
    stream
        .write_all(&request)
        .await
        .map_err(LinkError::io(WHAT))?;
    let mut prefix = [0; PREFIX_LENGTH];
    stream
        .read_exact(&mut prefix)
        .await
        .map_err(LinkError::io(WHAT))?;
    let length = handshake::length(prefix).map_err(broken)?;
    let mut payload = vec![0; length];
    stream
        .read_exact(&mut payload)
        .await
        .map_err(LinkError::io(WHAT))?;
    let body = handshake::reply_body(Kind::Metadata, &payload).map_err(broken)?;
    Descriptor::parse(body).map_err(broken)
}

async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, LinkError> {
    let found = tokio::net::lookup_host((host, port))
        .await
        .map_err(LinkError::io("looking up the peer's host"))?;
    Ok(found.collect())
}

fn broken(error: impl std::fmt::Display) -> LinkError {
    LinkError::Protocol(error.to_string())
}

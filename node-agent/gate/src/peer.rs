//! Probes a pool pod as a stock peer does: reads its descriptor, then a few bytes of each segment.

use std::io;
use std::time::Duration;

use proto::address::ServerName;
use proto::descriptor::{Descriptor, DescriptorError};
use proto::frame::{HEADER_LENGTH, Header, Op, STATUS_LENGTH, Status, StatusError, Version};
use proto::handshake::{self, FrameError, Kind, PREFIX_LENGTH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::segment::Peer;

/// Deadline of the probe of one peer.
const DEADLINE: Duration = Duration::from_secs(3);
/// Bytes that are read of each segment.
const READ: usize = 8;

/// Where a probe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Handshake,
    Data,
    Read,
}

/// Why the probe of a peer failed.
#[derive(Debug, thiserror::Error)]
#[error("{node} at {endpoint}, {}: {cause}", self.stage())]
pub(super) struct PeerError {
    node: String,
    endpoint: String,
    stage: Stage,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("{0}{owner}", owner = owner(.0))]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Descriptor(#[from] DescriptorError),
    #[error("{0}")]
    Status(#[from] StatusError),
    #[error("address {0:#x} is not served there: its owner restarted since the master listed it")]
    Rejected(u64),
    #[error("no response within {} s", DEADLINE.as_secs())]
    Deadline,
}

/// What a failed connection means for the owner of the segment.
fn owner(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ": its owner is not running, nothing listens there",
        io::ErrorKind::HostUnreachable => ": its owner's pod or node is gone",
        _ => "",
    }
}

impl PeerError {
    fn stage(&self) -> &'static str {
        match self.stage {
            Stage::Handshake => "handshake port",
            Stage::Data => "data port",
            Stage::Read => "reading from its memory",
        }
    }
}

/// Reads from every listed segment of the peer.
pub(super) async fn probe(peer: &Peer) -> Result<(), PeerError> {
    let mut stage = Stage::Handshake;
    let result = tokio::time::timeout(DEADLINE, walk(peer, &mut stage)).await;
    let cause = match result {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(cause)) => cause,
        Err(_) => Cause::Deadline,
    };
    Err(PeerError {
        node: peer.node.clone(),
        endpoint: peer.endpoint.clone(),
        stage,
        cause,
    })
}

async fn walk(peer: &Peer, stage: &mut Stage) -> Result<(), Cause> {
    let name = ServerName::parse(&peer.endpoint);
    let descriptor = describe(&name).await?;
    *stage = Stage::Data;
    let host = if descriptor.tcp_data_host.is_empty() {
        &name.host
    } else {
        &descriptor.tcp_data_host
    };
    let mut data = TcpStream::connect((host.as_str(), descriptor.tcp_data_port)).await?;
    *stage = Stage::Read;
    for base in &peer.bases {
        read(&mut data, *base).await?;
    }
    Ok(())
}

/// Reads the peer's descriptor without sending one.
async fn describe(name: &ServerName) -> Result<Descriptor, Cause> {
    let mut stream = TcpStream::connect((name.host.as_str(), name.port)).await?;
    let request = handshake::encode(Some(Kind::Metadata), b"{}\n");
    stream.write_all(&request).await?;
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await?;
    let mut payload = vec![0; handshake::length(prefix)?];
    stream.read_exact(&mut payload).await?;
    let body = handshake::reply_body(Kind::Metadata, &payload)?;
    Ok(Descriptor::parse(body)?)
}

async fn read(stream: &mut TcpStream, address: u64) -> Result<(), Cause> {
    let header = Header {
        size: READ as u64,
        address,
        op: Op::Read,
        version: Version::V2,
    };
    let frame: [u8; HEADER_LENGTH] = header.encode();
    stream.write_all(&frame).await?;
    let mut status = [0; STATUS_LENGTH];
    stream.read_exact(&mut status).await?;
    match Status::decode(status)? {
        Status::AddressRejected => Err(Cause::Rejected(address)),
        Status::Ok => {
            let mut bytes = [0; READ];
            stream.read_exact(&mut bytes).await?;
            Ok(())
        }
    }
}

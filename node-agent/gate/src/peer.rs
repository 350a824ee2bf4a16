//! Probes a pool pod as a stock peer does: reads its descriptor, then over TCP a few bytes of each segment.

use std::io;
use std::time::Duration;

use proto::address::ServerName;
use proto::descriptor::{Descriptor, DescriptorError};
use proto::frame::{HEADER_LENGTH, Header, Op, STATUS_LENGTH, Status, StatusError, Version};
use proto::handshake::{self, FrameError, Kind, PREFIX_LENGTH};
use proto::rdma;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::args::Transport;
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
    RdmaDescriptor(#[from] rdma::DescriptorError),
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

/// Reads from every listed segment of the peer. Over RDMA only its descriptor must have them.
pub(super) async fn probe(peer: &Peer, transport: Transport) -> Result<(), PeerError> {
    let mut stage = Stage::Handshake;
    let result = tokio::time::timeout(DEADLINE, walk(peer, transport, &mut stage)).await;
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

async fn walk(peer: &Peer, transport: Transport, stage: &mut Stage) -> Result<(), Cause> {
    let name = ServerName::parse(&peer.endpoint);
    let descriptor = describe(&name, transport).await?;
    if transport == Transport::Rdma {
        let published = rdma::Descriptor::parse(&descriptor)?.buffers;
        let has = |base: &&u64| published.iter().any(|buffer| buffer.addr == **base);
        return match peer.bases.iter().find(|base| !has(base)) {
            Some(base) => Err(Cause::Rejected(*base)),
            None => Ok(()),
        };
    }
    let descriptor = Descriptor::parse(&descriptor)?;
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

/// Reads the peer's descriptor for this transport. Of the own one, a pool pod reads the transport alone, and stock engines nothing.
async fn describe(name: &ServerName, transport: Transport) -> Result<Vec<u8>, Cause> {
    let own: &[u8] = match transport {
        Transport::Tcp => b"{\"protocol\":\"tcp\"}\n",
        Transport::Rdma => b"{\"protocol\":\"rdma\"}\n",
    };
    let mut stream = TcpStream::connect((name.host.as_str(), name.port)).await?;
    let request = handshake::encode(Some(Kind::Metadata), own);
    stream.write_all(&request).await?;
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await?;
    let mut payload = vec![0; handshake::length(prefix)?];
    stream.read_exact(&mut payload).await?;
    let body = handshake::reply_body(Kind::Metadata, &payload)?;
    Ok(body.to_vec())
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const RDMA: &str = r#"{"protocol":"rdma","name":"p","devices":[{"name":"rxe0","lid":0,"gid":"::1"}],
        "buffers":[{"addr":4096,"length":4096,"name":"cpu:0","lkey":[1],"rkey":[1]}]}"#;
    const TCP: &str = r#"{"protocol":"tcp","name":"p","tcp_data_port":1,
        "buffers":[{"addr":4096,"length":4096,"name":"p"}]}"#;

    /// Probes a peer that answers with this descriptor.
    async fn probed(descriptor: &'static str, base: u64, transport: Transport) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Peer {
            node: "n1".to_owned(),
            endpoint: listener.local_addr().unwrap().to_string(),
            bases: vec![base],
        };
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut prefix = [0; PREFIX_LENGTH];
            stream.read_exact(&mut prefix).await.unwrap();
            let mut request = vec![0; handshake::length(prefix).unwrap()];
            stream.read_exact(&mut request).await.unwrap();
            let protocol = match transport {
                Transport::Tcp => handshake::Protocol::Tcp,
                Transport::Rdma => handshake::Protocol::Rdma,
            };
            // By it a pool pod with both transports selects the descriptor.
            let wanted = handshake::Request::Metadata {
                protocol: Some(protocol),
            };
            assert_eq!(handshake::Request::parse(&request).unwrap(), wanted);
            let reply = handshake::encode(Some(Kind::Metadata), descriptor.as_bytes());
            stream.write_all(&reply).await.unwrap();
        };
        let (result, ()) = tokio::join!(probe(&peer, transport), answer);
        result.err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn over_rdma_the_descriptor_of_a_peer_must_have_its_segments() {
        assert_eq!(probed(RDMA, 4096, Transport::Rdma).await, None);
        for (descriptor, base, transport, cause) in [
            (RDMA, 8192, Transport::Rdma, "address 0x2000 is not served"),
            (RDMA, 4096, Transport::Tcp, "transport `rdma`, not `tcp`"),
            (TCP, 4096, Transport::Rdma, "transport `tcp`, not `rdma`"),
        ] {
            let seen = probed(descriptor, base, transport).await.unwrap();
            assert!(seen.contains(cause), "{seen}");
        }
    }
}

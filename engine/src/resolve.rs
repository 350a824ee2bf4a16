//! Fetches a peer's descriptor from its handshake port or from a metadata service, and derives the address of its data
//! listener.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use metadata::Service;
use proto::address::ServerName;
use proto::descriptor::Descriptor;
use proto::frame::Version;
#[cfg(feature = "rdma")]
use proto::handshake::Protocol;
use proto::handshake::{self, Kind, PREFIX_LENGTH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::connect::Dialer;
use crate::identity::Identity;
#[cfg(feature = "rdma")]
use crate::transport::rdma::RdmaPeer;
use crate::transport::{LinkError, PeerAddress, TcpPeer};

const WHAT: &str = "requesting the descriptor from the handshake port";

/// Resolves the peers of one endpoint.
#[derive(Debug)]
pub(crate) struct Resolver {
    pub(crate) runtime: Handle,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) identity: Arc<Identity>,
    /// Where descriptors are; `None`: at the peers' handshake ports.
    pub(crate) metadata: Option<Service>,
    pub(crate) timeout: Duration,
}

impl Resolver {
    /// Returns the peer's address, and a hash that changes when the peer publishes something else.
    pub(crate) async fn resolve(&self, name: Arc<str>) -> Result<(u64, PeerAddress), LinkError> {
        tokio::time::timeout(self.timeout, self.lookup_peer(name))
            .await
            .unwrap_or(Err(LinkError::TimedOut { what: WHAT }))
    }

    async fn lookup_peer(&self, name: Arc<str>) -> Result<(u64, PeerAddress), LinkError> {
        let (descriptor, host) = match &self.metadata {
            None => {
                let server = ServerName::parse(&name);
                let body = self.fetch(&server).await?;
                #[cfg(feature = "rdma")]
                if self.identity.is_rdma() && Protocol::of(&body) != Some(Protocol::Tcp) {
                    return self.rdma_peer(server, &body);
                }
                published_by_peer(server, &body)?
            }
            Some(service) => read_service(service, &name)
                .await
                .map_err(LinkError::Metadata)?,
        };
        self.tcp_peer(name, &descriptor, &host).await
    }

    /// Returns the address of a peer over TCP, whose data listener has this host.
    async fn tcp_peer(
        &self,
        name: Arc<str>,
        descriptor: &Descriptor,
        host: &str,
    ) -> Result<(u64, PeerAddress), LinkError> {
        let data = self.dialer.lookup(host, descriptor.tcp_data_port).await?;
        let mut published = DefaultHasher::new();
        descriptor.buffers.hash(&mut published);
        data.hash(&mut published);
        descriptor.tcp_proto_version.hash(&mut published);
        // Not the pipeline depth: an engine of another release that takes over a pool is the same peer.
        let version = if descriptor.tcp_proto_version >= 2 {
            Version::V2
        } else {
            Version::V1
        };
        let address = TcpPeer {
            name,
            data,
            version,
            pipeline_depth: descriptor.tcp_pipeline_depth,
            dialer: Arc::clone(&self.dialer),
        };
        Ok((published.finish(), PeerAddress::Tcp(address)))
    }

    /// Returns the address of a peer over RDMA.
    #[cfg(feature = "rdma")]
    fn rdma_peer(&self, server: ServerName, body: &[u8]) -> Result<(u64, PeerAddress), LinkError> {
        let descriptor = proto::rdma::Descriptor::parse(body).map_err(protocol_error)?;
        if descriptor.devices.is_empty() {
            return Err(protocol_error("the descriptor has no device"));
        }
        let mut published = DefaultHasher::new();
        for buffer in &descriptor.buffers {
            (buffer.addr, buffer.length, &buffer.rkey).hash(&mut published);
        }
        for device in &descriptor.devices {
            (&device.name, &device.gid).hash(&mut published);
        }
        let server_name = descriptor.server().into();
        let extents = descriptor.buffers.into_iter();
        let devices = descriptor.devices.into_iter();
        let address = RdmaPeer {
            own: self.identity.name().into(),
            server: server_name,
            devices: devices.map(|device| device.name).collect(),
            extents: extents
                .map(|buffer| (buffer.addr, buffer.length, buffer.rkey))
                .collect(),
            handshake: (server.host, server.port),
            dialer: Some(Arc::clone(&self.dialer)),
        };
        Ok((published.finish(), PeerAddress::Rdma(Arc::new(address))))
    }

    /// Returns the descriptor as the peer has sent it.
    async fn fetch(&self, server: &ServerName) -> Result<Vec<u8>, LinkError> {
        let mut last = LinkError::TimedOut { what: WHAT };
        for address in self.dialer.lookup(&server.host, server.port).await? {
            match self.exchange(address).await {
                Ok(descriptor) => return Ok(descriptor),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends one request on a new connection: stock engines serve one handshake connection at a time,
    /// and one request on each.
    async fn exchange(&self, address: SocketAddr) -> Result<Vec<u8>, LinkError> {
        let mut stream = self
            .dialer
            .stream(address, "connecting to the handshake port")
            .await?;
        let own = self.identity.encoded_for(None);
        let request = handshake::encode(Some(Kind::Metadata), &own);
        stream
            .write_all(&request)
            .await
            .map_err(LinkError::io(WHAT))?;
        let mut prefix = [0; PREFIX_LENGTH];
        read(&mut stream, &mut prefix).await?;
        let length = handshake::length(prefix).map_err(protocol_error)?;
        let mut payload = vec![0; length];
        read(&mut stream, &mut payload).await?;
        let body = handshake::reply_body(Kind::Metadata, &payload).map_err(protocol_error)?;
        Ok(body.to_vec())
    }
}

/// Returns the descriptor that a peer has sent, and the host of its data listener.
fn published_by_peer(server: ServerName, body: &[u8]) -> Result<(Descriptor, String), LinkError> {
    let descriptor = Descriptor::parse(body).map_err(protocol_error)?;
    let host = match descriptor.tcp_data_host.as_str() {
        // Releases before that field: the data listener has the host of the server name.
        "" => server.host,
        host => host.to_owned(),
    };
    Ok((descriptor, host))
}

/// Returns the descriptor in the service, and the host of the peer's data listener.
async fn read_service(
    service: &Service,
    name: &str,
) -> Result<(Descriptor, String), metadata::Error> {
    let descriptor = service.descriptor(name).await?;
    let host = match descriptor.tcp_data_host.as_str() {
        // Releases before that field: the data listener has the host of the handshake listener.
        "" => service.rpc_meta(name).await?.ip_or_host_name,
        host => host.to_owned(),
    };
    Ok((descriptor, host))
}

async fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> Result<(), LinkError> {
    stream
        .read_exact(bytes)
        .await
        .map_err(LinkError::io(WHAT))?;
    Ok(())
}

fn protocol_error(error: impl std::fmt::Display) -> LinkError {
    LinkError::Protocol(error.to_string())
}

//! Requests the descriptor of a target, which lists the memory that it offers.

use std::time::Duration;

use anyhow::{Context, ensure};
use proto::address::ServerName;
use proto::descriptor::{Buffer, Descriptor};
use proto::handshake::{self, Kind, PREFIX_LENGTH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DEADLINE: Duration = Duration::from_secs(10);

/// The first buffer of a target.
///
/// # Errors
/// The target does not answer, or offers no memory.
pub(crate) async fn first_buffer(target: &str) -> anyhow::Result<Buffer> {
    let buffer = descriptor(target).await?.buffers.into_iter().next();
    buffer.with_context(|| format!("{target} offers no memory"))
}

/// The descriptor of a target.
///
/// # Errors
/// The target does not answer.
pub(crate) async fn descriptor(target: &str) -> anyhow::Result<Descriptor> {
    tokio::time::timeout(DEADLINE, request(target))
        .await
        .with_context(|| format!("{target} did not answer within {DEADLINE:?}"))?
        .with_context(|| format!("requesting the descriptor of {target}"))
}

async fn request(target: &str) -> anyhow::Result<Descriptor> {
    let at = ServerName::parse(target);
    let mut stream = TcpStream::connect((at.host.as_str(), at.port)).await?;
    // A request carries the descriptor of its sender, which has no memory to offer.
    let own = Descriptor {
        buffers: Vec::new(),
        name: stream.local_addr()?.to_string(),
        protocol: "tcp".to_owned(),
        rdma_server_name: String::new(),
        tcp_data_host: String::new(),
        tcp_data_port: 0,
        tcp_pipeline_depth: 0,
        tcp_proto_version: 2,
        timestamp: String::new(),
    };
    let request = handshake::encode(Some(Kind::Metadata), &own.encode());
    stream.write_all(&request).await?;
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await?;
    let length = handshake::length(prefix)?;
    ensure!(length > 0, "an empty answer");
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    let body = handshake::reply_body(Kind::Metadata, &payload)?;
    Ok(Descriptor::parse(body)?)
}

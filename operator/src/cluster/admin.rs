//! The master's admin port: HTTP, without authentication; only NetworkPolicies protect it.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

/// Deadline of one request.
const LIMIT: Duration = Duration::from_secs(3);
/// Largest response that is read, in bytes; enough for thousands of segments.
const LARGEST: usize = 16 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connect: {0}")]
    Connect(std::io::Error),
    #[error("http: {0}")]
    Http(hyper::Error),
    #[error("request: {0}")]
    Request(hyper::http::Error),
    #[error("answer {0}")]
    Status(hyper::StatusCode),
    #[error("body: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("not understood: {0}")]
    Json(serde_json::Error),
    #[error("no whole answer in {} s", LIMIT.as_secs())]
    Silent,
}

/// One segment in the master's index.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Segment {
    #[serde(rename = "segment_name")]
    pub name: String,
    /// Two decimal numbers with a dash between them.
    pub segment_id: String,
    /// ID of the node's client, as two decimal numbers too.
    pub client_id: String,
}

#[derive(Deserialize)]
struct Details {
    segments: Vec<Segment>,
}

/// Every segment that is mounted.
pub async fn segments(address: SocketAddr) -> Result<Vec<Segment>, Error> {
    let text = get(address, "/get_segments_detail").await?;
    let details: Details = serde_json::from_str(&text).map_err(Error::Json)?;
    Ok(details.segments)
}

/// The body of a successful answer.
pub async fn get(address: SocketAddr, path: &str) -> Result<String, Error> {
    match tokio::time::timeout(LIMIT, exchange(address, path)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Silent),
    }
}

async fn exchange(address: SocketAddr, path: &str) -> Result<String, Error> {
    let stream = TcpStream::connect(address).await.map_err(Error::Connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(Error::Http)?;
    let request = Request::get(path)
        .header("host", address.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(Error::Request)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(Error::Http)?;
        if !answer.status().is_success() {
            return Err(Error::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), LARGEST)
            .collect()
            .await
            .map_err(Error::Body)?;
        Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    };
    tokio::pin!(connection);
    tokio::pin!(exchange);
    tokio::select! {
        outcome = &mut exchange => outcome,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(Error::Http(error)),
        },
    }
}

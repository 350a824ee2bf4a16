//! Reads keys from the admin port of a master, through a connection that the API server and the kubelet forward into the
//! master's pod. No value of a key is read.

use std::collections::{BTreeSet, HashMap};

use crds::names::MASTER_ADMIN_PORT;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use regex::Regex;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::args::KeysArgs;

/// Largest answer that is read, in bytes.
const LARGEST: usize = 64 << 20;

/// What a master answered.
#[derive(Debug)]
pub enum Answer {
    /// Of the built-in master.
    Search(Found),
    /// All keys were listed, and matched here.
    List {
        count: u64,
        /// The first matching keys with their readable replicas.
        listed: Vec<(String, Vec<StockReplica>)>,
    },
}

/// The result of a search by the built-in master.
#[derive(Debug, Deserialize)]
pub struct Found {
    pub complete: bool,
    pub objects: u64,
    pub bytes: u64,
    pub keys: Vec<FoundKey>,
    pub segments: Vec<FoundSegment>,
}

#[derive(Debug, Deserialize)]
pub struct FoundKey {
    pub key: String,
    pub size: u64,
    pub hard_pin: bool,
    /// Positions in [`Found::segments`].
    pub segments: Vec<usize>,
}

#[derive(Debug, Deserialize)]
pub struct FoundSegment {
    pub name: String,
    pub endpoint: String,
    /// It takes no new objects.
    pub leaves: bool,
    pub objects: u64,
    pub bytes: u64,
}

/// A replica as the stock master lists it.
#[derive(Debug, Deserialize)]
pub struct StockReplica {
    #[serde(rename = "size_")]
    pub size: u64,
    #[serde(rename = "transport_endpoint_")]
    pub endpoint: String,
}

#[derive(Deserialize)]
struct StockKeys {
    data: HashMap<String, StockKey>,
}

#[derive(Deserialize)]
struct StockKey {
    values: Option<Vec<StockReplica>>,
}

#[derive(Deserialize)]
struct Refusal {
    error_message: String,
}

/// Why a master could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot forward its port {MASTER_ADMIN_PORT}: {0}")]
    Forward(kube::Error),
    #[error("port {MASTER_ADMIN_PORT} of the pod does not answer: {0}")]
    Closed(String),
    #[error("{path}: {source}")]
    Exchange { path: String, source: hyper::Error },
    #[error("{path}: {source}")]
    Path {
        path: String,
        source: hyper::http::Error,
    },
    #[error("{path}: the answer is longer than {} MiB or was cut off: {cause}", LARGEST >> 20)]
    Body { path: String, cause: String },
    #[error("{path}: status {status}{message}")]
    Status {
        path: String,
        status: StatusCode,
        message: String,
    },
    #[error("{path}: the answer cannot be decoded: {source}")]
    Decode {
        path: String,
        source: serde_json::Error,
    },
}

/// Reads the keys from a master pod. The search ends after `seconds`.
///
/// # Errors
/// A port that cannot be forwarded or is closed, as that of a master that waits to be elected, and an answer that cannot
/// be read.
pub async fn read(
    pods: &Api<Pod>,
    master: &str,
    wanted: &KeysArgs,
    seconds: u64,
) -> Result<Answer, Error> {
    let mut forwarder = pods
        .portforward(master, &[MASTER_ADMIN_PORT])
        .await
        .map_err(Error::Forward)?;
    let failed = forwarder.take_error(MASTER_ADMIN_PORT);
    let Some(stream) = forwarder.take_stream(MASTER_ADMIN_PORT) else {
        return Err(Error::Closed("no stream was opened".to_owned()));
    };
    let outcome = exchange(stream, wanted, seconds).await;
    let cause = match (&outcome, failed) {
        // The kubelet reports a closed port beside the stream, which only ends.
        (Err(Error::Exchange { .. }), Some(failed)) => failed.await,
        _ => None,
    };
    forwarder.abort();
    match cause {
        Some(cause) => Err(Error::Closed(cause.trim().to_owned())),
        None => outcome,
    }
}

/// Reads the keys over a connection to the admin port.
///
/// # Errors
/// As of [`read`].
pub async fn exchange<S>(stream: S, wanted: &KeysArgs, seconds: u64) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let begin = |source| Error::Exchange {
        path: "/".to_owned(),
        source,
    };
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(begin)?;
    let work = async {
        let path = search_path(wanted, seconds);
        match get(&mut sender, &path).await {
            Ok(body) => decode(&path, &body).map(Answer::Search),
            // A stock master, or a built-in one of an earlier build.
            Err(Error::Status { status, .. }) if status == StatusCode::NOT_FOUND => {
                list(&mut sender, wanted).await
            }
            Err(error) => Err(error),
        }
    };
    tokio::pin!(connection);
    tokio::pin!(work);
    tokio::select! {
        outcome = &mut work => outcome,
        ended = &mut connection => match ended {
            Ok(()) => work.await,
            Err(source) => Err(begin(source)),
        },
    }
}

/// Lists all keys of a stock master, and looks up the ones that are shown.
async fn list(sender: &mut SendRequest<Empty<Bytes>>, wanted: &KeysArgs) -> Result<Answer, Error> {
    let body = get(sender, "/get_all_keys").await?;
    let text = String::from_utf8_lossy(&body);
    let mut first = BTreeSet::new();
    let mut count = 0;
    for key in text.lines().filter(|key| wanted.matches(key)) {
        count += 1;
        first.insert(key);
        if first.len() > wanted.limit {
            first.pop_last();
        }
    }
    // The path separates keys by commas.
    let known: Vec<String> = first
        .iter()
        .filter(|key| !key.contains(','))
        .map(|key| encode(key))
        .collect();
    let mut data = HashMap::new();
    for some in known.chunks(LOOKUP) {
        let path = format!("/batch_query_keys?keys={}", some.join(","));
        let found: StockKeys = decode("/batch_query_keys", &get(sender, &path).await?)?;
        data.extend(found.data);
    }
    let listed = first.into_iter().map(|key| {
        let replicas = data.remove(key).and_then(|key| key.values);
        (key.to_owned(), replicas.unwrap_or_default())
    });
    Ok(Answer::List {
        count,
        listed: listed.collect(),
    })
}

/// Keys in one lookup: the length of a path is limited.
const LOOKUP: usize = 20;

fn search_path(wanted: &KeysArgs, seconds: u64) -> String {
    let mut path = format!(
        "/find_keys?prefix={}&limit={}&seconds={seconds}",
        encode(&wanted.prefix),
        wanted.limit
    );
    if let Some(regex) = &wanted.regex {
        path += &format!("&regex={}", encode(regex.as_str()));
    }
    path
}

/// Encodes a value of a query.
fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

async fn get(sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> Result<Bytes, Error> {
    // Errors name the path without its query, which may be long.
    let name = path.split('?').next().unwrap_or_default();
    let failed = |source| Error::Exchange {
        path: name.to_owned(),
        source,
    };
    sender.ready().await.map_err(failed)?;
    let request = Request::get(path)
        .header("host", "localhost")
        .body(Empty::new())
        .map_err(|source| Error::Path {
            path: name.to_owned(),
            source,
        })?;
    let answer = sender.send_request(request).await.map_err(failed)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(|cause| Error::Body {
        path: name.to_owned(),
        cause: cause.to_string(),
    })?;
    let body = body.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let refusal = serde_json::from_slice::<Refusal>(&body);
    Err(Error::Status {
        path: name.to_owned(),
        status,
        message: refusal.map_or_else(|_| String::new(), |one| format!(": {}", one.error_message)),
    })
}

fn decode<'a, T: Deserialize<'a>>(path: &str, body: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|source| Error::Decode {
        path: path.split('?').next().unwrap_or_default().to_owned(),
        source,
    })
}

impl KeysArgs {
    fn matches(&self, key: &str) -> bool {
        let regex = self.regex.as_ref();
        key.starts_with(&self.prefix) && regex.is_none_or(|regex: &Regex| regex.is_match(key))
    }
}

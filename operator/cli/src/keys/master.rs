//! Reads keys from the admin port of a master, through a connection that the API server and the kubelet forward into the
//! master's pod. No value of a key is read.

use std::collections::{BTreeSet, HashMap};

use crds::names::DEFAULT_TENANT;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};

pub use crate::admin_port::Error;
use crate::admin_port::{AdminPort, decode};
use crate::args::KeysArgs;

/// Keys in one lookup: the length of a path is limited.
const LOOKUP: usize = 20;

/// What a master answered.
#[derive(Debug)]
pub enum Answer {
    /// The built-in master has searched the keys.
    Search(Found),
    /// A stock master has listed all keys, and they were matched here.
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
    find(&mut AdminPort::open(pods, master).await?, wanted, seconds).await
}

/// Reads the keys over a connection to the admin port.
///
/// # Errors
/// As [`read`].
pub async fn exchange<S>(stream: S, wanted: &KeysArgs, seconds: u64) -> Result<Answer, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    find(&mut AdminPort::over(stream).await?, wanted, seconds).await
}

async fn find(port: &mut AdminPort, wanted: &KeysArgs, seconds: u64) -> Result<Answer, Error> {
    let path = search_path(wanted, seconds);
    match port.get(&path).await {
        Ok(body) => decode(&path, &body).map(Answer::Search),
        // A stock master, or a built-in one of an earlier build.
        Err(error) if error.is_not_found() && wanted.tenant == DEFAULT_TENANT => {
            list(port, wanted).await
        }
        Err(error) => Err(error),
    }
}

/// Lists all keys of a stock master, and looks up the ones that are shown.
async fn list(port: &mut AdminPort, wanted: &KeysArgs) -> Result<Answer, Error> {
    let body = port.get("/get_all_keys").await?;
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
        let found: StockKeys = decode("/batch_query_keys", &port.get(&path).await?)?;
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

fn search_path(wanted: &KeysArgs, seconds: u64) -> String {
    let mut path = format!(
        "/find_keys?prefix={}&limit={}&seconds={seconds}",
        encode(&wanted.prefix),
        wanted.limit
    );
    if let Some(regex) = &wanted.regex {
        path += &format!("&regex={}", encode(regex.as_str()));
    }
    if wanted.tenant != DEFAULT_TENANT {
        path += &format!("&tenant_id={}", encode(&wanted.tenant));
    }
    path
}

/// Encodes a value of a query.
fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

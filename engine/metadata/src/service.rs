//! Requests to an HTTP metadata service: one connection each, with the timeouts of stock engines.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use proto::descriptor::Descriptor;
use proto::metadata::{RpcMeta, ServiceUrl, UrlError, descriptor_key, rpc_meta_key};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{Error, Problem};
use crate::http::{self, Answer};

/// Limit for one connection attempt.
const CONNECT_DEADLINE: Duration = Duration::from_millis(1_500);

/// Limit for a request with its connection.
const REQUEST_DEADLINE: Duration = Duration::from_secs(3);

/// Longest text of an answer in a message.
const QUOTE_LIMIT: usize = 80;

/// Most addresses of the host that are tried.
const ADDRESSES_LIMIT: usize = 4;

/// The addresses of the service's host, or why there are none.
pub type Addresses = Result<Vec<IpAddr>, String>;

/// Looks up the host of the service.
pub type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, Addresses> + Send + Sync>;

/// Looks up by the resolver of this process.
#[must_use]
pub fn system_lookup() -> Lookup {
    Arc::new(|host| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await;
            let found = found.map_err(|error| format!("{host}: {error}"))?;
            Ok(found.map(|address| address.ip()).collect())
        })
    })
}

/// An HTTP metadata service. Connections leave from the network namespace of the calling thread.
#[derive(Clone)]
pub struct Service {
    text: Arc<str>,
    url: Arc<ServiceUrl>,
    lookup: Lookup,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Service").field(&self.text).finish()
    }
}

impl Service {
    /// A service; nothing is sent yet.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn new(url: &str, lookup: Lookup) -> Result<Self, UrlError> {
        Ok(Self {
            text: url.into(),
            url: Arc::new(ServiceUrl::parse(url)?),
            lookup,
        })
    }

    /// Returns the descriptor of a segment.
    ///
    /// # Errors
    /// Of the request; [`Problem::NoKey`]; [`Problem::InvalidValue`].
    pub async fn descriptor(&self, segment: &str) -> Result<Descriptor, Error> {
        let key = descriptor_key(segment);
        let value = self.value(&key).await?;
        Descriptor::parse(&value).map_err(|error| self.invalid(&key, &error))
    }

    /// Returns where the handshake listener of an engine is.
    ///
    /// # Errors
    /// As for [`Self::descriptor`].
    pub async fn rpc_meta(&self, server: &str) -> Result<RpcMeta, Error> {
        let key = rpc_meta_key(server);
        let value = self.value(&key).await?;
        RpcMeta::parse(&value).map_err(|error| self.invalid(&key, &error))
    }

    async fn value(&self, key: &str) -> Result<Vec<u8>, Error> {
        let value = self.get(key).await?;
        value.ok_or_else(|| self.error(None, Problem::NoKey(key.into())))
    }

    fn invalid(&self, key: &str, cause: &dyn fmt::Display) -> Error {
        let problem = Problem::InvalidValue {
            key: key.into(),
            cause: cause.to_string().into(),
        };
        self.error(None, problem)
    }

    /// Returns the value of a key; `None` if the service has no such key.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let (address, answer) = self.request("GET", key, &[]).await?;
        match answer.status {
            // A web server with one page for all paths is no metadata service.
            200 if is_object(&answer.body) => Ok(Some(answer.body)),
            404 if is_missing(&answer.body) => Ok(None),
            _ => Err(self.error(Some(address), problem("GET", &answer))),
        }
    }

    /// Sets a key. Returns false where the service keeps another value: stock servers do so for `rpc_meta`.
    pub(crate) async fn put(&self, key: &str, value: &[u8]) -> Result<bool, Error> {
        let (address, answer) = self.request("PUT", key, value).await?;
        match answer.status {
            200 => Ok(true),
            400 if quote(&answer.body).contains("Duplicate") => Ok(false),
            _ => Err(self.error(Some(address), problem("PUT", &answer))),
        }
    }

    /// Removes a key, if it is there.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), Error> {
        let (address, answer) = self.request("DELETE", key, &[]).await?;
        match answer.status {
            200 => Ok(()),
            404 if is_missing(&answer.body) => Ok(()),
            _ => Err(self.error(Some(address), problem("DELETE", &answer))),
        }
    }

    pub(crate) fn error(&self, address: Option<SocketAddr>, problem: Problem) -> Error {
        Error {
            url: Arc::clone(&self.text),
            address,
            problem,
        }
    }

    async fn request(
        &self,
        method: &'static str,
        key: &str,
        body: &[u8],
    ) -> Result<(SocketAddr, Answer), Error> {
        let mut last = None;
        let exchange = async {
            let (address, stream) = self.connect(&mut last).await?;
            last = Some(address);
            // Two small writes must not wait for each other.
            let _ = stream.set_nodelay(true);
            let answer = http::exchange(stream, &self.text(method, key, body)).await;
            answer
                .map(|answer| (address, answer))
                .map_err(|problem| self.error(Some(address), problem))
        };
        let done = timeout(REQUEST_DEADLINE, exchange).await;
        done.unwrap_or_else(|_| {
            let problem = match last {
                Some(_) => Problem::Slow(REQUEST_DEADLINE),
                None => Problem::NotResolved(format!(
                    "no answer of the name service for {method} within {} ms",
                    REQUEST_DEADLINE.as_millis()
                )),
            };
            Err(self.error(last, problem))
        })
    }

    /// Connects to the first address that accepts. `last` is the address of the attempt in progress.
    async fn connect(
        &self,
        last: &mut Option<SocketAddr>,
    ) -> Result<(SocketAddr, TcpStream), Error> {
        let host = &self.url.host;
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => (self.lookup)(host.clone())
                .await
                .map_err(|error| self.error(None, Problem::NotResolved(error)))?,
        };
        let mut failed = Problem::NotResolved(format!("{host} has no address"));
        for address in addresses.into_iter().take(ADDRESSES_LIMIT) {
            let address = SocketAddr::new(address, self.url.port);
            failed = match timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok((address, stream)),
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    Problem::Refused
                }
                Ok(Err(error)) => Problem::Unreachable(Arc::new(error)),
                Err(_) => Problem::Filtered(CONNECT_DEADLINE),
            };
            *last = Some(address);
        }
        Err(self.error(*last, failed))
    }

    /// The text of a request, as stock engines send it.
    fn text(&self, method: &str, key: &str, body: &[u8]) -> Vec<u8> {
        let target = self.url.target(key);
        let authority = &self.url.authority;
        let length = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        [head.as_bytes(), body].concat()
    }
}

/// Whether a body is a JSON object, which each value of a metadata service is.
fn is_object(body: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(body).is_ok_and(|value| value.is_object())
}

/// The text of both stock servers for a key that they do not have.
fn is_missing(body: &[u8]) -> bool {
    body.starts_with(b"metadata not found")
}

fn quote(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(QUOTE_LIMIT)]);
    text.trim().to_owned()
}

fn problem(method: &'static str, answer: &Answer) -> Problem {
    let status = answer.status;
    let body = quote(&answer.body);
    // Servers with TLS answer a plain request by HTTP.
    if status == 400 && body.to_ascii_uppercase().contains("HTTPS") {
        return Problem::WrongScheme(body.into());
    }
    let body = body.into();
    if status >= 500 {
        return Problem::Failed {
            method,
            status,
            body,
        };
    }
    Problem::NotMetadata {
        method,
        status,
        body,
    }
}

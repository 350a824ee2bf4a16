//! Requests to an HTTP metadata service: one connection each, with the timeouts of stock engines.

mod exchange;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::metadata::ServiceUrl;
use tokio::time::timeout;

use crate::connect::{Lookup, connect};
use crate::error::{Error, Problem};
use exchange::Answer;

/// Limit for a request with its connection.
const REQUEST_DEADLINE: Duration = Duration::from_millis(2_500);

/// Longest text of an answer in a message.
const QUOTE_LIMIT: usize = 80;

/// An HTTP metadata service.
pub(crate) struct HttpService {
    pub(crate) text: Arc<str>,
    pub(crate) url: ServiceUrl,
    pub(crate) lookup: Lookup,
}

impl HttpService {
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

    fn error(&self, address: Option<SocketAddr>, problem: Problem) -> Error {
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
        let mut connected = false;
        let exchange = async {
            let ServiceUrl { host, port, .. } = &self.url;
            let reached = connect(&self.lookup, host, *port, &mut last).await;
            let (address, stream) = reached.map_err(|problem| self.error(last, problem))?;
            last = Some(address);
            connected = true;
            // Two small writes must not wait for each other.
            let _ = stream.set_nodelay(true);
            let answer = exchange::exchange(stream, &self.text(method, key, body)).await;
            answer
                .map(|answer| (address, answer))
                .map_err(|problem| self.error(Some(address), problem))
        };
        let done = timeout(REQUEST_DEADLINE, exchange).await;
        done.unwrap_or_else(|_| {
            let problem = match last {
                Some(_) if connected => Problem::Slow(REQUEST_DEADLINE),
                Some(_) => Problem::Filtered(REQUEST_DEADLINE),
                None => Problem::NotResolved(format!(
                    "no answer of the name service for {method} within {} ms",
                    REQUEST_DEADLINE.as_millis()
                )),
            };
            Err(self.error(last, problem))
        })
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
    let body: Arc<str> = body.into();
    // Another server may have a page for this status.
    if status == 403 && body.starts_with("not permitted") {
        return Problem::NotPermitted { method, body };
    }
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

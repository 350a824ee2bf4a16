//! Connects to a host of a metadata service, and names why it cannot.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::error::Problem;

/// Limit for one connection attempt, as of stock engines.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_millis(1_500);

/// Limit for the lookup and all attempts: less than any limit for a request, so that a host with several addresses that
/// drop packets is not taken for a slow one.
const HOST_DEADLINE: Duration = Duration::from_millis(2_000);

/// Least time for an attempt after a slow lookup.
const LEAST: Duration = Duration::from_millis(500);

/// Most addresses of a host that are tried.
const ADDRESSES_LIMIT: usize = 4;

/// The addresses of a host, or why there are none.
pub type Addresses = Result<Vec<IpAddr>, String>;

/// Looks up a host of the service.
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

/// Connects to the first address of the host that accepts. `last` is the address of the last attempt.
pub(crate) async fn connect(
    lookup: &Lookup,
    host: &str,
    port: u16,
    last: &mut Option<SocketAddr>,
) -> Result<(SocketAddr, TcpStream), Problem> {
    let end = Instant::now() + HOST_DEADLINE;
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => lookup(host.to_owned())
            .await
            .map_err(Problem::NotResolved)?,
    };
    let mut failed = Problem::NotResolved(format!("{host} has no address"));
    for address in addresses.into_iter().take(ADDRESSES_LIMIT) {
        let left = end.saturating_duration_since(Instant::now());
        if last.is_some() && left.is_zero() {
            break;
        }
        let address = SocketAddr::new(address, port);
        *last = Some(address);
        let limit = left.clamp(LEAST, CONNECT_DEADLINE);
        failed = match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok((address, stream)),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Problem::Refused,
            Ok(Err(error)) => Problem::Unreachable(Arc::new(error)),
            Err(_) => Problem::Filtered(limit),
        };
    }
    Err(failed)
}

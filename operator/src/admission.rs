//! Injection: the mutating webhook that points labelled pods at their cluster, holds their start
//! until it answers, and marks them as admitted. [`inject()`] decides; all else carries.

mod advice;
mod advisor;
mod claim;
mod configuration;
mod environment;
mod host_ports;
mod inject;
mod launch;
mod lookup;
mod patch;
mod review;
mod server;
mod sidecar;
mod target;
mod volume;
mod wish;

pub use advice::Room;
pub use advisor::Rooms;
pub use claim::Devices;
pub use environment::{FORCE_TCP, PROTOCOL};
pub use host_ports::Policies;
pub use inject::{Decision, Skipped, Surroundings, inject};
pub use lookup::{ApiServer, Clusters, LookupError};
pub use review::router;
pub use server::run as serve_tls;
pub use sidecar::NAME as GATE_CONTAINER;
pub use target::{StockTransport, Target};
pub use wish::{Unreadable, Wish};

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::certificates::{self, Keeper, Resolver, Schedule};

/// Settings of the webhook.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the operator, where the certificate's Secret stands.
    pub namespace: String,
    /// Image of the sidecar.
    pub gate_image: String,
    /// TCP port of the webhook.
    pub port: u16,
    /// Name of the MutatingWebhookConfiguration.
    pub configuration: String,
    /// Name of the Secret.
    pub secret: String,
}

/// Why the webhook does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("port {port} of the webhook cannot be listened on: {cause}")]
    Listen { port: u16, cause: std::io::Error },
    #[error(transparent)]
    Tls(#[from] certificates::TlsError),
}

/// Serves the webhook until `shutdown` resolves, at most ten seconds longer.
///
/// Every replica calls it. `leader` says whether this one writes Secret and caBundle; the others
/// wait for what it writes. `certificate` is empty until then: handshakes fail, and the replica is
/// not ready ([`Resolver::loaded`]).
///
/// # Errors
/// When the port cannot be had or TLS cannot be set up.
pub async fn serve(
    settings: Settings,
    client: Client,
    known: impl Rooms + Devices + Policies + Clone,
    certificate: Arc<Resolver>,
    leader: watch::Receiver<bool>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    let Settings {
        namespace,
        gate_image,
        port,
        configuration,
        secret,
    } = settings;
    let tls = certificates::server_config(certificate.clone())?;
    // Dual stack where the node has IPv6, IPv4 alone where it has none.
    let listener = match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port)))
            .await
            .map_err(|cause| Error::Listen { port, cause })?,
    };
    let keeper = Keeper::new(
        client.clone(),
        &namespace,
        secret,
        configuration,
        Schedule::default(),
        certificate,
    );
    let routes = router(ApiServer(client), known, gate_image);
    tokio::select! {
        () = serve_tls(listener, tls, routes, shutdown) => Ok(()),
        never = keeper.run(leader) => match never {},
    }
}

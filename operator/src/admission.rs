//! Injection: the mutating webhook that points labelled pods at their cluster, holds their start
//! until it answers, and marks them as admitted. [`inject()`] decides; all else carries.

mod advice;
mod advisor;
mod budget;
mod claim;
mod configuration;
mod default_tenant;
mod environment;
mod host_ports;
mod inject;
mod launch;
mod lookup;
mod master_defaults;
mod metadata_server;
mod patch;
mod pod_resources;
mod prefill_decode;
mod request;
mod resize;
mod review;
mod selection;
mod sidecar;
mod skipped;
mod target;
mod transport;
mod volume;

pub use advice::{Room, advise, is_used};
pub use advisor::{Rooms, rooms};
pub use claim::Devices;
pub use configuration::injected_protocol;
pub use environment::{FORCE_TCP, PROTOCOL};
pub use host_ports::Policies;
pub use inject::{Decision, InjectionContext, inject};
pub use lookup::{ApiServer, Clusters, LookupError};
pub use request::{InjectionRequest, InvalidRequest};
pub use review::router;
pub use skipped::Skipped;
pub use target::Target;
pub use transport::{StockTransport, of as transport_of};

use std::sync::Arc;

use http_server::{Limits, Resolver, TlsError};
use kube::Client;
use tokio::sync::watch;

use crate::args::RdmaClass;
use crate::certificates::{Endpoint, Keeper, Schedule};

/// API servers hold a few connections each.
const LIMITS: Limits = Limits {
    connections: 512,
    body: review::BODY_LIMIT,
};

/// Settings of the webhook.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the operator, of the certificate's Secret.
    pub namespace: String,
    /// Image of the sidecar.
    pub gate_image: String,
    /// Class of stock engines with RDMA.
    pub rdma_class: RdmaClass,
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
    #[error("cannot listen on the webhook's port {port}: {cause}")]
    Listen { port: u16, cause: std::io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Serves the webhook until `shutdown` resolves, at most ten seconds longer.
///
/// Every replica calls it. `leader`: this replica writes Secret and caBundle; the others
/// wait for what it writes. `certificate` is empty until then: handshakes fail, and the replica is
/// not ready ([`Resolver::loaded`]).
///
/// # Errors
/// Listen: the port is in use. Tls: the TLS configuration is invalid.
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
        rdma_class,
        port,
        configuration,
        secret,
    } = settings;
    let tls = http_server::server_config(certificate.clone())?;
    let listener = http_server::listen(port)
        .await
        .map_err(|cause| Error::Listen { port, cause })?;
    let keeper = Keeper::new(
        client.clone(),
        &namespace,
        secret,
        Endpoint::Webhooks(configuration, certificate),
        Schedule::default(),
    );
    let routes = router(ApiServer(client), known, gate_image, rdma_class);
    tokio::select! {
        () = http_server::serve(listener, Some(tls), routes, LIMITS, shutdown) => Ok(()),
        never = keeper.run(leader) => match never {},
    }
}

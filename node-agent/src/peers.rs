//! Probes the paths to the agents of other nodes: connect, write, read back, compare, with the transport that
//! carries data. The operator selects the pairs.
//!
//! ```text
//! MooncakeNode.spec.probes  ──> one prober for each ──> paths ──> findings, metrics
//! MooncakeNode.spec.probers ──> which agents may write into the slots
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crds::MooncakeNodeSpec;
use crds::names::{PROBE_BASE, PROBE_SLOT};
use crds::node::{PROBES_LIMIT, Probe};
use crds::policy::ProbeRates;
use engine::{Admission, Endpoint, EndpointSpec, Engine, PageSize, Region, Targets};
use sys::mem::memfd;
use tokio::sync::watch;

use crate::assignments::Assignments;
use crate::watched;

pub(crate) mod path;
mod prober;

use path::PeerPath;
use prober::Prober;

/// Pause before the listeners are opened again.
const PAUSE: Duration = Duration::from_secs(10);

/// Slots of the memory: those that other agents write, then two for each probe, to write from and to read into.
const SLOTS: u64 = 3 * PROBES_LIMIT as u64;

/// State of the paths to other nodes, by node name.
pub(crate) type PeerPaths = BTreeMap<String, PeerPath>;

/// Why this agent cannot probe.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("cannot listen on {address} for peer probes: {source}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot allocate memory for peer probes: {0}")]
    Memory(#[from] sys::mem::Error),
    #[error("cannot serve peer probes: {0}")]
    Serve(#[from] engine::Error),
}

/// Endpoint and memory of all probes.
struct LocalEnd {
    endpoint: Endpoint,
    region: Arc<Region>,
    id: engine::RegionId,
}

/// Probes the paths that the operator assigns, while there are assignments.
pub(crate) async fn keep(
    engine: Engine,
    address: SocketAddr,
    mut assigned: watch::Receiver<Assignments>,
    paths: Arc<watch::Sender<PeerPaths>>,
) {
    let local = loop {
        match open(&engine, address) {
            Ok(local) => break Arc::new(local),
            Err(error) => tracing::error!(%error, "peer probes cannot start: retrying"),
        }
        tokio::time::sleep(PAUSE).await;
    };
    let mut probers: Vec<Prober> = Vec::new();
    let (rate, period) = watch::channel(ProbeRates::default().peers());
    loop {
        let now = assigned.borrow_and_update().clone();
        let wanted = now.probe_rates().peers();
        watched::set(&rate, |rate| rate, wanted);
        let spec = now.node.map(|node| node.spec).unwrap_or_default();
        if let Err(error) = local.endpoint.admit(admission(&spec)) {
            tracing::error!(%error, "peer probes stopped");
            return;
        }
        let (kept, removed): (Vec<_>, Vec<_>) = probers
            .into_iter()
            .partition(|prober| spec.probes.contains(prober.probe()));
        probers = kept;
        // Another prober uses their memory next: wait until they have released it.
        for prober in removed {
            prober.end().await;
        }
        remove_unassigned(&paths, &spec.probes);
        for probe in spec.probes.iter().take(PROBES_LIMIT) {
            if usize::from(probe.slot) < PROBES_LIMIT
                && !probers.iter().any(|prober| prober.probe() == probe)
            {
                probers.push(Prober::start(&local, probe.clone(), period.clone(), &paths));
            }
        }
        if assigned.changed().await.is_err() {
            return;
        }
    }
}

/// Removes the paths that are no longer assigned.
fn remove_unassigned(paths: &watch::Sender<PeerPaths>, probes: &[Probe]) {
    paths.send_if_modified(|paths| {
        let before = paths.len();
        paths.retain(|_, path| probes.contains(&path.probe));
        paths.len() != before
    });
}

fn admission(spec: &MooncakeNodeSpec) -> Admission {
    let addresses = spec.probers.iter();
    Admission::only(addresses.filter_map(|prober| prober.address.parse::<IpAddr>().ok()))
}

/// Listens on `address` and the port after it, and allocates the memory.
fn open(engine: &Engine, address: SocketAddr) -> Result<LocalEnd, OpenError> {
    let listen = |port| {
        let address = SocketAddr::new(address.ip(), port);
        TcpListener::bind(address).map_err(|source| OpenError::Listen { address, source })
    };
    let data_port = address.port().wrapping_add(1);
    let length = SLOTS * PROBE_SLOT;
    let page = PageSize::Base;
    let region = Region::map(
        memfd::create("mooncake-peer-probes", length, page)?,
        length,
        page,
    )?;
    let region = Arc::new(region);
    let endpoint = engine.endpoint(EndpointSpec {
        name: address.to_string(),
        data_port,
        data_host: address.ip().to_string(),
        handshake: listen(address.port())?,
        data: listen(data_port)?,
        network: None,
        admission: Admission::only([]),
        // The operator assigns the peers. Those that this agent probes need not be those that probe it.
        targets: Targets::Anyone,
        metadata: None,
    })?;
    let id = endpoint.add_region(Arc::clone(&region), PROBE_BASE)?;
    Ok(LocalEnd {
        endpoint,
        region,
        id,
    })
}

#[cfg(test)]
mod tests;

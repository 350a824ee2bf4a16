//! Proofs that the agents of other nodes can be reached: connect, write, read back, compare, along the
//! path that bytes take. Whom to prove the way to, and who may prove the way to us, the operator says.
//!
//! ```text
//! MooncakeNode.spec.probes  ──> one prober for each ──> ways ──> findings, metrics
//! MooncakeNode.spec.probers ──> who may write into our slots
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
use engine::{Admission, Engine, Host, HostSpec, PageSize, Region};
use sys::mem::memfd;
use tokio::sync::watch;

use super::assignments::Assignments;

mod prober;
pub(crate) mod way;

use prober::Prober;
use way::Way;

/// Before the listeners are tried again.
const PAUSE: Duration = Duration::from_secs(10);

/// Slots in our memory: those that others write, then one to write from and one to read into for each
/// that we prove the way to.
const SLOTS: u64 = 3 * PROBES_LIMIT as u64;

/// How the ways to other nodes stand, by the node's name.
pub(crate) type Ways = BTreeMap<String, Way>;

/// Why nothing can be proved.
#[derive(Debug, thiserror::Error)]
enum Unable {
    #[error("listening on {address} for proofs of other agents: {source}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("memory for proofs: {0}")]
    Memory(#[from] sys::mem::Error),
    #[error("serving proofs of other agents: {0}")]
    Serve(#[from] engine::Error),
}

/// Our end of all ways.
struct Post {
    host: Host,
    region: Arc<Region>,
    id: engine::RegionId,
}

/// Proves the ways that the operator names, for as long as it names any.
pub(crate) async fn keep(
    engine: Engine,
    address: SocketAddr,
    mut assigned: watch::Receiver<Assignments>,
    ways: Arc<watch::Sender<Ways>>,
) {
    let post = loop {
        match open(&engine, address) {
            Ok(post) => break Arc::new(post),
            Err(error) => tracing::error!(%error, "ways to other nodes are not proved"),
        }
        tokio::time::sleep(PAUSE).await;
    };
    let mut probers: Vec<Prober> = Vec::new();
    let (pace, period) = watch::channel(ProbeRates::default().peers());
    loop {
        let now = assigned.borrow_and_update().clone();
        let wanted = now.probe_rates().peers();
        pace.send_if_modified(|pace| std::mem::replace(pace, wanted) != wanted);
        let spec = now.node.map(|node| node.spec).unwrap_or_default();
        if let Err(error) = post.host.admit(admission(&spec)) {
            tracing::error!(%error, "ways to other nodes are not proved any more");
            return;
        }
        let (stay, go): (Vec<_>, Vec<_>) = probers
            .into_iter()
            .partition(|prober| spec.probes.contains(prober.probe()));
        probers = stay;
        // Their memory is somebody else's next: they have let go of it when they have ended.
        for prober in go {
            prober.end().await;
        }
        forget(&ways, &spec.probes);
        for probe in spec.probes.iter().take(PROBES_LIMIT) {
            if usize::from(probe.slot) < PROBES_LIMIT
                && !probers.iter().any(|prober| prober.probe() == probe)
            {
                probers.push(Prober::start(&post, probe.clone(), period.clone(), &ways));
            }
        }
        if assigned.changed().await.is_err() {
            return;
        }
    }
}

/// Drops the ways that nobody is to prove any more.
fn forget(ways: &watch::Sender<Ways>, probes: &[Probe]) {
    ways.send_if_modified(|ways| {
        let before = ways.len();
        ways.retain(|_, way| probes.contains(&way.probe));
        ways.len() != before
    });
}

fn admission(spec: &MooncakeNodeSpec) -> Admission {
    let addresses = spec.probers.iter();
    Admission::only(addresses.filter_map(|prober| prober.address.parse::<IpAddr>().ok()))
}

/// Listens on `address` and the port after it, and has the memory ready.
fn open(engine: &Engine, address: SocketAddr) -> Result<Post, Unable> {
    let listen = |port| {
        let address = SocketAddr::new(address.ip(), port);
        TcpListener::bind(address).map_err(|source| Unable::Listen { address, source })
    };
    let data_port = address.port().wrapping_add(1);
    let length = SLOTS * PROBE_SLOT;
    let page = PageSize::Base;
    let region = Region::map(
        memfd::create("mooncake-proofs", length, page)?,
        length,
        page,
    )?;
    let region = Arc::new(region);
    let host = engine.host(HostSpec {
        name: address.to_string(),
        data_port,
        data_host: address.ip().to_string(),
        handshake: listen(address.port())?,
        data: listen(data_port)?,
        network: None,
        admission: Admission::only([]),
    })?;
    let id = host.add_region(Arc::clone(&region), PROBE_BASE)?;
    Ok(Post { host, region, id })
}

#[cfg(test)]
mod tests;

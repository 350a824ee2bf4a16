//! A segment of this engine, in this process, mounted in the stock master as by an agent.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use engine::{
    Admission, Endpoint, EndpointSpec, EndpointStats, Engine, PageSize, Region, Settings, Targets,
};
use store::wire::MemoryReplica;
use store::{MoveError, Mover, Origin, Session, State, Uuid};
use tokio::net::TcpStream;

pub(crate) const NAME: &str = "bench.ours";

/// Above all mappings, as chosen by an agent.
const WIRE_BASE: u64 = 1 << 58;

pub(crate) struct Segment {
    endpoint: Endpoint,
    _session: Session,
    _engine: Engine,
}

impl Segment {
    pub(crate) async fn mount(
        master: &str,
        bytes: u64,
        deadline: Duration,
    ) -> anyhow::Result<Self> {
        let engine = Engine::start(Settings::default())?;
        let [handshake, data] = [
            TcpListener::bind("127.0.0.1:0")?,
            TcpListener::bind("127.0.0.1:0")?,
        ];
        let name = handshake.local_addr()?.to_string();
        let endpoint = engine.endpoint(EndpointSpec {
            name: name.clone(),
            data_port: data.local_addr()?.port(),
            data_host: "127.0.0.1".to_owned(),
            handshake,
            data,
            network: None,
            admission: Admission::Anyone,
            targets: Targets::Anyone,
            metadata: None,
        })?;
        let memory = sys::mem::memfd::create("bench", bytes, PageSize::Base)?;
        let region = Region::map(memory, bytes, PageSize::Base)?;
        region.populate(0, bytes)?;
        endpoint.add_region(Arc::new(region), WIRE_BASE)?;

        let address: Arc<str> = master.into();
        let connect = move || {
            let address = Arc::clone(&address);
            async move { TcpStream::connect(&*address).await }
        };
        let segment = store::wire::Segment {
            id: uuid()?,
            name: NAME.to_owned(),
            base: WIRE_BASE,
            size: bytes,
            te_endpoint: name,
            protocol: "tcp".to_owned(),
            host_id: String::new(),
        };
        let settings = store::Settings::default();
        let session = Session::start(
            settings,
            uuid()?,
            Origin::Fresh {
                segments: vec![segment],
                former: Vec::new(),
            },
            master,
            connect,
            Arc::new(NoTasks),
            None,
        );
        let mut state = session.state();
        let mounted = state.wait_for(|state| matches!(state, State::Mounted { .. }));
        tokio::time::timeout(deadline, mounted)
            .await
            .context("not mounted in time")??;
        Ok(Self {
            endpoint,
            _session: session,
            _engine: engine,
        })
    }

    pub(crate) fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }
}

fn uuid() -> anyhow::Result<Uuid> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(Uuid::from_random(bytes))
}

/// A benchmark has no copy tasks.
struct NoTasks;

impl Mover for NoTasks {
    async fn move_bytes(
        &self,
        source: &MemoryReplica,
        _: &MemoryReplica,
        _: u64,
        _: tokio::time::Instant,
    ) -> Result<(), MoveError> {
        let cause = format!(
            "the benchmark copies nothing (requested by {})",
            source.endpoint
        );
        Err(MoveError::Failed(cause.into()))
    }
}

//! A simulated storing node: a session, segments without memory, and a mover that only records its calls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mooncake_store::wire::{
    GetReplicaList, Location, MemoryReplica, ObjectMeta, PutEnd, PutStart, ReplicaType,
    ReplicateConfig, Segment,
};
use mooncake_store::{
    Error, Master, MoveError, Mover, Origin, Session, Settings, State, Uuid, random_id,
};
use tokio::time::{Instant, timeout};

use crate::master::{RPC, StockMaster, TIMEOUT};

pub(crate) const SEGMENT_BYTES: u64 = 64 << 20;
/// Above all mappings of a process, as chosen by an agent.
pub(crate) const FIRST_BASE: u64 = 1 << 58;

/// A segment of one epoch; every epoch has its own id and base.
pub(crate) fn segment(name: &str, epoch: u64) -> Segment {
    Segment {
        id: random_id().unwrap(),
        name: name.into(),
        base: FIRST_BASE + (epoch << 30),
        size: SEGMENT_BYTES,
        te_endpoint: format!("{name}.example:12001"),
        protocol: "tcp".into(),
        host_id: String::new(),
    }
}

/// Records its calls, and returns the configured outcome.
#[derive(Default)]
pub(crate) struct FakeMover {
    pub(crate) moved: Mutex<Vec<(MemoryReplica, MemoryReplica, u64)>>,
    pub(crate) outcome: Outcome,
    /// Moves that were cut.
    pub(crate) cut: AtomicUsize,
}

struct CountCut<'a>(&'a AtomicUsize);

impl Drop for CountCut<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Default, Clone, Copy)]
pub(crate) enum Outcome {
    #[default]
    Moved,
    Failed,
    Indeterminate,
    /// Until it is cut.
    Endless,
}

impl Mover for FakeMover {
    async fn move_bytes(
        &self,
        source: &MemoryReplica,
        target: &MemoryReplica,
        length: u64,
        _deadline: Instant,
    ) -> Result<(), MoveError> {
        self.moved
            .lock()
            .unwrap()
            .push((source.clone(), target.clone(), length));
        match self.outcome {
            Outcome::Moved => Ok(()),
            Outcome::Failed => Err(MoveError::Failed("the cable is cut".into())),
            Outcome::Indeterminate => Err(MoveError::Indeterminate("the peer is silent".into())),
            Outcome::Endless => {
                let _cut = CountCut(&self.cut);
                std::future::pending().await
            }
        }
    }
}

pub(crate) fn fresh(segments: Vec<Segment>) -> Origin {
    Origin::Fresh {
        segments,
        former: Vec::new(),
    }
}

pub(crate) fn take_over(segments: Vec<Segment>) -> Origin {
    Origin::TakeOver {
        segments,
        former: Vec::new(),
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        call_timeout: Duration::from_secs(2),
        ..Settings::default()
    }
}

pub(crate) fn start(stock: &StockMaster, client: Uuid, origin: Origin) -> Session {
    Session::start(
        settings(),
        client,
        origin,
        RPC.to_string(),
        stock.connector(),
        Arc::new(FakeMover::default()),
        None,
    )
}

/// Waits for a state that `pick` accepts.
pub(crate) async fn reach<T>(session: &Session, mut pick: impl FnMut(&State) -> Option<T>) -> T {
    let mut state = session.state();
    let reached = async {
        loop {
            if let Some(found) = pick(&state.borrow_and_update()) {
                return found;
            }
            state.changed().await.expect("the session runs");
        }
    };
    let result = timeout(TIMEOUT, reached).await;
    result.unwrap_or_else(|_| {
        panic!(
            "state not reached; the session is {}",
            *session.state().borrow()
        )
    })
}

/// Waits until exactly these are mounted.
pub(crate) async fn reach_mounted(session: &Session, segments: &[Segment]) {
    let expected = segments.iter().map(|segment| segment.id).collect();
    reach(session, |state| {
        matches!(state, State::Mounted { mounted, .. } if *mounted == expected).then_some(())
    })
    .await;
}

/// Waits for the loss of an epoch and returns its number.
pub(crate) async fn reach_loss(session: &Session) -> u64 {
    reach(session, |state| match state {
        State::EpochLost { epoch, .. } => Some(*epoch),
        _ => None,
    })
    .await
}

/// Puts an object without bytes, into the named segment if one is given.
pub(crate) async fn put(
    master: &Master,
    key: &str,
    bytes: u64,
    into: Option<&str>,
) -> Result<MemoryReplica, Error> {
    let writer = random_id().unwrap();
    let placement = ReplicateConfig {
        preferred_segments: into.into_iter().map(String::from).collect(),
        ..ReplicateConfig::default()
    };
    let tenant = String::from("default");
    let start = (writer, key.into(), bytes, placement, tenant.clone());
    let mut replicas = master.call::<PutStart>(&start).await?;
    let object = ObjectMeta {
        key: key.into(),
        object_checksum: None,
    };
    master
        .call::<PutEnd>(&(writer, object, ReplicaType::All, tenant))
        .await?;
    Ok(in_memory(replicas.pop().unwrap().location))
}

/// Returns the replicas of an object.
pub(crate) async fn replicas(master: &Master, key: &str) -> Result<Vec<MemoryReplica>, Error> {
    let found = master
        .call::<GetReplicaList>(&(key.into(), "default".into()))
        .await?;
    Ok(found
        .replicas
        .into_iter()
        .map(|replica| in_memory(replica.location))
        .collect())
}

fn in_memory(location: Location) -> MemoryReplica {
    match location {
        Location::Memory(memory) => memory,
        other => panic!("not in memory: {other:?}"),
    }
}

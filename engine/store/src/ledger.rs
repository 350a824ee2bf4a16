//! The owner's part of the ledger: delivers the records of its segments to a master of ours that does not have them, and
//! writes the changes that it fetches from there.

mod cells;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::store::ledger::{
    Changes, ENOUGH_BYTES, Entry, LedgerLoad, LedgerMount, LedgerPoll, MOST_ENTRIES, Position, SIGN,
};
use proto::store::release_0_3_13::Segment;
use proto::store::{ErrorCode, Uuid};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::master::{Error, MOST_LEDGER_BYTES, Master};
use crate::session::{Settings, State};
pub use cells::{Cells, CellsError, Memory};

/// The ledger of a pool. Its records outlive this process.
pub struct Ledger(Mutex<Inner>);

struct Inner {
    cells: Cells<Box<dyn Memory>>,
    /// The extent of each segment of the current epoch.
    extents: HashMap<Uuid, u16>,
    /// Objects that did not fit, since this process began.
    unrecorded: u64,
    /// The last master was one of ours; `None` before the first one.
    is_used: Option<bool>,
}

impl Ledger {
    /// Opens the memory of a ledger. Earlier processes cannot write it any more.
    ///
    /// # Errors
    /// See [`Cells::open`].
    pub fn open(memory: impl Memory + 'static) -> Result<Self, CellsError> {
        let memory: Box<dyn Memory> = Box::new(memory);
        let cells = Cells::open(memory)?;
        if cells.corrupt() > 0 {
            tracing::error!(
                records = cells.corrupt(),
                "corrupt records of the ledger were removed: their keys are lost"
            );
        }
        Ok(Self(Mutex::new(Inner {
            cells,
            extents: HashMap::new(),
            unrecorded: 0,
            is_used: None,
        })))
    }

    /// Sets the segments of an epoch, in the order of the pool's extents.
    pub fn bind(&self, segments: impl IntoIterator<Item = Uuid>) {
        self.0.lock().extents = segments.into_iter().zip(0..).collect();
    }

    /// Returns the number of records.
    #[must_use]
    pub fn records(&self) -> usize {
        self.0.lock().cells.len()
    }

    /// Returns whether the master keeps its keys here; `None` before the first answer of a master.
    #[must_use]
    pub fn is_used(&self) -> Option<bool> {
        self.0.lock().is_used
    }

    fn set_used(&self, is_used: bool) {
        self.0.lock().is_used = Some(is_used);
    }

    /// Removes all records: another master is about to change the memory without them.
    fn clear(&self) {
        let mut inner = self.0.lock();
        inner.is_used = Some(false);
        let records = inner.cells.len();
        if records == 0 {
            return;
        }
        match inner.cells.clear_all() {
            Ok(()) => tracing::info!(records, "the ledger is cleared for a stock master"),
            Err(error) => tracing::error!(%error, "the ledger cannot be cleared"),
        }
    }

    fn extent(&self, segment: Uuid) -> Option<u16> {
        self.0.lock().extents.get(&segment).copied()
    }

    /// Reads the next records of an extent: as many as one message takes.
    fn part(&self, extent: u16, offsets: &mut Vec<u64>) -> Result<Vec<Entry>, CellsError> {
        let inner = self.0.lock();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < MOST_ENTRIES
            && bytes < ENOUGH_BYTES
            && let Some(offset) = offsets.pop()
        {
            if let Some(entry) = inner.cells.read(extent, offset)? {
                bytes += entry.stored.as_ref().map_or(0, |stored| stored.key.len());
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Writes changes of one segment. An object without space is counted, and lost with the next restart of the master.
    /// Returns false for a segment of another epoch.
    fn write(&self, changes: &Changes) -> Result<bool, CellsError> {
        let mut inner = self.0.lock();
        let Some(extent) = inner.extents.get(&changes.segment).copied() else {
            return Ok(false);
        };
        for entry in &changes.entries {
            match inner.cells.apply(extent, entry) {
                Ok(()) => {}
                Err(error @ CellsError::Superseded) => return Err(error),
                // A removal must not be confirmed before it is written.
                Err(error) if entry.stored.is_none() => return Err(error),
                Err(error) => {
                    if inner.unrecorded.is_power_of_two() || inner.unrecorded == 0 {
                        tracing::warn!(
                            %error,
                            before = inner.unrecorded,
                            "an object is not in the ledger: the next restart of the master loses it"
                        );
                    }
                    inner.unrecorded += 1;
                }
            }
        }
        Ok(true)
    }
}

/// Mounts segments with their records in a master of ours. A stock master changes the memory without records, so the
/// ledger is cleared.
pub(crate) async fn prepare(
    master: &Master,
    client: Uuid,
    segments: &[Segment],
    ledger: Option<&Ledger>,
) -> Result<(), Error> {
    let Some(ledger) = ledger else {
        return Ok(());
    };
    if !is_supported(master).await? {
        ledger.clear();
        return Ok(());
    }
    ledger.set_used(true);
    for segment in segments {
        deliver(master, client, segment, ledger).await?;
    }
    Ok(())
}

/// Returns whether the master keeps ledgers.
async fn is_supported(master: &Master) -> Result<bool, Error> {
    match master.query_segment_status(SIGN).await {
        Ok(_) => Ok(true),
        Err(error) if error.refusal() == Some(ErrorCode::SegmentNotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Mounts a segment together with the records of its extent.
async fn deliver(
    master: &Master,
    client: Uuid,
    segment: &Segment,
    ledger: &Ledger,
) -> Result<(), Error> {
    let Some(extent) = ledger.extent(segment.id) else {
        return Ok(());
    };
    let highest = ledger.0.lock().cells.highest_epoch();
    let mount = (client, segment.clone(), highest);
    if master.call::<LedgerMount>(&mount).await? {
        return Ok(());
    }
    let mut offsets = ledger.0.lock().cells.offsets(extent);
    let mut sent = 0;
    loop {
        let entries = ledger.part(extent, &mut offsets).unwrap_or_else(|error| {
            tracing::error!(%error, segment = %segment.id, "records cannot be read: their keys are lost");
            Vec::new()
        });
        let (count, last) = (entries.len() as u64, offsets.is_empty());
        let part = (client, segment.id, sent, entries, last);
        master.call::<LedgerLoad>(&part).await?;
        sent += count;
        if last {
            tracing::info!(%client, segment = %segment.id, records = sent, "the master has the ledger");
            return Ok(());
        }
    }
}

/// Fetches changes over a connection of its own, while the segments are mounted.
pub(crate) struct Follower {
    pub(crate) settings: Settings,
    pub(crate) client: Uuid,
    pub(crate) peer: Arc<str>,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) ledger: Arc<Ledger>,
}

impl Follower {
    /// Runs until the session ends, or another process writes the ledger.
    pub(crate) async fn run<C, F>(mut self, connect: Arc<C>)
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<TcpStream>> + Send + 'static,
    {
        let mut pause = self.settings.backoff_least;
        loop {
            if self.segments().is_empty() {
                if self.state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let connecting = timeout(self.settings.connect_timeout, connect()).await;
            if let Ok(Ok(stream)) = connecting {
                let master = Master::connect(stream, self.peer.to_string())
                    .with_call_timeout(self.settings.call_timeout);
                match self.follow(&master, &mut pause).await {
                    Ok(()) => {}
                    Err(Stopped::Unsupported) => {
                        // A stock master: another one comes with a change of the state.
                        if self.state.changed().await.is_err() {
                            return;
                        }
                    }
                    Err(Stopped::Call(error)) => {
                        tracing::debug!(client = %self.client, %error, "changes of keys cannot be fetched");
                    }
                    Err(Stopped::Ledger(error @ CellsError::Superseded)) => {
                        tracing::warn!(client = %self.client, %error);
                        return;
                    }
                    Err(Stopped::Ledger(error)) => {
                        tracing::error!(client = %self.client, %error, "a removal cannot be written to the ledger");
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(self.settings.backoff_most);
        }
    }

    /// Returns the mounted segments that have a ledger.
    fn segments(&mut self) -> Vec<Uuid> {
        match &*self.state.borrow_and_update() {
            State::Mounted { mounted, .. } => {
                let extents = &self.ledger.0.lock().extents;
                let bound = mounted.iter().filter(|id| extents.contains_key(id));
                bound.copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Fetches and writes changes until the segments are no longer mounted.
    async fn follow(&mut self, master: &Master, pause: &mut Duration) -> Result<(), Stopped> {
        if !is_supported(master).await? {
            self.ledger.clear();
            return Err(Stopped::Unsupported);
        }
        self.ledger.set_used(true);
        // The master knows how far this client has come. A predecessor may have applied more; that does no harm.
        let mut applied: HashMap<Uuid, u64> = HashMap::new();
        loop {
            let segments = self.segments();
            if segments.is_empty() {
                return Ok(());
            }
            let unrecorded = self.ledger.0.lock().unrecorded;
            let position = |(number, segment)| Position {
                segment,
                applied: applied.get(&segment).copied().unwrap_or(0),
                // One count for all segments of the pool.
                unrecorded: if number == 0 { unrecorded } else { 0 },
            };
            let positions = segments.into_iter().enumerate().map(position).collect();
            let poll = (self.client, positions);
            let fetched = master.call_within::<LedgerPoll>(&poll, MOST_LEDGER_BYTES);
            let fetched = fetched.await?;
            for changes in &fetched {
                if !self.ledger.write(changes)? {
                    continue;
                }
                let last = changes.first + changes.entries.len() as u64;
                applied.insert(changes.segment, last.saturating_sub(1));
            }
            *pause = self.settings.backoff_least;
        }
    }
}

/// Why fetching has stopped.
enum Stopped {
    Unsupported,
    Call(Error),
    Ledger(CellsError),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

impl From<CellsError> for Stopped {
    fn from(error: CellsError) -> Self {
        Self::Ledger(error)
    }
}

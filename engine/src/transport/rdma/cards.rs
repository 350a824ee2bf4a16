//! The devices of an engine. Each region is registered with all of them, so that peers reach it over any.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use sys::mem::Region;
use sys::verbs::MemoryRegion;

use super::card::{Card, Withdrawn};
use super::lanes::Lanes;
use super::worker::CardError;
use crate::transport::RegionId;

/// The devices of an engine, in the order in which they are published. None: it serves peers over TCP.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cards(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cards: Box<[Arc<Card>]>,
    /// Names of the devices that are not published: peers may not reach them.
    withheld: Mutex<BTreeSet<String>>,
    lanes: Lanes,
}

impl From<&[Arc<Card>]> for Cards {
    fn from(cards: &[Arc<Card>]) -> Self {
        Self(Arc::new(Inner {
            cards: cards.into(),
            withheld: Mutex::default(),
            lanes: Lanes::default(),
        }))
    }
}

impl Cards {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.cards.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.0.cards.iter()
    }

    /// Returns the numbers of the links over these devices.
    pub(super) fn lanes(&self) -> &Lanes {
        &self.0.lanes
    }

    /// Resolves when a device does not finish a call that ends an access; never without devices.
    pub(crate) async fn hung(&self) -> CardError {
        let calls = self.iter().map(|card| Box::pin(card.hung()));
        match calls.collect::<FuturesUnordered<_>>().next().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    /// Sets which devices are not published.
    pub(crate) fn withhold(&self, devices: BTreeSet<String>) {
        *self.0.withheld.lock() = devices;
    }

    /// Returns the devices that are published: all if none would be.
    pub(crate) fn published(&self) -> Vec<&Arc<Card>> {
        let withheld = self.0.withheld.lock();
        let published = |card: &&Arc<Card>| !withheld.contains(card.device());
        if self.iter().any(|card| published(&card)) {
            self.iter().filter(published).collect()
        } else {
            self.iter().collect()
        }
    }

    /// Returns the device of a data thread; `None` without devices.
    pub(crate) fn of_thread(&self, thread: usize) -> Option<&Arc<Card>> {
        let at = thread.checked_rem(self.0.cards.len())?;
        self.0.cards.get(at)
    }

    /// Registers a region with all devices, one after the other. Blocks while they pin its pages. After an error none has
    /// it.
    ///
    /// # Errors
    /// As [`Card::register`].
    pub(crate) fn register(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
    ) -> Result<(), CardError> {
        for (at, card) in self.iter().enumerate() {
            if let Err(error) = card.register(region, memory, base) {
                self.iter()
                    .take(at)
                    .for_each(|card| card.forget(region, base));
                return Err(error);
            }
        }
        Ok(())
    }

    /// As [`Self::register`], in tokio and with all devices at once.
    ///
    /// # Errors
    /// As [`Card::register`].
    pub(crate) async fn register_in_tokio(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
    ) -> Result<(), CardError> {
        let calls = self
            .iter()
            .map(|card| card.register_in_tokio(region, memory, base));
        let results = futures::future::join_all(calls).await;
        if results.iter().any(Result::is_err) {
            let with = self.iter().zip(&results).filter(|(_, made)| made.is_ok());
            with.for_each(|(card, _)| card.forget(region, base));
        }
        results.into_iter().collect()
    }

    /// Ends the registrations of a region that no data thread has got.
    pub(crate) fn forget(&self, region: RegionId, base: u64) {
        self.iter().for_each(|card| card.forget(region, base));
    }

    /// Returns the registrations for one data thread, which returns them by [`Self::give_back`]; `None` unless all devices
    /// have the region.
    pub(super) fn memories(&self, region: RegionId, base: u64) -> Option<Vec<Arc<MemoryRegion>>> {
        self.iter().map(|card| card.memory(region, base)).collect()
    }

    /// As [`Card::give_back`]: `withdrawn` is called when all devices have confirmed.
    pub(super) fn give_back(
        &self,
        region: RegionId,
        base: u64,
        memories: Vec<Arc<MemoryRegion>>,
        withdrawn: Withdrawn,
    ) {
        let left = Arc::new(AtomicUsize::new(memories.len()));
        let withdrawn = Arc::new(Mutex::new(Some(withdrawn)));
        for (card, memory) in self.iter().zip(memories) {
            let (left, withdrawn) = (Arc::clone(&left), Arc::clone(&withdrawn));
            let confirmed = Box::new(move || {
                if left.fetch_sub(1, Ordering::AcqRel) == 1
                    && let Some(withdrawn) = withdrawn.lock().take()
                {
                    withdrawn();
                }
            });
            card.give_back(region, base, memory, confirmed);
        }
    }
}

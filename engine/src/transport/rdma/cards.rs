//! The devices of an engine. Each region is registered with all of them, so that peers reach it over any. A device that
//! does not register is left out while others do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use sys::mem::Region;
use sys::verbs::MemoryRegion;

use super::card::{Card, Withdrawn};
use super::lanes::Lanes;
use super::link::PAIRS;
use super::worker::CardError;
use crate::outstanding::Fitness;
use crate::transport::RegionId;

/// Most queue pairs to one peer, if there are at most 8 devices. A device has memory for each, and nodes with many
/// processors have several data threads for each device.
const PAIRS_PER_PEER: usize = 16;

/// The devices of an engine, in the order in which they are published. None: it serves peers over TCP.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cards(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cards: Box<[Arc<Card>]>,
    /// Names of the devices that are not published: peers may not reach them.
    withheld: Mutex<BTreeSet<String>>,
    lanes: Lanes,
    /// The device of each data thread.
    assigned: Mutex<Vec<Arc<Card>>>,
}

/// The end of an attempt to register a region with which no device can serve it.
struct Unsettled<'a> {
    /// Devices that have registered it in vain.
    made: Vec<&'a Arc<Card>>,
    error: CardError,
}

/// Returns the error of a device that may access memory for as long as this process runs, whichever came first; the first one without such a device.
fn worst(first: CardError, mut others: impl Iterator<Item = CardError>) -> CardError {
    let refused = |error: &CardError| matches!(error, CardError::Refused { .. });
    match refused(&first) {
        true => first,
        false => others.find(refused).unwrap_or(first),
    }
}

impl From<&[Arc<Card>]> for Cards {
    fn from(cards: &[Arc<Card>]) -> Self {
        Self(Arc::new(Inner {
            cards: cards.into(),
            withheld: Mutex::default(),
            lanes: Lanes::default(),
            assigned: Mutex::default(),
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

    /// Returns the devices that do not work any more in this process, and why.
    pub(crate) fn lost(&self) -> BTreeMap<String, String> {
        let lost = self
            .iter()
            .map(|card| Some((card.device().to_owned(), card.lost()?)));
        lost.flatten().collect()
    }

    /// Returns the devices that are published with regions at their wire bases: those with keys of all that are neither
    /// withheld nor lost, or all of them if each is.
    pub(crate) fn published(&self, regions: &[(RegionId, u64)]) -> Vec<&Arc<Card>> {
        let withheld = self.0.withheld.lock();
        let serving = self.iter().filter(|card| card.has_all(regions));
        let (not, published): (Vec<_>, Vec<_>) =
            serving.partition(|card| withheld.contains(card.device()) || card.lost().is_some());
        if published.is_empty() { not } else { published }
    }

    /// Returns why devices have no key of some of the regions.
    pub(crate) fn left_out(&self, regions: &[(RegionId, u64)]) -> Vec<String> {
        let lacking = self.iter().filter(|card| !card.has_all(regions));
        lacking.filter_map(|card| card.failure()).collect()
    }

    /// Returns how well a data thread can transfer bytes of a region.
    pub(crate) fn fitness(&self, thread: usize, region: RegionId) -> Fitness {
        let assigned = self.0.assigned.lock();
        let Some(card) = assigned.get(thread) else {
            return Fitness::Good;
        };
        if !card.has(region) {
            Fitness::Unable
        } else if card.is_hung()
            || card.lost().is_some()
            || self.0.withheld.lock().contains(card.device())
        {
            Fitness::Poor
        } else {
            Fitness::Good
        }
    }

    /// Returns how many data threads may have links to one peer, so that it has 16 queue pairs at most, or 2 over each device if
    /// that is more. Threads next to each other have each device equally often.
    pub(crate) fn threads_per_peer(&self) -> usize {
        match self.0.cards.len() {
            0 => usize::MAX,
            devices => devices * (PAIRS_PER_PEER / PAIRS / devices).max(1),
        }
    }

    /// Returns all devices, first the one that a data thread is to use.
    pub(crate) fn for_thread(&self, thread: usize) -> impl Iterator<Item = &Arc<Card>> {
        let first = thread.checked_rem(self.0.cards.len()).unwrap_or(0);
        let (before, after) = self.0.cards.split_at(first);
        after.iter().chain(before)
    }

    /// Sets the device of the next data thread.
    pub(crate) fn assign(&self, card: &Arc<Card>) {
        self.0.assigned.lock().push(Arc::clone(card));
    }

    /// Registers a region with all devices, one after the other. Blocks while they pin its pages. A device that does not
    /// register it is left out, if another one has this region and all those that are served `beside` it.
    ///
    /// # Errors
    /// As [`Card::register`], of the first device that has failed, or of one that has refused to end an access, after which none
    /// has the region.
    pub(crate) fn register(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
        beside: &[(RegionId, u64)],
    ) -> Result<(), CardError> {
        let calls = self.iter().map(|card| card.register(region, memory, base));
        let results = calls.collect();
        self.settle(beside, results).map_err(|unsettled| {
            for card in unsettled.made {
                card.forget(region, base);
            }
            unsettled.error
        })
    }

    /// As [`Self::register`], in tokio and at once with all devices that do not have the region at this wire base. After an
    /// attempt that has failed, such a device can be the only one that has the others.
    ///
    /// # Errors
    /// As [`Self::register`]. Registrations of earlier attempts stay. A device that has not confirmed the end of the registration
    /// that it has just made may access the memory.
    pub(crate) async fn register_in_tokio(
        &self,
        region: RegionId,
        memory: &Arc<Region>,
        base: u64,
        beside: &[(RegionId, u64)],
    ) -> Result<(), CardError> {
        let calls = self.iter().map(|card| async move {
            if card.has_all(&[(region, base)]) {
                return Ok(());
            }
            card.register_in_tokio(region, memory, base).await
        });
        let results = futures::future::join_all(calls).await;
        let Unsettled { made, error } = match self.settle(beside, results) {
            Ok(()) => return Ok(()),
            Err(unsettled) => unsettled,
        };
        let forgotten = made.iter().map(|card| card.forget_in_tokio(region, base));
        let forgotten = futures::future::join_all(forgotten).await;
        Err(worst(error, forgotten.into_iter().filter_map(Result::err)))
    }

    /// Decides whether devices can serve a region after each has tried to register it, and keeps and logs why some cannot.
    fn settle(
        &self,
        beside: &[(RegionId, u64)],
        results: Vec<Result<(), CardError>>,
    ) -> Result<(), Unsettled<'_>> {
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for (card, result) in self.iter().zip(results) {
            match result {
                Ok(()) => {
                    if card.has_all(beside) {
                        card.set_failure(None);
                    }
                    made.push(card);
                }
                Err(error) => {
                    card.set_failure(Some(&error));
                    failed.push((card, error));
                }
            }
        }
        // Peers take all keys of a descriptor from each of its devices.
        let serves = made.iter().any(|card| card.has_all(beside));
        if serves {
            for (_, error) in failed.iter().filter(|(card, _)| card.has_news()) {
                tracing::warn!(
                    %error,
                    "the pool is served without this RDMA device until it has registered all memory, in another attempt or a new data epoch"
                );
            }
            return Ok(());
        }
        // Of an earlier attempt there is none: a region that it has published is with a device that has all.
        let mut errors = failed.into_iter().map(|(_, error)| error);
        match errors.next() {
            Some(first) => Err(Unsettled {
                made,
                error: worst(first, errors),
            }),
            None => Ok(()),
        }
    }

    /// Ends the registrations of a region that no data thread has got.
    pub(crate) fn forget(&self, region: RegionId, base: u64) {
        for card in self.iter() {
            card.forget(region, base);
        }
    }

    /// Fails if a device does not end earlier accesses.
    pub(crate) fn check(&self) -> Result<(), CardError> {
        self.iter().try_for_each(|card| card.check())
    }

    /// Returns the registrations for one data thread, which returns them by [`Self::give_back`]; none if no device has
    /// the region.
    pub(super) fn memories(
        &self,
        region: RegionId,
        base: u64,
    ) -> Vec<(Arc<Card>, Arc<MemoryRegion>)> {
        let held = |card: &Arc<Card>| Some((Arc::clone(card), card.memory(region, base)?));
        self.iter().filter_map(held).collect()
    }

    /// As [`Card::give_back`]: `withdrawn` is called when all devices have confirmed.
    pub(super) fn give_back(
        region: RegionId,
        base: u64,
        memories: Vec<(Arc<Card>, Arc<MemoryRegion>)>,
        withdrawn: Withdrawn,
    ) {
        if memories.is_empty() {
            return withdrawn();
        }
        let left = Arc::new(AtomicUsize::new(memories.len()));
        let withdrawn = Arc::new(Mutex::new(Some(withdrawn)));
        for (card, memory) in memories {
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

//! The registration of a pool's memory before peers over RDMA are served: the devices pin its pages, for seconds to minutes. It has a
//! task of its own, so that master, pool process and agent get their heartbeats, and peers over TCP are served, meanwhile, and
//! also after a failure, until another attempt. Over TCP alone it ends at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::{Endpoint, Error, RegionId};
use metadata::Service;
use sys::mem::Region;
use tokio::task::JoinHandle;

use crate::pod::epoch::WireExtent;

/// The unit of the rate in the log.
const UNIT: u64 = 100 << 30;

/// What the task of an attempt shares with its handle.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes that are registered.
    done: AtomicU64,
    stopped: AtomicBool,
}

/// Memory that is served over TCP and is being registered, with what is needed to serve it afterwards.
pub(super) struct Registering {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) service: Option<Service>,
    pub(super) places: Vec<WireExtent>,
    /// With their lengths.
    extents: Arc<[(RegionId, u64)]>,
    took: Took,
    /// When the first attempt began, and the last one.
    since: Instant,
    begun: Instant,
    progress: Arc<Progress>,
    /// `None` when the attempt has ended.
    task: Option<JoinHandle<(Took, Result<(), Error>)>>,
}

/// How long each extent took, from the first one on, over all attempts and without those that failed. In another attempt an extent
/// is registered with the devices that lack it: all would have done that at once, so the longest time counts.
#[derive(Debug, Default)]
struct Took(Vec<Duration>);

impl Took {
    /// Adds the times of one attempt.
    fn add(&mut self, attempt: &Self) {
        let extents = self.0.len().max(attempt.0.len());
        self.0.resize(extents, Duration::ZERO);
        for (longest, took) in self.0.iter_mut().zip(&attempt.0) {
            *longest = (*longest).max(*took);
        }
    }

    fn sum(&self) -> Duration {
        self.0.iter().sum()
    }
}

/// Registered memory.
pub(super) struct Registered {
    pub(super) regions: Vec<RegionId>,
    pub(super) took: Duration,
    pub(super) bytes: u64,
}

impl Registering {
    /// Serves `memory` at these wire addresses over TCP, and begins to register it with the devices, one extent after the
    /// other. Each is published over them when it is registered.
    ///
    /// # Errors
    /// Those of [`Endpoint::add_unregistered`].
    pub(super) fn begin(
        endpoint: Arc<Endpoint>,
        service: Option<Service>,
        (memory, places): (&[Arc<Region>], Vec<WireExtent>),
    ) -> Result<Self, Error> {
        let extents = memory.iter().zip(&places).map(|(region, place)| {
            let id = endpoint.add_unregistered(Arc::clone(region), place.base)?;
            Ok((id, region.length()))
        });
        let extents = extents.collect::<Result<_, Error>>()?;
        let mut registering = Self {
            endpoint,
            service,
            places,
            extents,
            took: Took::default(),
            since: Instant::now(),
            begun: Instant::now(),
            progress: Arc::default(),
            task: None,
        };
        registering.attempt();
        Ok(registering)
    }

    /// Begins an attempt, after one that has ended. What is registered stays so: peers may use it.
    pub(super) fn attempt(&mut self) {
        self.begun = Instant::now();
        self.progress = Arc::default();
        let (endpoint, extents) = (Arc::clone(&self.endpoint), Arc::clone(&self.extents));
        let registered = register(endpoint, extents, Arc::clone(&self.progress));
        self.task = Some(tokio::spawn(registered));
    }

    /// Returns for how long the attempt has run; `None` when it has ended.
    pub(super) fn running(&self) -> Option<Duration> {
        self.task.as_ref().map(|_| self.begun.elapsed())
    }

    /// Returns for how long the memory is not registered, over all attempts.
    pub(super) fn unregistered_for(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns the share that is registered, in steps of 10 percent: each change is a write to the API.
    pub(super) fn percent(&self) -> u64 {
        percent(self.progress.done.load(Ordering::Relaxed), self.bytes())
    }

    /// Begins no further extent. A device cannot be interrupted while it registers one.
    pub(super) fn stop(&self) {
        self.progress.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether the last attempt was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.progress.stopped.load(Ordering::Relaxed)
    }

    pub(super) fn regions(&self) -> Vec<RegionId> {
        self.extents.iter().map(|(region, _)| *region).collect()
    }

    fn bytes(&self) -> u64 {
        self.extents.iter().map(|(_, length)| length).sum()
    }

    /// Waits for the end of the attempt; forever after that. Cancel safe.
    ///
    /// # Errors
    /// Those of [`Endpoint::register_region`], after which the memory is served as before; [`Error::Stopped`] after a panic,
    /// which ends the process.
    pub(super) async fn ended(&mut self) -> Result<Registered, Error> {
        let Some(task) = &mut self.task else {
            return std::future::pending().await;
        };
        let ended = task.await;
        self.task = None;
        let (took, registered) = ended.map_err(|_| Error::Stopped)?;
        self.took.add(&took);
        registered.map(|()| Registered {
            regions: self.regions(),
            took: self.took.sum(),
            bytes: self.bytes(),
        })
    }
}

/// Registers each extent, until one fails. Returns how long each of the others took.
async fn register(
    endpoint: Arc<Endpoint>,
    extents: Arc<[(RegionId, u64)]>,
    progress: Arc<Progress>,
) -> (Took, Result<(), Error>) {
    let mut took = Took::default();
    for (region, length) in &*extents {
        if progress.stopped.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        if let Err(error) = endpoint.register_region(*region).await {
            return (took, Err(error));
        }
        took.0.push(begun.elapsed());
        progress.done.fetch_add(*length, Ordering::Relaxed);
    }
    (took, Ok(()))
}

impl Registered {
    /// Returns the seconds that 100 GiB would have taken, rounded.
    pub(super) fn seconds_per_unit(&self) -> u64 {
        let nanoseconds = self.took.as_nanos() * u128::from(UNIT);
        let seconds = nanoseconds / u128::from(self.bytes.max(1)) / 1_000_000_000;
        u64::try_from(seconds).unwrap_or(u64::MAX)
    }
}

fn percent(done: u64, whole: u64) -> u64 {
    done.saturating_mul(10).checked_div(whole).unwrap_or(0) * 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_that_is_registered_in_several_attempts_counts_once() {
        let seconds = |all: &[u64]| {
            let all = all.iter().copied().map(Duration::from_secs);
            Took(all.collect())
        };
        let mut took = Took::default();
        // The second extent fails, and one device lacks the first.
        took.add(&seconds(&[30]));
        took.add(&seconds(&[28]));
        took.add(&seconds(&[0, 40]));
        took.add(&seconds(&[]));
        assert_eq!(took.sum(), Duration::from_secs(70));
    }

    #[test]
    fn progress_has_steps_and_the_rate_is_of_100_gib() {
        assert_eq!(
            [0, 9, 10, 99, 100].map(|done| percent(done, 100)),
            [0, 0, 10, 90, 100]
        );
        assert_eq!(percent(0, 0), 0);
        let registered = |seconds, bytes| Registered {
            regions: Vec::new(),
            took: Duration::from_secs(seconds),
            bytes,
        };
        assert_eq!(registered(90, 3 * UNIT).seconds_per_unit(), 30);
        assert_eq!(registered(1, UNIT / 8).seconds_per_unit(), 8);
        assert_eq!(registered(0, 0).seconds_per_unit(), 0);
    }
}

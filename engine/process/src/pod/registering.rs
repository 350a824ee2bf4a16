//! The registration of a pool's memory before peers over RDMA are served: the devices pin its pages, for seconds to minutes. It has a
//! task of its own, so that master, pool process and agent get their heartbeats, and peers over TCP are served, meanwhile. Over
//! TCP alone it ends at once.

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

/// What the task shares with its handle.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes that are registered.
    done: AtomicU64,
    stopped: AtomicBool,
}

/// Memory that is being registered, with what is needed to serve it afterwards.
pub(super) struct Registering {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) service: Option<Service>,
    pub(super) places: Vec<WireExtent>,
    begun: Instant,
    bytes: u64,
    progress: Arc<Progress>,
    task: JoinHandle<Result<Vec<RegionId>, Error>>,
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
        let bytes = memory.iter().map(|region| region.length()).sum();
        let progress = Arc::new(Progress::default());
        let extents = memory.iter().zip(&places).map(|(region, place)| {
            let id = endpoint.add_unregistered(Arc::clone(region), place.base)?;
            Ok((id, region.length()))
        });
        let extents = extents.collect::<Result<Vec<_>, Error>>()?;
        let (serving, shared) = (Arc::clone(&endpoint), Arc::clone(&progress));
        let register = async move {
            for (region, length) in &extents {
                if shared.stopped.load(Ordering::Relaxed) {
                    break;
                }
                serving.register_region(*region).await?;
                shared.done.fetch_add(*length, Ordering::Relaxed);
            }
            Ok(extents.into_iter().map(|(region, _)| region).collect())
        };
        Ok(Self {
            endpoint,
            service,
            places,
            begun: Instant::now(),
            bytes,
            progress,
            task: tokio::spawn(register),
        })
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    /// Returns the share that is registered, in steps of 10 percent: each change is a write to the API.
    pub(super) fn percent(&self) -> u64 {
        percent(self.progress.done.load(Ordering::Relaxed), self.bytes)
    }

    /// Begins no further extent. A device cannot be interrupted while it registers one.
    pub(super) fn stop(&self) {
        self.progress.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.progress.stopped.load(Ordering::Relaxed)
    }

    /// Waits for the end. To be called once. Cancel safe.
    ///
    /// # Errors
    /// Those of [`Endpoint::register_region`]; [`Error::Stopped`] after a panic, which ends the process.
    pub(super) async fn ended(&mut self) -> Result<Registered, Error> {
        let regions = (&mut self.task).await.map_err(|_| Error::Stopped)??;
        Ok(Registered {
            regions,
            took: self.begun.elapsed(),
            bytes: self.bytes,
        })
    }
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

//! Schedules the tests of the pairs of GPU and RDMA device (once when the GPU is free, then rarely), and keeps their
//! results. Pure: the caller passes the time.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu_probe::{Pair, Proof, Stage};
use tokio::time::Instant;

use host::gpu::{Gpu, Path, Reached};
use host::hca::Hca;
use host::{Facts, Snapshot};

/// Time between two tests of a pair that works.
const PERIOD: Duration = Duration::from_secs(3600);

/// Time after a test that failed or was not possible.
const RETRY: Duration = Duration::from_secs(60);

/// Time before a GPU that a process uses is probed again: a probe opens the GPU beside its user.
const BUSY: Duration = Duration::from_secs(600);

/// Maximum number of RDMA devices tested per GPU.
const DEVICES_LIMIT: usize = 32;

/// State of all pairs, by the PCI address of the GPU and the name of the RDMA device.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    states: BTreeMap<(String, String), PairState>,
    /// GPUs that were in use, and until when they are not probed again.
    paused: BTreeMap<String, Instant>,
    /// Why no pair is tested now.
    suspended: Option<&'static str>,
}

/// Last result of one pair.
#[derive(Debug)]
struct PairState {
    /// Version of the GPU's driver at that time.
    driver: String,
    at: Instant,
    reached: Reached,
}

/// The pair to test.
///
/// # Errors
/// Why the node's present state does not allow a test of this pair.
fn testable(snapshot: &Snapshot, gpu: &Gpu, hca: &Hca) -> Result<Pair, &'static str> {
    let Some(properties) = snapshot.gpu_facts(gpu) else {
        return Err("NVML reports nothing about the GPU");
    };
    if properties.divided {
        return Err("the GPU is partitioned into MIG instances");
    }
    let Some(cuda) = properties.cuda else {
        return Err("CUDA reports nothing about the GPU");
    };
    if !(cuda.dma_buf || cuda.gpu_direct && snapshot.facts.peer_memory()) {
        return Err("RDMA devices cannot access the GPU's memory: see the check GpuDirect");
    }
    let Some(report) = snapshot.hca_reports.get(&hca.name) else {
        return Err("the RDMA device was not probed by verbs");
    };
    let usable = hca.ports.iter().filter(|port| port.is_usable());
    let usable = usable.filter_map(|port| Some((port.number, port.chosen.ok()?)));
    let mut working = usable.filter(|(number, _)| {
        let mut loops = report.loops.iter();
        loops.any(|loopback| loopback.port == *number && loopback.wrote.is_some())
    });
    let (port, gid) = working
        .next()
        .ok_or("the loopback of the RDMA device succeeds on no port")?;
    Ok(Pair {
        device: hca.name.clone(),
        port,
        gid,
    })
}

/// The PCI RDMA devices, nearest to the GPU first.
fn devices<'a>(facts: &'a Facts, gpu: &Gpu) -> Vec<&'a Hca> {
    let devices = facts.hcas.iter().filter(|hca| hca.pci.is_some());
    let mut devices: Vec<&Hca> = devices.collect();
    devices.sort_by_key(|hca| Facts::distance(hca, gpu));
    devices.truncate(DEVICES_LIMIT);
    devices
}

fn is_due(state: Option<&PairState>, driver: &str, now: Instant) -> bool {
    let Some(state) = state.filter(|state| state.driver == driver) else {
        return true;
    };
    let wait = match state.reached {
        Reached::Proved { .. } => PERIOD,
        Reached::Failed { .. } | Reached::Unproved { .. } => RETRY,
    };
    now.saturating_duration_since(state.at) >= wait
}

impl Pairs {
    /// The next pair of these GPUs to be tested. Each GPU comes with the version of its driver.
    pub(super) fn next<'a>(
        &mut self,
        snapshot: &Snapshot,
        gpus: impl Iterator<Item = (&'a Gpu, &'a str)>,
        now: Instant,
    ) -> Option<(&'a Gpu, Pair)> {
        self.paused.retain(|_, until| now < *until);
        for (gpu, driver) in gpus {
            if self.paused.contains_key(&gpu.pci.address) {
                continue;
            }
            for hca in devices(&snapshot.facts, gpu) {
                let state = self.states.get(&key(gpu, &hca.name));
                if let Ok(pair) = testable(snapshot, gpu, hca)
                    && is_due(state, driver, now)
                {
                    return Some((gpu, pair));
                }
            }
        }
        None
    }

    /// Records a test. A GPU that is in use is not probed again for [`BUSY`].
    pub(super) fn record_proof(&mut self, gpu: &str, driver: &str, proof: Proof, now: Instant) {
        let busy = proof
            .failed
            .as_ref()
            .is_some_and(|failed| failed.stage == Stage::Free);
        if busy {
            self.paused.insert(gpu.to_owned(), now + BUSY);
        }
        let device = proof.device.clone();
        self.record(gpu, driver, &device, Reached::of(proof), now);
    }

    /// Records that the pair could not be tested, and pauses the GPU for [`RETRY`].
    pub(super) fn skip(&mut self, gpu: &str, driver: &str, device: &str, why: &str, now: Instant) {
        self.paused.insert(gpu.to_owned(), now + RETRY);
        let why = why.to_owned();
        self.record(gpu, driver, device, Reached::Unproved { why }, now);
    }

    /// Sets why no pair is tested now; `None` resumes the tests.
    pub(super) fn suspend(&mut self, why: Option<&'static str>) {
        self.suspended = why;
    }

    /// Records a result. A pair that cannot be tested keeps the result of its last test with the same driver.
    fn record(&mut self, gpu: &str, driver: &str, device: &str, reached: Reached, now: Instant) {
        let key = (gpu.to_owned(), device.to_owned());
        if let Some(state) = self.states.get_mut(&key)
            && matches!(reached, Reached::Unproved { .. })
            && state.driver == driver
            && state.why().is_none()
        {
            state.at = now;
            return;
        }
        let state = PairState {
            driver: driver.to_owned(),
            at: now,
            reached,
        };
        self.states.insert(key, state);
    }

    /// State of each pair of this GPU whose RDMA device is present.
    pub(super) fn paths(&self, snapshot: &Snapshot, gpu: &Gpu, driver: &str) -> Vec<Path> {
        // Untested pairs show why the GPU's last pair could not be tested.
        let of_gpu = self
            .states
            .iter()
            .filter(|((of, _), state)| *of == gpu.pci.address && state.driver == driver);
        let last = of_gpu.max_by_key(|(_, state)| state.at);
        let last = last.and_then(|(_, state)| state.why());
        let paths = devices(&snapshot.facts, gpu).into_iter().map(|hca| {
            let state = self.states.get(&key(gpu, &hca.name));
            let state = state.filter(|state| state.driver == driver);
            let found = state.filter(|state| state.why().is_none());
            let reached = match (testable(snapshot, gpu, hca), found) {
                (Ok(_), Some(found)) => found.reached.clone(),
                (Err(why), _) => Reached::Unproved {
                    why: why.to_owned(),
                },
                (Ok(_), None) => {
                    let own = state.and_then(PairState::why);
                    let why = self.suspended.or(own).or(last);
                    Reached::Unproved {
                        why: why.unwrap_or("the pair has not been tested yet").to_owned(),
                    }
                }
            };
            Path {
                device: hca.name.clone(),
                reached,
            }
        });
        paths.collect()
    }
}

impl PairState {
    /// Why the pair could not be tested.
    fn why(&self) -> Option<&str> {
        match &self.reached {
            Reached::Unproved { why } => Some(why),
            _ => None,
        }
    }
}

fn key(gpu: &Gpu, device: &str) -> (String, String) {
    (gpu.pci.address.clone(), device.to_owned())
}

#[cfg(test)]
mod tests;

//! Which pairs of GPU and RDMA device are to be proved, and when: each once when its GPU is free, then rarely;
//! and what is known of each. Pure: the time is handed in.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::inventory::PortState;
use nvidia::{Pair, Proof, Stage};
use tokio::time::Instant;

use crate::host::Facts;
use crate::host::gpu::{Gpu, Path, Reached};
use crate::host::hca::Hca;

/// Between two proofs of a pair that is well.
const PERIOD: Duration = Duration::from_secs(3600);

/// After one that failed.
const RETRY: Duration = Duration::from_secs(60);

/// Before a GPU is asked again that a process holds: asking wakes it, and opens it beside its user.
const BUSY: Duration = Duration::from_secs(600);

/// Of one GPU.
const MOST: usize = 32;

/// What is known of all pairs, by the PCI address of the GPU and the name of the device.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    known: BTreeMap<(String, String), Known>,
    /// GPUs that were not free when they were looked at, and until when they are not looked at again.
    resting: BTreeMap<String, Instant>,
    /// Why none is tried now.
    barred: Option<&'static str>,
}

/// What is known of one pair.
#[derive(Debug)]
struct Known {
    /// Version of the GPU's driver then.
    driver: String,
    at: Instant,
    reached: Reached,
}

/// Why a pair cannot be tried as the node is now.
fn obstacle(facts: &Facts, gpu: &Gpu, hca: &Hca) -> Result<Pair, &'static str> {
    let told = gpu.answer.as_ref().and_then(|answer| answer.facts.as_ref());
    let Some(told) = told else {
        return Err("NVML tells nothing of the GPU");
    };
    if told.divided {
        return Err("the GPU is cut into instances (MIG)");
    }
    let Some(can) = told.cuda else {
        return Err("CUDA tells nothing of the GPU");
    };
    if !(can.dma_buf || can.gpu_direct && facts.peer_memory()) {
        return Err("the GPU's memory can be reached by no way: see GpuDirect");
    }
    let Some(answer) = &hca.verbs else {
        return Err("the RDMA device was not asked by verbs");
    };
    let usable = hca.ports.iter().filter_map(|port| {
        let gid = port.chosen.ok()?;
        let active = port.state == Some(PortState::Active);
        active.then_some((port.number, gid))
    });
    let mut carries = usable.filter(|(number, _)| {
        let mut loops = answer.loops.iter();
        loops.any(|over| over.port == *number && over.wrote.is_some())
    });
    let (port, gid) = carries
        .next()
        .ok_or("the RDMA device carries nothing to itself over any port")?;
    Ok(Pair {
        device: hca.name.clone(),
        port,
        gid,
    })
}

/// The RDMA devices that are cards, the nearest to a GPU first.
fn devices<'a>(facts: &'a Facts, gpu: &Gpu) -> Vec<&'a Hca> {
    let real = facts.hcas.iter().filter(|hca| hca.pci.is_some());
    let mut real: Vec<&Hca> = real.collect();
    real.sort_by_key(|hca| Facts::distance(hca, gpu));
    real.truncate(MOST);
    real
}

fn is_due(known: Option<&Known>, driver: &str, now: Instant) -> bool {
    let Some(known) = known.filter(|known| known.driver == driver) else {
        return true;
    };
    let wait = match known.reached {
        Reached::Proved { .. } => PERIOD,
        Reached::Failed { .. } | Reached::Unproved { .. } => RETRY,
    };
    now.saturating_duration_since(known.at) >= wait
}

impl Pairs {
    /// The next pair to be proved among these GPUs, which their driver of this version holds.
    pub(super) fn next<'a>(
        &mut self,
        facts: &Facts,
        gpus: impl Iterator<Item = (&'a Gpu, &'a str)>,
        now: Instant,
    ) -> Option<(&'a Gpu, Pair)> {
        self.resting.retain(|_, until| now < *until);
        for (gpu, driver) in gpus {
            if self.resting.contains_key(&gpu.pci.address) {
                continue;
            }
            for hca in devices(facts, gpu) {
                let known = self.known.get(&key(gpu, &hca.name));
                if let Ok(pair) = obstacle(facts, gpu, hca)
                    && is_due(known, driver, now)
                {
                    return Some((gpu, pair));
                }
            }
        }
        None
    }

    /// What came of a pair; a GPU that is in use is left alone for a while.
    pub(super) fn proved(&mut self, gpu: &str, driver: &str, proof: Proof, now: Instant) {
        let busy = proof
            .failed
            .as_ref()
            .is_some_and(|failed| failed.stage == Stage::Free);
        if busy {
            self.resting.insert(gpu.to_owned(), now + BUSY);
        }
        let device = proof.device.clone();
        self.note(gpu, driver, &device, Reached::of(proof), now);
    }

    /// A GPU that cannot be tried now, by a word that is not its own.
    pub(super) fn barred(
        &mut self,
        gpu: &str,
        driver: &str,
        device: &str,
        why: &str,
        now: Instant,
    ) {
        self.resting.insert(gpu.to_owned(), now + RETRY);
        let why = why.to_owned();
        self.note(gpu, driver, device, Reached::Unproved { why }, now);
    }

    /// Says why none is tried now.
    pub(super) fn bar_all(&mut self, why: Option<&'static str>) {
        self.barred = why;
    }

    /// What was found when it could be tried stays, while the driver does, until it can be tried again.
    fn note(&mut self, gpu: &str, driver: &str, device: &str, reached: Reached, now: Instant) {
        let key = (gpu.to_owned(), device.to_owned());
        if let Some(known) = self.known.get_mut(&key)
            && matches!(reached, Reached::Unproved { .. })
            && known.driver == driver
            && known.why().is_none()
        {
            known.at = now;
            return;
        }
        let known = Known {
            driver: driver.to_owned(),
            at: now,
            reached,
        };
        self.known.insert(key, known);
    }

    /// What is known of each device and this GPU. What is known of devices that are gone is not told.
    pub(super) fn of(&self, facts: &Facts, gpu: &Gpu, driver: &str) -> Vec<Path> {
        // What another pair of the GPU found last holds for those that were not tried.
        let of_gpu = self
            .known
            .iter()
            .filter(|((of, _), known)| *of == gpu.pci.address && known.driver == driver);
        let last = of_gpu.max_by_key(|(_, known)| known.at);
        let last = last.and_then(|(_, known)| known.why());
        let paths = devices(facts, gpu).into_iter().map(|hca| {
            let known = self.known.get(&key(gpu, &hca.name));
            let known = known.filter(|known| known.driver == driver);
            let found = known.filter(|known| known.why().is_none());
            let reached = match (obstacle(facts, gpu, hca), found) {
                (Ok(_), Some(found)) => found.reached.clone(),
                (Err(why), _) => Reached::Unproved {
                    why: why.to_owned(),
                },
                (Ok(_), None) => {
                    let own = known.and_then(Known::why);
                    let why = self.barred.or(own).or(last);
                    Reached::Unproved {
                        why: why.unwrap_or("its turn has not come yet").to_owned(),
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

impl Known {
    /// Why it could not be tried.
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

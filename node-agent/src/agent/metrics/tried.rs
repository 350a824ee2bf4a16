//! How long RDMA devices took for what they were asked to do, as metrics: a series for each device, for each of
//! its ports, and for each GPU whose memory it reaches.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use verbs::Tried;

use crate::host::Facts;
use crate::host::gpu::Reached;

/// Most series of devices and ports, and of pairs of GPU and device.
const MOST: usize = 32;
const MOST_PAIRS: usize = 64;

/// How long one thing took.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Took {
    hca: String,
    what: What,
    seconds: f64,
}

/// What took so long.
#[derive(Debug, Clone, PartialEq)]
enum What {
    Registration,
    /// A write to itself over a port.
    Loop(u8),
    /// Writes to the memory of the GPU at this address and from there.
    Gpu(String),
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByHca {
    hca: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByPort {
    hca: String,
    port: u8,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByGpu {
    gpu: String,
    hca: String,
}

/// What succeeded the last time that it was tried.
pub(crate) fn took(facts: &Facts) -> Vec<Took> {
    let seconds = |tried: Tried| std::time::Duration::from_micros(tried.micros).as_secs_f64();
    let answers = facts.hcas.iter().filter_map(|hca| {
        let answer = hca.verbs.as_ref()?;
        Some((&hca.name, answer))
    });
    let took = answers.flat_map(|(name, answer)| {
        let one = move |what, tried| Took {
            hca: name.clone(),
            what,
            seconds: seconds(tried),
        };
        let registered = answer
            .registered
            .map(|tried| one(What::Registration, tried));
        let loops = answer.loops.iter();
        let wrote = loops.filter_map(move |over| Some(one(What::Loop(over.port), over.wrote?)));
        registered.into_iter().chain(wrote)
    });
    let paths = facts
        .gpus
        .iter()
        .flat_map(|gpu| gpu.paths.iter().map(move |path| (gpu, path)));
    let reached = paths.filter_map(|(gpu, path)| match &path.reached {
        Reached::Proved { proof } => Some(Took {
            hca: path.device.clone(),
            what: What::Gpu(gpu.pci.address.clone()),
            seconds: std::time::Duration::from_micros(proof.micros?).as_secs_f64(),
        }),
        _ => None,
    });
    took.chain(reached).collect()
}

pub(super) fn register(registry: &mut Registry, took: &[Took]) {
    let registrations = Family::<ByHca, Gauge<f64, AtomicU64>>::default();
    let writes = Family::<ByPort, Gauge<f64, AtomicU64>>::default();
    let pairs = Family::<ByGpu, Gauge<f64, AtomicU64>>::default();
    let mut count = [0; 3];
    let mut room = |of: usize, most| {
        count[of] += 1;
        count[of] <= most
    };
    for took in took {
        let hca = took.hca.clone();
        match &took.what {
            What::Registration if room(0, MOST) => {
                let labels = ByHca { hca };
                registrations.get_or_create(&labels).set(took.seconds);
            }
            What::Loop(port) if room(1, MOST) => {
                let labels = ByPort { hca, port: *port };
                writes.get_or_create(&labels).set(took.seconds);
            }
            What::Gpu(gpu) if room(2, MOST_PAIRS) => {
                let gpu = gpu.clone();
                pairs.get_or_create(&ByGpu { gpu, hca }).set(took.seconds);
            }
            _ => {}
        }
    }
    registry.register_with_unit(
        "rdma_registration_duration",
        "Time in which an RDMA device last registered 64 KiB and gave it back",
        Unit::Seconds,
        registrations,
    );
    registry.register_with_unit(
        "rdma_loopback_duration",
        "Time in which an RDMA device last wrote 64 KiB to itself over a port",
        Unit::Seconds,
        writes,
    );
    registry.register_with_unit(
        "rdma_gpu_duration",
        "Time in which an RDMA device last wrote 64 KiB to a GPU's memory and 64 KiB from there",
        Unit::Seconds,
        pairs,
    );
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;

    #[test]
    fn what_each_device_took_is_shown_by_device_and_port() {
        let machine = include_str!("../../../tests/machines/vm-soft-roce.txt");
        let facts = Host::recorded(Recording::parse(machine).unwrap()).facts();
        let mut registry = Registry::default();
        register(&mut registry, &took(&facts));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "rdma_registration_duration_seconds{hca=\"rxe1\"} 0.003073",
            "rdma_loopback_duration_seconds{hca=\"rxe0\",port=\"1\"} 0.002399",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn what_a_device_took_to_gpu_memory_is_shown_by_gpu_and_device() {
        let machine = include_str!("../../../tests/machines/dgx-h100.txt");
        let facts = Host::recorded(Recording::parse(machine).unwrap()).facts();
        let mut registry = Registry::default();
        register(&mut registry, &took(&facts));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = "rdma_gpu_duration_seconds{gpu=\"0000:1c:00.0\",hca=\"mlx5_0\"} 0.000057";
        assert!(text.contains(line), "{text}");
    }
}

//! Durations of the operations of the RDMA probes, as metrics: one series per device, per port, and per pair of GPU
//! and device.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use host::Snapshot;
use host::gpu::Reached;

/// Maximum number of series per metric: of devices or ports, and of pairs.
const SERIES_LIMIT: usize = 32;
const PAIRS_LIMIT: usize = 64;

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

/// Registers the operations that succeeded in the last probe; before the first snapshot they have no series.
pub(super) fn register(registry: &mut Registry, snapshot: Option<&Snapshot>) {
    let registrations = Family::<ByHca, Gauge<f64, AtomicU64>>::default();
    let writes = Family::<ByPort, Gauge<f64, AtomicU64>>::default();
    let pairs = Family::<ByGpu, Gauge<f64, AtomicU64>>::default();
    let seconds = |micros| Duration::from_micros(micros).as_secs_f64();
    let reports = || {
        snapshot
            .into_iter()
            .flat_map(|snapshot| &snapshot.hca_reports)
    };
    let registered = reports().filter_map(|(hca, report)| Some((hca.clone(), report.registered?)));
    for (hca, timing) in registered.take(SERIES_LIMIT) {
        let gauge = registrations.get_or_create(&ByHca { hca });
        gauge.set(seconds(timing.micros));
    }
    let loops = reports().flat_map(|(hca, report)| report.loops.iter().map(move |of| (hca, of)));
    let wrote = loops.filter_map(|(hca, of)| Some((hca.clone(), of.port, of.wrote?)));
    for (hca, port, timing) in wrote.take(SERIES_LIMIT) {
        let gauge = writes.get_or_create(&ByPort { hca, port });
        gauge.set(seconds(timing.micros));
    }
    let gpus = snapshot
        .into_iter()
        .flat_map(|snapshot| &snapshot.gpu_paths);
    let paths = gpus.flat_map(|(gpu, paths)| paths.iter().map(move |path| (gpu, path)));
    let proved = paths.filter_map(|(gpu, path)| match &path.reached {
        Reached::Proved { proof } => Some((gpu.clone(), path.device.clone(), proof.micros?)),
        _ => None,
    });
    for (gpu, hca, micros) in proved.take(PAIRS_LIMIT) {
        let gauge = pairs.get_or_create(&ByGpu { gpu, hca });
        gauge.set(seconds(micros));
    }
    registry.register_with_unit(
        "rdma_registration_duration",
        "Duration of the last registration and deregistration of 64 KiB by an RDMA device",
        Unit::Seconds,
        registrations,
    );
    registry.register_with_unit(
        "rdma_loopback_duration",
        "Duration of the last loopback write of 64 KiB by an RDMA device over a port",
        Unit::Seconds,
        writes,
    );
    registry.register_with_unit(
        "rdma_gpu_duration",
        "Duration of the last write of 64 KiB by an RDMA device to GPU memory and 64 KiB from it",
        Unit::Seconds,
        pairs,
    );
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use host::Host;

    #[test]
    fn durations_are_shown_by_device_and_port() {
        let machine = include_str!("../../../host/machines/vm-soft-roce.txt");
        let snapshot = Host::parse(machine).unwrap().snapshot();
        let mut registry = Registry::default();
        register(&mut registry, Some(&snapshot));
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
    fn durations_of_gpu_memory_are_shown_by_gpu_and_device() {
        let machine = include_str!("../../../host/machines/dgx-h100.txt");
        let snapshot = Host::parse(machine).unwrap().snapshot();
        let mut registry = Registry::default();
        register(&mut registry, Some(&snapshot));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = "rdma_gpu_duration_seconds{gpu=\"0000:1c:00.0\",hca=\"mlx5_0\"} 0.000057";
        assert!(text.contains(line), "{text}");
    }
}

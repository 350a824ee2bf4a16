//! How long RDMA devices took for what they were asked to do, as metrics: a series for each device, and for
//! each of its ports.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use verbs::Tried;

use crate::host::Facts;

/// Most series of either.
const MOST: usize = 32;

/// How long one thing took.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Took {
    hca: String,
    /// Of a write; a registration has none.
    port: Option<u8>,
    seconds: f64,
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

/// What succeeded the last time that it was tried.
pub(crate) fn took(facts: &Facts) -> Vec<Took> {
    let seconds = |tried: Tried| std::time::Duration::from_micros(tried.micros).as_secs_f64();
    let answers = facts.hcas.iter().filter_map(|hca| {
        let answer = hca.verbs.as_ref()?;
        Some((&hca.name, answer))
    });
    let took = answers.flat_map(|(name, answer)| {
        let one = move |port, tried| Took {
            hca: name.clone(),
            port,
            seconds: seconds(tried),
        };
        let registered = answer.registered.map(|tried| one(None, tried));
        let loops = answer.loops.iter();
        let wrote = loops.filter_map(move |over| Some(one(Some(over.port), over.wrote?)));
        registered.into_iter().chain(wrote)
    });
    took.collect()
}

pub(super) fn register(registry: &mut Registry, took: &[Took]) {
    let registrations = Family::<ByHca, Gauge<f64, AtomicU64>>::default();
    let writes = Family::<ByPort, Gauge<f64, AtomicU64>>::default();
    let of = |wanted: bool| {
        let took = took.iter();
        took.filter(move |took| took.port.is_some() == wanted)
            .take(MOST)
    };
    for took in of(false) {
        let labels = ByHca {
            hca: took.hca.clone(),
        };
        registrations.get_or_create(&labels).set(took.seconds);
    }
    for took in of(true) {
        let (hca, port) = (took.hca.clone(), took.port.unwrap_or_default());
        let labels = ByPort { hca, port };
        writes.get_or_create(&labels).set(took.seconds);
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
}

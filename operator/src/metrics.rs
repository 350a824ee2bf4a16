//! The metrics of the operator. Labels have a bounded number of values: kinds and verbs. Only the conditions of
//! MooncakeClusters have names of objects.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

mod conditions;
mod endpoint;

pub use conditions::Clusters;
pub use endpoint::{Settings, serve};

/// Before the name of each metric.
const PREFIX: &str = "mooncake_operator";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    kind: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

impl Kind {
    fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
        }
    }
}

/// Handles to every metric. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciles: Family<Reconcile, Counter>,
    durations: Family<Kind, Histogram>,
    writes: Family<Verb, Counter>,
    watch_errors: Family<Kind, Counter>,
    undecodable: Family<Kind, Counter>,
    leader: Gauge,
    registry: Arc<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let reconciles = Family::default();
        registry.register(
            "reconciles",
            "Reconciles by kind and result",
            reconciles.clone(),
        );
        let durations = Family::<Kind, Histogram>::new_with_constructor(|| {
            Histogram::new([0.001, 0.01, 0.1, 1.0, 10.0])
        });
        registry.register(
            "reconcile_seconds",
            "Time of one reconcile",
            durations.clone(),
        );
        let writes = Family::default();
        registry.register(
            "api_writes",
            "Writes to the API server by verb, Lease renewals left out",
            writes.clone(),
        );
        let watch_errors = Family::default();
        registry.register(
            "watch_errors",
            "Broken watches by kind; each is taken up again",
            watch_errors.clone(),
        );
        let undecodable = Family::default();
        registry.register(
            "undecodable_objects",
            "Objects seen that do not fit their kind's types",
            undecodable.clone(),
        );
        let leader = Gauge::default();
        registry.register("leader", "1 where this replica may write", leader.clone());
        Self {
            reconciles,
            durations,
            writes,
            watch_errors,
            undecodable,
            leader,
            registry: Arc::new(registry),
        }
    }

    pub fn count_reconcile(&self, kind: &str, result: &'static str, took: Duration) {
        self.reconciles
            .get_or_create(&Reconcile {
                kind: kind.to_owned(),
                result,
            })
            .inc();
        self.durations
            .get_or_create(&Kind::of(kind))
            .observe(took.as_secs_f64());
    }

    pub fn count_write(&self, verb: &'static str) {
        self.writes.get_or_create(&Verb { verb }).inc();
    }

    /// Writes so far, over all verbs.
    pub fn writes(&self) -> u64 {
        ["apply", "create", "delete", "event", "patch"]
            .map(|verb| self.writes.get_or_create(&Verb { verb }).get())
            .iter()
            .sum()
    }

    pub fn count_watch_error(&self, kind: &str) {
        self.watch_errors.get_or_create(&Kind::of(kind)).inc();
    }

    pub fn count_undecodable(&self, kind: &str) {
        self.undecodable.get_or_create(&Kind::of(kind)).inc();
    }

    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// The text that Prometheus reads (OpenMetrics 1.0). The leader alone shows the conditions of the clusters: they are
    /// the same for every replica.
    pub fn render(&self, clusters: &Clusters) -> Result<String, std::fmt::Error> {
        let mut rendered = String::new();
        text::encode_registry(&mut rendered, &self.registry)?;
        if self.leader.get() == 1 {
            text::encode_registry(&mut rendered, &conditions::registry(clusters))?;
        }
        text::encode_eof(&mut rendered)?;
        Ok(rendered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_prefix_and_bounded_labels() {
        let metrics = Metrics::new();
        metrics.count_reconcile("MooncakeCluster", "ok", Duration::from_millis(5));
        metrics.count_write("apply");
        metrics.set_leader(true);
        let text = metrics.render(&[]).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("mooncake_operator_"), "{line}");
        }
        assert!(text.contains("mooncake_operator_leader 1"));
        assert_eq!(metrics.writes(), 1);
    }
}

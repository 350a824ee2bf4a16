//! Metrics of the fixes: at most one series per fix.

use crds::FixReport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByFix {
    fix: String,
    reason: String,
}

pub(super) fn register(registry: &mut Registry, fixes: &[FixReport]) {
    let all = Family::<ByFix, Gauge>::default();
    for fix in fixes {
        let labels = ByFix {
            fix: fix.id.to_string(),
            reason: fix.reason.to_string(),
        };
        all.get_or_create(&labels).set(1);
    }
    registry.register(
        "fixes",
        "Fixes that the policy requests, by the Reason of their state",
        all,
    );
}

#[cfg(test)]
mod tests {
    use crds::{FixId, Reason};
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn each_fix_has_a_series_with_its_reason() {
        let fix = FixReport {
            id: FixId::MaxMapCount.into(),
            reason: Reason::FixApplied.into(),
            before: "1000".to_owned(),
            after: "65530".to_owned(),
            message: String::new(),
        };
        let mut registry = Registry::default();
        register(&mut registry, &[fix]);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = "fixes{fix=\"MaxMapCount\",reason=\"FixApplied\"} 1";
        assert!(text.contains(line), "{text}");
    }
}

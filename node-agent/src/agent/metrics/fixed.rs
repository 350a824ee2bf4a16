//! What the agent was to set right, as metrics: at most one series for each fix of the list.

use crds::FixReport;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByFix {
    fix: &'static str,
    reason: &'static str,
}

pub(super) fn register(registry: &mut Registry, fixes: &[FixReport]) {
    let all = Family::<ByFix, Gauge>::default();
    for fix in fixes {
        let labels = ByFix {
            fix: fix.id.as_str(),
            reason: fix.reason.as_str(),
        };
        all.get_or_create(&labels).set(1);
    }
    registry.register(
        "fixes",
        "What the agent has set right on the node, would set right or cannot, as the policy asks",
        all,
    );
}

#[cfg(test)]
mod tests {
    use crds::{FixId, Reason};
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn each_fix_is_counted_by_what_became_of_it() {
        let fix = FixReport {
            id: FixId::MaxMapCount,
            reason: Reason::FixApplied,
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

//! How the node was judged, as metrics. Of findings there are as many series as kinds of things are
//! wrong, which the catalogue bounds.

use crds::node::DeviceHealth;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::checks::steady::Health;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByVerdict {
    verdict: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCheck {
    check: &'static str,
    verdict: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

/// Before the first look there is nothing to show.
pub(super) fn register(
    registry: &mut Registry,
    health: Option<&Health>,
    devices: Option<&DeviceHealth>,
) {
    let checks = Family::<ByVerdict, Gauge>::default();
    let findings = Family::<ByCheck, Gauge>::default();
    if let Some(Health { counts, told }) = health {
        for (verdict, count) in [
            ("Pass", counts.passed),
            ("Warn", counts.warned),
            ("Fail", counts.failed),
            ("Unknown", counts.unknown),
            ("NotApplicable", counts.not_applicable),
            ("Ignored", counts.ignored),
        ] {
            checks
                .get_or_create(&ByVerdict { verdict })
                .set(i64::from(count));
        }
        for told in told {
            let labels = ByCheck {
                check: told.check.as_str(),
                verdict: told.trouble.verdict.as_str(),
                reason: told.trouble.reason.as_str(),
            };
            findings.get_or_create(&labels).inc();
        }
    }
    let rdma = Family::<ByState, Gauge>::default();
    if let Some(DeviceHealth { known, sick, .. }) = devices {
        for (state, count) in [("well", known.saturating_sub(*sick)), ("sick", *sick)] {
            rdma.get_or_create(&ByState { state }).set(i64::from(count));
        }
    }
    registry.register(
        "devices",
        "RDMA devices of the node: a sick one is lent to nobody new",
        rdma,
    );
    registry.register("checks", "Checks of the node by how they ended", checks);
    registry.register(
        "check_findings",
        "Things on the node that are not as they should be, by check, verdict and reason",
        findings,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Trouble;
    use crate::checks::steady::Told;
    use crds::{CheckCounts, CheckId, Reason, Verdict};
    use jiff::Timestamp;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn what_the_checks_found_is_counted_by_check_and_reason_and_not_by_thing() {
        let told = |subject: &str| Told {
            check: CheckId::PortActive,
            subject: subject.to_owned(),
            trouble: Trouble {
                verdict: Verdict::Fail,
                reason: Reason::PortNotActive,
                words: "it has lost its link".to_owned(),
            },
            since: Timestamp::UNIX_EPOCH,
            flaps: false,
        };
        let counts = CheckCounts {
            passed: 11,
            failed: 1,
            ..CheckCounts::default()
        };
        let told = vec![told("mlx5_0 port 1"), told("mlx5_1 port 1")];
        let mut registry = Registry::default();
        let devices = DeviceHealth {
            known: 8,
            sick: 1,
            memlock: None,
            named: Vec::new(),
        };
        let health = Health { counts, told };
        register(&mut registry, Some(&health), Some(&devices));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "checks{verdict=\"Pass\"} 11",
            "checks{verdict=\"Warn\"} 0",
            "devices{state=\"well\"} 7",
            "devices{state=\"sick\"} 1",
            "check_findings{check=\"PortActive\",verdict=\"Fail\",reason=\"PortNotActive\"} 2",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
